// Opens the driver, and calls it for devices and their contexts. The other files of this folder
// have the rest of class Driver, such as memory and streams. No other folder calls a cu* function.
#include <cstring>

#include "driver/calls.h"
#include "driver/device_scope.h"
#include "driver/load.h"

namespace glake {

Status Status::no_memory() { return {CUDA_ERROR_OUT_OF_MEMORY}; }
Status Status::unready() { return {CUDA_ERROR_NOT_READY}; }
Status Status::capturing() { return {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED}; }
bool Status::out_of_memory() const { return code == CUDA_ERROR_OUT_OF_MEMORY; }
bool Status::not_ready() const { return code == CUDA_ERROR_NOT_READY; }
bool Status::stream_gone() const {
  return code == CUDA_ERROR_INVALID_HANDLE || code == CUDA_ERROR_CONTEXT_IS_DESTROYED;
}
bool Status::not_supported() const {
  return code == CUDA_ERROR_NOT_SUPPORTED || code == CUDA_ERROR_NOT_PERMITTED;
}

bool Status::invalid_value() const { return code == CUDA_ERROR_INVALID_VALUE; }

StreamHandle this_thread_stream() {
  static std::atomic<StreamHandle> last{0};
  static thread_local StreamHandle mine = 0;
  if (mine == 0) mine = kThreadStream + ++last;
  return mine;
}

const char* call_name(Call call) {
  static const char* const names[kCallKinds] = {"reserve", "create",  "map",  "access", "unmap",
                                                "release", "free_va", "mark", "wait"};
  return names[static_cast<size_t>(call)];
}

Driver::Driver() : table_(std::make_unique<driver::Table>()) {}
Driver::~Driver() = default;

std::unique_ptr<Driver> Driver::open(const std::string& choice) {
  std::unique_ptr<Driver> d(new Driver);
  d->path_ = driver::library_path(choice);
  driver::fill(*d->table_, d->path_, choice);
  auto check = [&](CUresult r, const char* what) {
    if (r == CUDA_SUCCESS) return;
    throw Error(GLAKE_DRIVER_ERROR, std::string(what) + ": " + d->describe(status(r)) +
                                        " (GLAKE_DRIVER=" + choice + ")");
  };
  check(d->table_->cuInit(0), "cuInit");
  check(d->table_->cuDeviceGetCount(&d->device_count_), "cuDeviceGetCount");
  auto count = static_cast<size_t>(d->device_count_);
  d->contexts_.resize(count, nullptr);
  d->attached_.resize(count, 0);
  d->traits_ = std::make_unique<std::atomic<uint8_t>[]>(count);
  d->headroom_ = std::make_unique<std::atomic<Bytes>[]>(count);
  return d;
}

// CUDA's reference says that the process is in an inconsistent state after these errors, and must
// be started again. Every later call on that GPU returns the same error.
bool Driver::ends_context(Status s) {
  switch (static_cast<CUresult>(s.code)) {
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
      return true;
    default:
      return false;
  }
}

std::string Driver::describe(Status s) const {
  const char* name = nullptr;
  const char* text = nullptr;
  table_->cuGetErrorName(static_cast<CUresult>(s.code), &name);
  table_->cuGetErrorString(static_cast<CUresult>(s.code), &text);
  std::string words = driver::own_words();
  return std::string(name != nullptr ? name : "CUDA error") + " (" + std::to_string(s.code) +
         (text != nullptr ? std::string(": ") + text : "") + ")" +
         (words.empty() ? "" : ": " + words) +
         (ends_context(s)
              ? "; no call on that GPU works from then on: end this process, and start it again"
              : "");
}

int Driver::device_in_use() {
  CUcontext current = nullptr;
  CUdevice device = 0;
  if (table_->cuCtxGetDevice != nullptr && table_->cuCtxGetCurrent(&current) == CUDA_SUCCESS &&
      current != nullptr && table_->cuCtxGetDevice(&device) == CUDA_SUCCESS) {
    return device;
  }
  for (int i = 0; i < device_count_ && table_->cuDevicePrimaryCtxGetState != nullptr; ++i) {
    unsigned flags = 0;
    int alive = 0;
    if (table_->cuDeviceGet(&device, i) != CUDA_SUCCESS) continue;
    CUresult r = table_->cuDevicePrimaryCtxGetState(device, &flags, &alive);
    if (r == CUDA_SUCCESS && alive != 0) return i;
  }
  return 0;
}

Status Driver::attach(int device) {
  CUdevice d = 0;
  CUresult r = table_->cuDeviceGet(&d, device);
  if (r != CUDA_SUCCESS) return status(r);
  CUcontext context = nullptr;
  r = table_->cuDevicePrimaryCtxRetain(&context, d);
  if (r != CUDA_SUCCESS) return status(r);
  std::lock_guard<std::mutex> guard(attach_mutex_);
  auto i = static_cast<size_t>(device);
  if (attached_[i]++ == 0) contexts_[i] = context;
  return {};
}

Status Driver::detach(int device) {
  CUdevice d = 0;
  CUresult r = table_->cuDeviceGet(&d, device);
  if (r == CUDA_SUCCESS) r = table_->cuDevicePrimaryCtxRelease(d);
  if (r != CUDA_SUCCESS) return status(r);
  std::lock_guard<std::mutex> guard(attach_mutex_);
  auto i = static_cast<size_t>(device);
  if (--attached_[i] == 0) contexts_[i] = nullptr;
  return {};
}

Status Driver::total_memory(int device, Bytes* bytes) {
  CUdevice d = 0;
  size_t total = 0;
  CUresult r = table_->cuDeviceGet(&d, device);
  if (r == CUDA_SUCCESS) r = table_->cuDeviceTotalMem(&total, d);
  *bytes = total;
  return status(r);
}

Status Driver::vmm_supported(int device, bool* yes) {
  CUdevice d = 0;
  int value = 0;
  CUresult r = table_->cuDeviceGet(&d, device);
  if (r == CUDA_SUCCESS) {
    r = table_->cuDeviceGetAttribute(&value,
                                     CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, d);
  }
  *yes = value != 0;
  return status(r);
}

Status Driver::can_access_peer(int device, int peer, bool* yes) {
  CUdevice a = 0, b = 0;
  int value = 0;
  CUresult r = table_->cuDeviceGet(&a, device);
  if (r == CUDA_SUCCESS) r = table_->cuDeviceGet(&b, peer);
  if (r == CUDA_SUCCESS) r = table_->cuDeviceCanAccessPeer(&value, a, b);
  *yes = value != 0;
  return status(r);
}

Status Driver::synchronize(int device) {
  DeviceScope scope(*this, device);
  return scope.status().ok() ? status(table_->cuCtxSynchronize()) : scope.status();
}

Status Driver::synchronize_context(void* context) {
  CUresult r = table_->cuCtxPushCurrent(static_cast<CUcontext>(context));
  if (r == CUDA_SUCCESS) {
    r = table_->cuCtxSynchronize();
    CUcontext popped = nullptr;
    table_->cuCtxPopCurrent(&popped);
  }
  // The end of a context ends all its work.
  const bool ended = r == CUDA_ERROR_INVALID_CONTEXT || r == CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return status(ended ? CUDA_SUCCESS : r);
}

Status Driver::uuid(int device, DeviceUuid* uuid) {
  uuid->fill(0);
  if (table_->cuDeviceGetUuid == nullptr) return {};
  CUdevice d = 0;
  CUuuid id{};
  CUresult r = table_->cuDeviceGet(&d, device);
  if (r == CUDA_SUCCESS) r = table_->cuDeviceGetUuid(&id, d);
  std::memcpy(uuid->data(), id.bytes, uuid->size());
  return status(r);
}

void Driver::need(bool present, const char* name) const {
  if (present) return;
  throw Error(GLAKE_DRIVER_ABSENT, path_ + " lacks " + name + "; install a newer NVIDIA driver");
}

uint64_t Driver::memory_calls() const {
  return calls(Call::kReserve) + calls(Call::kCreate) + calls(Call::kMap) + calls(Call::kAccess) +
         calls(Call::kUnmap) + calls(Call::kRelease) + calls(Call::kFree);
}

}  // namespace glake
