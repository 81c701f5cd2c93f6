// The core's driver in terms of the table. The only file that calls cu* functions.
#include <algorithm>
#include <cstring>

#include "driver/driver.h"
#include "driver/load.h"

namespace glake {

bool Status::out_of_memory() const { return code == CUDA_ERROR_OUT_OF_MEMORY; }
bool Status::not_ready() const { return code == CUDA_ERROR_NOT_READY; }
bool Status::not_supported() const {
  return code == CUDA_ERROR_NOT_SUPPORTED || code == CUDA_ERROR_NOT_PERMITTED;
}
bool Status::stream_gone() const {
  return code == CUDA_ERROR_INVALID_HANDLE || code == CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

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

namespace {

constexpr uint8_t kShareable = 1, kRdma = 2;

CUmemAllocationProp granule_properties(int device, uint8_t traits) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = device;
  if ((traits & kShareable) != 0) {
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  }
  if ((traits & kRdma) != 0) prop.allocFlags.gpuDirectRDMACapable = 1;
  return prop;
}

Status status(CUresult result) { return {static_cast<int>(result)}; }
CUstream stream_of(StreamHandle s) { return reinterpret_cast<CUstream>(given_name(s)); }
CUevent event_of(EventId e) { return reinterpret_cast<CUevent>(e); }

// For calls that a capture under way elsewhere would forbid, and that need no current context.
class RelaxedScope {
 public:
  explicit RelaxedScope(const driver::Table& table) : table_(table) {
    if (table_.cuThreadExchangeStreamCaptureMode(&mode_) == CUDA_SUCCESS) relaxed_ = true;
  }
  ~RelaxedScope() {
    if (relaxed_) table_.cuThreadExchangeStreamCaptureMode(&mode_);
  }
  RelaxedScope(const RelaxedScope&) = delete;
  RelaxedScope& operator=(const RelaxedScope&) = delete;

 private:
  const driver::Table& table_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  bool relaxed_ = false;
};

}  // namespace

DeviceScope::DeviceScope(Driver& driver, int device) : driver_(driver) {
  auto wanted = static_cast<CUcontext>(driver.contexts_[static_cast<size_t>(device)]);
  CUcontext current = nullptr;
  CUresult result = driver.table_->cuCtxGetCurrent(&current);
  if (result == CUDA_SUCCESS && current != wanted) {
    result = driver.table_->cuCtxPushCurrent(wanted);
    pushed_ = result == CUDA_SUCCESS;
  }
  if (result == CUDA_SUCCESS) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    result = driver.table_->cuThreadExchangeStreamCaptureMode(&mode);
    relaxed_ = result == CUDA_SUCCESS;
    mode_ = static_cast<int>(mode);
  }
  status_ = glake::status(result);
}

DeviceScope::~DeviceScope() {
  auto mode = static_cast<CUstreamCaptureMode>(mode_);
  if (relaxed_) driver_.table_->cuThreadExchangeStreamCaptureMode(&mode);
  CUcontext popped = nullptr;
  if (pushed_) driver_.table_->cuCtxPopCurrent(&popped);
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
  return d;
}

std::string Driver::describe(Status s) const {
  const char* name = nullptr;
  const char* text = nullptr;
  table_->cuGetErrorName(static_cast<CUresult>(s.code), &name);
  table_->cuGetErrorString(static_cast<CUresult>(s.code), &text);
  std::string words = driver::own_words();
  return std::string(name != nullptr ? name : "CUDA error") + " (" + std::to_string(s.code) +
         (text != nullptr ? std::string(": ") + text : "") + ")" +
         (words.empty() ? "" : ": " + words);
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

Status Driver::granularity(int device, Bytes* bytes) {
  CUmemAllocationProp prop =
      granule_properties(device, traits_[static_cast<size_t>(device)].load());
  size_t value = 0;
  CUresult r =
      table_->cuMemGetAllocationGranularity(&value, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  *bytes = value;
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

Status Driver::choose_traits(int device) {
  CUdevice d = 0;
  int shareable = 0, rdma = 0;
  CUresult r = table_->cuDeviceGet(&d, device);
  if (r == CUDA_SUCCESS) {
    r = table_->cuDeviceGetAttribute(
        &shareable, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, d);
  }
  if (r == CUDA_SUCCESS) {
    r = table_->cuDeviceGetAttribute(
        &rdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, d);
    // Newer than VMM itself: a driver that does not know it has no such memory.
    if (r == CUDA_ERROR_INVALID_VALUE) {
      rdma = 0;
      r = CUDA_SUCCESS;
    }
  }
  if (r != CUDA_SUCCESS) return status(r);
  bool exports = shareable != 0 && table_->cuMemExportToShareableHandle != nullptr &&
                 table_->cuMemImportFromShareableHandle != nullptr;
  traits_[static_cast<size_t>(device)] =
      static_cast<uint8_t>((exports ? kShareable : 0) | (rdma != 0 ? kRdma : 0));
  return {};
}

MemoryTraits Driver::traits(int device) const {
  uint8_t bits = traits_[static_cast<size_t>(device)].load();
  return {(bits & kShareable) != 0, (bits & kRdma) != 0};
}

Status Driver::reserve(Bytes bytes, Address* base) {
  count(Call::kReserve);
  CUdeviceptr pointer = 0;
  CUresult r = table_->cuMemAddressReserve(&pointer, bytes, 0, 0, 0);
  *base = pointer;
  return status(r);
}

Status Driver::free_range(Address base, Bytes bytes) {
  count(Call::kFree);
  return status(table_->cuMemAddressFree(base, bytes));
}

Status Driver::create(int device, Handle* handle, Bytes bytes) {
  std::atomic<uint8_t>& traits = traits_[static_cast<size_t>(device)];
  for (;;) {
    count(Call::kCreate);
    uint8_t asked = traits.load();
    CUmemAllocationProp prop = granule_properties(device, asked);
    CUmemGenericAllocationHandle h = 0;
    Status s = status(table_->cuMemCreate(&h, bytes, &prop, 0));
    *handle = h;
    if (s.ok() || !s.not_supported() || asked == 0) return s;
    // The network's wish goes first, then the other processes'.
    traits = (asked & kRdma) != 0 ? asked & kShareable : 0;
  }
}

Status Driver::release(Handle handle) {
  count(Call::kRelease);
  return status(table_->cuMemRelease(handle));
}

Status Driver::map(Address at, Handle handle, Bytes bytes) {
  count(Call::kMap);
  return status(table_->cuMemMap(at, bytes, 0, handle, 0));
}

Status Driver::unmap(Address at, Bytes bytes) {
  count(Call::kUnmap);
  return status(table_->cuMemUnmap(at, bytes));
}

Status Driver::set_access(Address at, Bytes bytes, const std::vector<int>& devices) {
  count(Call::kAccess);
  std::vector<CUmemAccessDesc> grants(devices.size());
  for (size_t i = 0; i < devices.size(); ++i) {
    grants[i].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    grants[i].location.id = devices[i];
    grants[i].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  return status(table_->cuMemSetAccess(at, bytes, grants.data(), grants.size()));
}

Status Driver::memory_info(Bytes* free, Bytes* total) {
  size_t f = 0, t = 0;
  CUresult r = table_->cuMemGetInfo(&f, &t);
  *free = f;
  *total = t;
  return status(r);
}

Status Driver::create_event(int device, EventId* event) {
  DeviceScope scope(*this, device);
  if (!scope.status().ok()) return scope.status();
  CUevent e = nullptr;
  CUresult r = table_->cuEventCreate(&e, CU_EVENT_DISABLE_TIMING);
  *event = reinterpret_cast<EventId>(e);
  return status(r);
}

Status Driver::destroy_event(EventId event) {
  return status(table_->cuEventDestroy(event_of(event)));
}

Status Driver::record(int device, EventId event, StreamHandle stream) {
  DeviceScope scope(*this, device);
  if (!scope.status().ok()) return scope.status();
  count(Call::kRecord);
  return status(table_->cuEventRecord(event_of(event), stream_of(stream)));
}

Status Driver::query(EventId event) {
  RelaxedScope scope(*table_);
  return status(table_->cuEventQuery(event_of(event)));
}

Status Driver::wait_host(EventId event) {
  RelaxedScope scope(*table_);
  return status(table_->cuEventSynchronize(event_of(event)));
}

Status Driver::wait_stream(int device, StreamHandle stream, EventId event) {
  DeviceScope scope(*this, device);
  if (!scope.status().ok()) return scope.status();
  count(Call::kWait);
  return status(table_->cuStreamWaitEvent(stream_of(stream), event_of(event), 0));
}

Status Driver::is_capturing(int device, StreamHandle stream, bool* yes) {
  DeviceScope scope(*this, device);
  if (!scope.status().ok()) return scope.status();
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  CUresult r = table_->cuStreamIsCapturing(stream_of(stream), &capture);
  *yes = capture != CU_STREAM_CAPTURE_STATUS_NONE;
  return status(r);
}

void Driver::need(bool present, const char* name) const {
  if (present) return;
  throw Error(GLAKE_DRIVER_ABSENT, path_ + " lacks " + name + "; install a newer NVIDIA driver");
}

Status Driver::export_fd(Handle handle, int* fd) {
  need(table_->cuMemExportToShareableHandle != nullptr, "cuMemExportToShareableHandle");
  return status(table_->cuMemExportToShareableHandle(fd, handle,
                                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
}

Status Driver::import_fd(int fd, Handle* handle) {
  need(table_->cuMemImportFromShareableHandle != nullptr, "cuMemImportFromShareableHandle");
  CUmemGenericAllocationHandle h = 0;
  CUresult r =
      table_->cuMemImportFromShareableHandle(&h, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  *handle = h;
  return status(r);
}

Status Driver::allocate_legacy(Bytes bytes, Address* base) {
  need(table_->cuMemAlloc != nullptr && table_->cuMemFree != nullptr, "cuMemAlloc or cuMemFree");
  CUdeviceptr pointer = 0;
  CUresult r = table_->cuMemAlloc(&pointer, bytes);
  *base = pointer;
  return status(r);
}

Status Driver::free_legacy(Address base) { return status(table_->cuMemFree(base)); }

Status Driver::legacy_handle(Address base, LegacyHandle* handle) {
  static_assert(sizeof(LegacyHandle) == sizeof(CUipcMemHandle), "the driver's own size");
  need(table_->cuIpcGetMemHandle != nullptr, "cuIpcGetMemHandle");
  CUipcMemHandle h{};
  CUresult r = table_->cuIpcGetMemHandle(&h, base);
  std::memcpy(handle->data(), &h, sizeof h);
  return status(r);
}

Status Driver::open_legacy(const LegacyHandle& handle, Address* base) {
  need(table_->cuIpcOpenMemHandle != nullptr && table_->cuIpcCloseMemHandle != nullptr,
       "cuIpcOpenMemHandle or cuIpcCloseMemHandle");
  CUipcMemHandle h{};
  std::memcpy(&h, handle.data(), sizeof h);
  CUdeviceptr pointer = 0;
  CUresult r = table_->cuIpcOpenMemHandle(&pointer, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  *base = pointer;
  return status(r);
}

Status Driver::close_legacy(Address base) { return status(table_->cuIpcCloseMemHandle(base)); }

Status Driver::allocate_host(Bytes bytes, void** base) {
  need(table_->cuMemHostAlloc != nullptr && table_->cuMemFreeHost != nullptr,
       "cuMemHostAlloc or cuMemFreeHost");
  return status(table_->cuMemHostAlloc(base, bytes, CU_MEMHOSTALLOC_PORTABLE));
}

Status Driver::free_host(void* base) { return status(table_->cuMemFreeHost(base)); }

Status Driver::stream_number(int device, StreamHandle stream, uint64_t* number) {
  *number = 0;
  if (table_->cuStreamGetId == nullptr) return {};
  DeviceScope scope(*this, device);
  if (!scope.status().ok()) return scope.status();
  unsigned long long id = 0;
  CUresult r = table_->cuStreamGetId(stream_of(stream), &id);
  *number = id;
  return status(r);
}

uint64_t Driver::memory_calls() const {
  return calls(Call::kReserve) + calls(Call::kCreate) + calls(Call::kMap) + calls(Call::kAccess) +
         calls(Call::kUnmap) + calls(Call::kRelease);
}

}  // namespace glake
