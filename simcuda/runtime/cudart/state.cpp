// The calling thread's device, contexts and errors.
#include <array>
#include <atomic>
#include <mutex>

#include "cudart.h"
#include "simcuda/driver/runtime.h"

namespace cudart {
namespace {

constexpr int kMostDevices = 64;

thread_local Error last_error = kSuccess;
thread_local int chosen = -1;  // set by cudaSetDevice

// An error that left the device in an undefined state. "Any further CUDA work will return the same
// error. To continue using CUDA, the process must be terminated and relaunched": cudaError_t, about
// these codes. cudaGetLastError cannot reset it.
std::atomic<Error> lasting{kSuccess};

bool is_lasting(Error error) {
  return error == kIllegalAddress || error == 702 || error == 710 || (error >= 714 && error <= 719);
}

// The primary contexts that this library holds. It never releases them. They end with the process.
struct Primaries {
  std::mutex mutex;
  std::atomic<int> devices{-1};
  std::array<CUcontext, kMostDevices> contexts{};
};

Primaries& primaries() {
  static auto* kept = new Primaries;
  return *kept;
}

// Starts the driver once, however many threads come at the same time. Old contexts are forgotten
// before the driver runs. Later, this might forget a context that another thread has just made.
Error start_driver() {
  static std::mutex starting;
  std::lock_guard<std::mutex> once(starting);
  if (simcuda_current_device() != SIMCUDA_NOT_RUNNING) return kSuccess;
  {
    std::lock_guard<std::mutex> lock(primaries().mutex);
    primaries().contexts.fill(nullptr);  // a driver that was reset has none of these contexts
    primaries().devices = -1;
    lasting = kSuccess;
  }
  return driver().cuInit(0);
}

}  // namespace

Error told(Error error) {
  if (error == kSuccess) return error;
  last_error = error;
  if (is_lasting(error)) lasting.store(error, std::memory_order_relaxed);
  return error;
}

Error start() {
  return simcuda_current_device() == SIMCUDA_NOT_RUNNING ? start_driver() : kSuccess;
}

Error ready() {
  const Error broken = lasting.load(std::memory_order_relaxed);
  if (broken != kSuccess) return broken;
  int device = simcuda_current_device();
  if (device >= 0) return kSuccess;
  if (device == SIMCUDA_NOT_RUNNING) {
    const Error started = start_driver();
    if (started != kSuccess) return started;
  }
  CUcontext context = nullptr;
  const CUresult result = primary_context(chosen < 0 ? 0 : chosen, &context);
  return result != CUDA_SUCCESS ? result : driver().cuCtxSetCurrent(context);
}

int device_count() {
  if (start() != kSuccess) return 0;
  Primaries& held = primaries();
  if (held.devices < 0) {  // other code started the driver
    int devices = 0;
    if (driver().cuDeviceGetCount(&devices) == CUDA_SUCCESS) held.devices = devices;
  }
  return held.devices;
}

static int or_chosen(int device) { return device >= 0 ? device : chosen < 0 ? 0 : chosen; }

int current_device() { return or_chosen(simcuda_current_device()); }

bool is_device(int device) { return device >= 0 && device < device_count(); }

CUresult primary_context(int device, CUcontext* context) {
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  Primaries& held = primaries();
  std::lock_guard<std::mutex> lock(held.mutex);
  CUcontext& mine = held.contexts[static_cast<size_t>(device)];
  if (mine == nullptr) {
    const CUresult result = driver().cuDevicePrimaryCtxRetain(&mine, device);
    if (result != CUDA_SUCCESS) return result;
  }
  *context = mine;
  return CUDA_SUCCESS;
}

void* driver_function(const char* name) {
  constexpr int kNewest = 13000;
  void* function = nullptr;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  driver().cuGetProcAddress(name, &function, kNewest, 0, &status);
  return function;
}

}  // namespace cudart

using namespace cudart;  // NOLINT: what follows is the C face

// "Returns the last error that has been produced by any of the runtime calls in the same instance
// of the CUDA Runtime library in the host thread and resets it". A lasting error is not reset.
CUDART(cudaGetLastError)() {
  const Error broken = lasting.load(std::memory_order_relaxed);
  const Error error = broken != kSuccess ? broken : last_error;
  last_error = kSuccess;
  return error;
}

CUDART(cudaPeekAtLastError)() {
  const Error broken = lasting.load(std::memory_order_relaxed);
  return broken != kSuccess ? broken : last_error;
}

CUDART(cudaGetDevice)(int* device) {
  if (device == nullptr) return told(kInvalidValue);
  int current = simcuda_current_device();
  if (current == SIMCUDA_NOT_RUNNING) {
    const Error started = start_driver();
    if (started != kSuccess) return told(started);
    current = simcuda_current_device();
  }
  *device = or_chosen(current);
  return kSuccess;
}

// "This function will also immediately initialize the runtime state on the primary context, and the
// context will be current on device immediately": cudaSetDevice, since CUDA 12.
CUDART(cudaSetDevice)(int device) {
  const Error started = start();
  if (started != kSuccess) return told(started);
  if (!is_device(device)) return told(kInvalidDevice);
  chosen = device;
  if (simcuda_current_device() == device) return kSuccess;
  CUcontext context = nullptr;
  const CUresult result = primary_context(device, &context);
  return told(result != CUDA_SUCCESS ? result : driver().cuCtxSetCurrent(context));
}
