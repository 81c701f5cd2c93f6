// A CUDA driver for one test (tests/core/order_test.cpp), which shares no code with simcuda. It has
// the functions that glake's allocator calls. Work never runs: the driver says when it is finished,
// and checks whether one piece of work is ordered after another.
#include "order_driver.h"

#include <cuda.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <random>

#include "clocks.h"
#include "memory.h"

namespace {

using order::Memory;
using order::Streams;
using order::VectorClock;

struct Event {
  VectorClock at;  // empty: not recorded yet, which counts as happened, as in CUDA
};

struct State {
  explicit State(uint64_t granules, unsigned late, uint64_t seed)
      : memory(streams, granules), lag(late), engine(seed) {}
  Streams streams;
  Memory memory;
  std::map<CUevent, std::unique_ptr<Event>> events;
  uintptr_t next_stream = 1;
  unsigned lag;
  std::mt19937_64 engine;
  bool waits_broken = false, queries_broken = false;
};

std::mutex mutex;
std::unique_ptr<State> state = std::make_unique<State>(64, 4, 1);
thread_local CUcontext current = nullptr;
const auto kContext = reinterpret_cast<CUcontext>(uintptr_t{0x40});

using Lock = std::lock_guard<std::mutex>;

// A stream's number, from its handle.
size_t number(uintptr_t stream) { return stream >> 8; }
size_t number(CUstream stream) { return number(reinterpret_cast<uintptr_t>(stream)); }

CUresult valid(bool ok) { return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }

Event* find(CUevent event) {
  const auto found = state->events.find(event);
  if (found != state->events.end()) return found->second.get();
  state->memory.note("an event that is none");
  return nullptr;
}

}  // namespace

extern "C" {

#define API __attribute__((visibility("default")))

API CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
API CUresult cuDriverGetVersion(int* version) {
  *version = 12080;
  return CUDA_SUCCESS;
}
API CUresult cuGetErrorName(CUresult code, const char** name) {
  *name = code == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "refused";
  return CUDA_SUCCESS;
}
API CUresult cuGetErrorString(CUresult code, const char** text) {
  return cuGetErrorName(code, text);
}

API CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return valid(ordinal == 0);
}
API CUresult cuDeviceGetCount(int* count) {
  *count = 1;
  return CUDA_SUCCESS;
}
API CUresult cuDeviceGetName(char* name, int room, CUdevice) {
  std::strncpy(name, "order", static_cast<size_t>(room));
  return CUDA_SUCCESS;
}
API CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  *value = attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED ? 1 : 0;
  return CUDA_SUCCESS;
}
API CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice) {
  const Lock lock(mutex);
  *bytes = state->memory.total_bytes();
  return CUDA_SUCCESS;
}
API CUresult cuDeviceCanAccessPeer(int* can, CUdevice, CUdevice) {
  *can = 0;
  return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  *context = kContext;
  return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_SUCCESS; }
API CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = current;
  return CUDA_SUCCESS;
}
API CUresult cuCtxPushCurrent_v2(CUcontext context) {
  current = context;
  return CUDA_SUCCESS;
}
API CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  *context = current;
  current = nullptr;
  return CUDA_SUCCESS;
}
API CUresult cuCtxSynchronize() {
  const Lock lock(mutex);
  state->streams.host_waits_for_all();
  return CUDA_SUCCESS;
}
API CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode*) { return CUDA_SUCCESS; }

API CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*,
                                           CUmemAllocationGranularity_flags) {
  *bytes = order::kGranule;
  return CUDA_SUCCESS;
}
API CUresult cuMemAddressReserve(CUdeviceptr* base, size_t bytes, size_t, CUdeviceptr,
                                 unsigned long long) {
  const Lock lock(mutex);
  *base = state->memory.reserve(bytes);
  return valid(*base != 0);
}
API CUresult cuMemAddressFree(CUdeviceptr base, size_t bytes) {
  const Lock lock(mutex);
  return valid(state->memory.free_range(base, bytes));
}
API CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                         const CUmemAllocationProp*, unsigned long long) {
  const Lock lock(mutex);
  *handle = state->memory.create(bytes);
  return *handle != 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  const Lock lock(mutex);
  return valid(state->memory.release(handle));
}
API CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset,
                      CUmemGenericAllocationHandle handle, unsigned long long) {
  const Lock lock(mutex);
  return valid(state->memory.map(at, bytes, offset, handle));
}
API CUresult cuMemSetAccess(CUdeviceptr at, size_t bytes, const CUmemAccessDesc*, size_t) {
  const Lock lock(mutex);
  return valid(state->memory.set_access(at, bytes));
}
API CUresult cuMemUnmap(CUdeviceptr at, size_t bytes) {
  const Lock lock(mutex);
  return valid(state->memory.unmap(at, bytes));
}
API CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  const Lock lock(mutex);
  *free = state->memory.free_bytes();
  *total = state->memory.total_bytes();
  return CUDA_SUCCESS;
}
// Debug modes write patterns, which is work on a block. No test here turns them on.
API CUresult cuMemsetD8Async(CUdeviceptr, unsigned char, size_t, CUstream) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
API CUresult cuMemcpyDtoHAsync_v2(void*, CUdeviceptr, size_t, CUstream) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

API CUresult cuEventCreate(CUevent* event, unsigned) {
  const Lock lock(mutex);
  auto made = std::make_unique<Event>();
  *event = reinterpret_cast<CUevent>(made.get());
  state->events[*event] = std::move(made);
  return CUDA_SUCCESS;
}
API CUresult cuEventDestroy_v2(CUevent event) {
  const Lock lock(mutex);
  return valid(state->events.erase(event) == 1);
}
API CUresult cuEventRecord(CUevent event, CUstream stream) {
  const Lock lock(mutex);
  Event* e = find(event);
  if (e == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  state->streams.enqueue(number(stream));
  e->at = state->streams.now(number(stream));
  return CUDA_SUCCESS;
}
API CUresult cuEventQuery(CUevent event) {
  const Lock lock(mutex);
  Event* e = find(event);
  if (e == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (state->queries_broken) return CUDA_SUCCESS;
  if (!state->streams.finished(e->at) && state->engine() % state->lag != 0) {
    return CUDA_ERROR_NOT_READY;
  }
  state->streams.host_learns(e->at);
  return CUDA_SUCCESS;
}
API CUresult cuEventSynchronize(CUevent event) {
  const Lock lock(mutex);
  Event* e = find(event);
  if (e == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  state->streams.host_learns(e->at);
  return CUDA_SUCCESS;
}
API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
  const Lock lock(mutex);
  Event* e = find(event);
  if (e == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!state->waits_broken) state->streams.wait(number(stream), e->at);
  return CUDA_SUCCESS;
}
API CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus* status) {
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

const OrderDriver* order_driver() {
  static const OrderDriver calls = {
      [](uint64_t granules, unsigned lag, uint64_t seed) {
        const Lock lock(mutex);
        state = std::make_unique<State>(granules, lag, seed);
      },
      [] {
        const Lock lock(mutex);
        return state->next_stream++ << 8;
      },
      [](uintptr_t stream, uintptr_t after) {
        const Lock lock(mutex);
        state->streams.enqueue(number(after));
        state->streams.wait(number(stream), state->streams.now(number(after)));
      },
      [](uintptr_t stream) {
        const Lock lock(mutex);
        state->streams.host_learns(state->streams.now(number(stream)));
      },
      [](uint64_t block, uint64_t ptr, uint64_t bytes) {
        const Lock lock(mutex);
        state->memory.got(block, ptr, bytes);
      },
      [](uint64_t block, uint64_t ptr, uint64_t bytes, uintptr_t stream) {
        const Lock lock(mutex);
        state->memory.use(block, ptr, bytes, number(stream));
      },
      [](uint64_t block) {
        const Lock lock(mutex);
        state->memory.gone(block);
      },
      [](int broken) { state->waits_broken = broken != 0; },
      [](int broken) { state->queries_broken = broken != 0; },
      [](char* text, size_t room) -> uint64_t {
        const Lock lock(mutex);
        std::strncpy(text, state->memory.text().c_str(), room);
        return state->memory.found();
      },
      []() -> uint64_t {
        const Lock lock(mutex);
        return state->memory.left() + state->events.size();
      },
      []() -> uint64_t {
        const Lock lock(mutex);
        return state->memory.crossings();
      },
  };
  return &calls;
}
}
