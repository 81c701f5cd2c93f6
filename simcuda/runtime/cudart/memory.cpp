// Device memory, pinned host memory, facts about an address, and memory of other processes.
#include <atomic>
#include <cstring>
#include <mutex>
#include <unordered_set>

#include "cudart.h"
#include "event.h"

using namespace cudart;  // NOLINT: this file is nothing but C face

namespace {

CUdeviceptr* as_address(void** pointer) { return reinterpret_cast<CUdeviceptr*>(pointer); }

// Events that another process has as well: see cudaIpcGetEventHandle.
struct Shared {
  std::mutex mutex;
  std::unordered_set<CUevent> events;
};
Shared& shared() {
  static auto* kept = new Shared;
  return *kept;
}
std::atomic<bool> any_shared{false};

void share(CUevent event) {
  std::lock_guard<std::mutex> lock(shared().mutex);
  shared().events.insert(event);
  any_shared.store(true, std::memory_order_release);
}

}  // namespace

namespace cudart {

bool is_shared(CUevent event) {
  if (!any_shared.load(std::memory_order_acquire)) return false;
  std::lock_guard<std::mutex> lock(shared().mutex);
  return shared().events.count(event) != 0;
}

void forget_shared(CUevent event) {
  if (!any_shared.load(std::memory_order_acquire)) return;
  std::lock_guard<std::mutex> lock(shared().mutex);
  shared().events.erase(event);
}

}  // namespace cudart

// For 0 bytes the pointer is null, which cudaFree takes.
CUDART(cudaMalloc)(void** pointer, size_t bytes) {
  CUDART_READY();
  if (pointer == nullptr) return told(kInvalidValue);
  *pointer = nullptr;
  return bytes == 0 ? kSuccess : told(driver().cuMemAlloc(as_address(pointer), bytes));
}

CUDART(cudaFree)(void* pointer) {
  CUDART_READY();
  return pointer == nullptr ? kSuccess : told(driver().cuMemFree(address(pointer)));
}

CUDART(cudaMemGetInfo)(size_t* free, size_t* total) {
  CUDART_READY();
  return told(driver().cuMemGetInfo(free, total));
}

CUDART(cudaMallocManaged)(void** pointer, size_t bytes, unsigned flags) {
  CUDART_READY();
  return OPTIONAL(cuMemAllocManaged, as_address(pointer), bytes, flags);
}

CUDART(cudaHostAlloc)(void** pointer, size_t bytes, unsigned flags) {
  CUDART_READY();
  return told(driver().cuMemHostAlloc(pointer, bytes, flags));
}

CUDART(cudaMallocHost)(void** pointer, size_t bytes) {
  CUDART_READY();
  return told(driver().cuMemAllocHost(pointer, bytes));
}

CUDART(cudaFreeHost)(void* pointer) {
  CUDART_READY();
  return pointer == nullptr ? kSuccess : told(driver().cuMemFreeHost(pointer));
}

CUDART(cudaHostRegister)(void* pointer, size_t bytes, unsigned flags) {
  CUDART_READY();
  return told(driver().cuMemHostRegister(pointer, bytes, flags));
}

CUDART(cudaHostUnregister)(void* pointer) {
  CUDART_READY();
  return told(driver().cuMemHostUnregister(pointer));
}

CUDART(cudaHostGetDevicePointer)(void** device, void* host, unsigned flags) {
  CUDART_READY();
  return told(driver().cuMemHostGetDevicePointer(as_address(device), host, flags));
}

CUDART(cudaHostGetFlags)(unsigned* flags, void* pointer) {
  CUDART_READY();
  return told(driver().cuMemHostGetFlags(flags, pointer));
}

// "In CUDA 11.0 forward passing host pointer will return cudaMemoryTypeUnregistered ... and call
// will return cudaSuccess": cudaPointerGetAttributes.
CUDART(cudaPointerGetAttributes)(PointerAttributes* result, const void* pointer) {
  CUDART_READY();
  if (result == nullptr) return told(kInvalidValue);
  constexpr int kNoDevice = -2;  // cudaInvalidDeviceId
  unsigned type = 0, managed = 0;
  int device = kNoDevice;
  CUdeviceptr there = 0;
  void* host = nullptr;
  CUpointer_attribute which[] = {
      CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
      CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_HOST_POINTER,
      CU_POINTER_ATTRIBUTE_IS_MANAGED};
  void* data[] = {&type, &device, &there, &host, &managed};
  const CUresult found = driver().cuPointerGetAttributes(5, which, data, address(pointer));
  if (found != CUDA_SUCCESS) return told(found);
  std::memset(result, 0, sizeof *result);
  result->type = managed != 0                   ? kManaged
                 : type == CU_MEMORYTYPE_HOST   ? kHost
                 : type == CU_MEMORYTYPE_DEVICE ? kDevice
                                                : kUnregistered;
  result->device = device;
  result->device_pointer = reinterpret_cast<void*>(there);
  const bool known = result->type != kUnregistered;
  result->host_pointer = known ? host : reinterpret_cast<void*>(address(pointer));
  return kSuccess;
}

CUDART(cudaIpcGetMemHandle)(IpcHandle* handle, void* pointer) {
  CUDART_READY();
  return told(
      driver().cuIpcGetMemHandle(reinterpret_cast<CUipcMemHandle*>(handle), address(pointer)));
}

CUDART(cudaIpcOpenMemHandle)(void** pointer, IpcHandle handle, unsigned flags) {
  CUDART_READY();
  CUipcMemHandle theirs;
  static_assert(sizeof theirs == sizeof handle);
  std::memcpy(&theirs, &handle, sizeof theirs);
  return told(driver().cuIpcOpenMemHandle(as_address(pointer), theirs, flags));
}

CUDART(cudaIpcCloseMemHandle)(void* pointer) {
  CUDART_READY();
  return told(driver().cuIpcCloseMemHandle(address(pointer)));
}

// simcuda has no events across processes. This waits for the work that was recorded so far, and a
// record of such an event, in either process, waits for its work (cudaEventRecord). So all that one
// process has recorded is done, and the other process's event of its own, which is never pending
// because of that work, says so.
CUDART(cudaIpcGetEventHandle)(IpcHandle* handle, CUevent event) {
  CUDART_READY();
  if (handle == nullptr) return told(kInvalidValue);
  const CUresult waited = driver().cuEventSynchronize(event);
  if (waited != CUDA_SUCCESS) return told(waited);
  share(event);
  std::memset(handle, 0, sizeof *handle);
  std::memcpy(handle->bytes, "glake event", 11);
  return kSuccess;
}

CUDART(cudaIpcOpenEventHandle)(CUevent* event, IpcHandle handle) {
  CUDART_READY();
  if (std::memcmp(handle.bytes, "glake event", 11) != 0) return told(kInvalidValue);
  // Not recorded, so it counts as complete.
  const CUresult made = driver().cuEventCreate(event, CU_EVENT_DISABLE_TIMING);
  if (made == CUDA_SUCCESS) share(*event);
  return told(made);
}
