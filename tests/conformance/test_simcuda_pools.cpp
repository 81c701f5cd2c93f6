// Tests stream-ordered memory: the order in which pools reuse it, and what they hold and give back.
#include "sim_harness.h"

namespace {

constexpr size_t kMiB = 1 << 20;

CUmemoryPool default_pool(int device = 0) {
  CUmemoryPool pool = nullptr;
  OK(cuDeviceGetDefaultMemPool(&pool, device));
  return pool;
}

CUmemoryPool new_pool(int device = 0) {
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  props.location.id = device;
  CUmemoryPool pool = nullptr;
  OK(cuMemPoolCreate(&pool, &props));
  return pool;
}

cuuint64_t value_of(CUmemoryPool pool, CUmemPool_attribute which) {
  cuuint64_t value = 0;
  OK(cuMemPoolGetAttribute(pool, which, &value));
  return value;
}

void keep_all(CUmemoryPool pool) {
  cuuint64_t all = UINT64_MAX;
  OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
}

CUdeviceptr allocate(size_t bytes, CUstream stream) {
  CUdeviceptr at = 0;
  OK(cuMemAllocAsync(&at, bytes, stream));
  return at;
}

template <class F>
F pool_call(const char* name) {
  void* function = nullptr;
  OK(cuGetProcAddress(name, &function, 13000, 0, nullptr));
  return reinterpret_cast<F>(function);
}

// The calls of CUDA 13 that name a location, not a device.
void check_pools_by_location() {
  const Sim sim({{"devices", "2"}});
  using Get = CUresult (*)(CUmemoryPool*, CUmemLocation*, CUmemAllocationType);
  using Set = CUresult (*)(CUmemLocation*, CUmemAllocationType, CUmemoryPool);
  const auto get_default = pool_call<Get>("cuMemGetDefaultMemPool");
  const auto get = pool_call<Get>("cuMemGetMemPool");
  const auto set = pool_call<Set>("cuMemSetMemPool");
  const auto pinned = CU_MEM_ALLOCATION_TYPE_PINNED;
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = 1;
  CUmemoryPool pool = nullptr;
  OK(get_default(&pool, &location, pinned));
  TRUE(pool == default_pool(1));
  const CUmemoryPool mine = new_pool(1);
  GIVES(CUDA_ERROR_INVALID_VALUE, set(&location, pinned, new_pool(0)));
  OK(set(&location, pinned, mine));
  OK(get(&pool, &location, pinned));
  TRUE(pool == mine);
  OK(cuDeviceGetMemPool(&pool, 1));
  TRUE(pool == mine);
  GIVES(CUDA_ERROR_NOT_SUPPORTED, get(&pool, &location, static_cast<CUmemAllocationType>(2)));
  GIVES(CUDA_ERROR_INVALID_VALUE, get(&pool, &location, CU_MEM_ALLOCATION_TYPE_INVALID));
  location.id = 2;
  GIVES(CUDA_ERROR_INVALID_VALUE, get(&pool, &location, pinned));
  location.type = static_cast<CUmemLocationType>(3);  // HOST_NUMA
  GIVES(CUDA_ERROR_NOT_SUPPORTED, get_default(&pool, &location, pinned));
  for (const int type : {0, 4, 99}) {  // NONE, HOST_NUMA_CURRENT
    location.type = static_cast<CUmemLocationType>(type);
    GIVES(CUDA_ERROR_INVALID_VALUE, get(&pool, &location, pinned));
  }
  GIVES(CUDA_ERROR_INVALID_VALUE, get(&pool, nullptr, pinned));
}

void check_memory_is_memory() {
  const Sim sim({});
  CUstream stream = new_stream();
  const CUdeviceptr at = allocate(5000, stream);
  OK(cuMemsetD32Async(at, 7, 1250, stream));
  unsigned word = 0;
  OK(cuStreamSynchronize(stream));
  OK(cuMemcpyDtoH(&word, at + 4996, 4));
  TRUE(word == 7);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  OK(cuMemGetAddressRange(&base, &bytes, at + 100));
  TRUE(base == at && bytes == 5120);
  CUipcMemHandle handle;
  GIVES(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&handle, at));
  OK(cuMemFreeAsync(at, stream));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(at, stream));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemGetAddressRange(&base, &bytes, at));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAllocAsync(&base, 0, stream));
}

// The stream of the free reuses memory at once. Another stream does so only once the free is known
// to be done.
void check_reuse_is_ordered() {
  const Sim sim({});
  keep_all(default_pool());
  CUstream stream = new_stream(), other = new_stream();
  const CUdeviceptr at = allocate(32 * kMiB, stream);
  OK(cuMemsetD8Async(at, 1, kMiB, stream));
  OK(cuMemFreeAsync(at, stream));
  TRUE(allocate(32 * kMiB, stream) == at);
  OK(cuMemFreeAsync(at, stream));
  const CUdeviceptr elsewhere = allocate(32 * kMiB, other);
  TRUE(elsewhere != at);
  OK(cuStreamSynchronize(stream));
  TRUE(allocate(32 * kMiB, other) == at);
  // In the stream of its free, a block is reused after the work before the free. What is written
  // after the reuse stays.
  OK(cuMemcpyDtoDAsync(elsewhere, at, 4, other));
  OK(cuMemsetD32Async(at, 3, 1, other));
  OK(cuMemFreeAsync(at, other));
  const CUdeviceptr again = allocate(32 * kMiB, other);
  OK(cuMemsetD32Async(again, 4, 1, other));
  OK(cuStreamSynchronize(other));
  unsigned word = 0;
  OK(cuMemcpyDtoH(&word, again, 4));
  TRUE(again == at && word == 4 && violations() == "[]");
}

// If the pool allows it, an allocation waits for another stream's free before it fails.
void check_internal_dependencies() {
  for (int allowed : {1, 0}) {
    const Sim sim({{"memory", "64MiB"}});
    CUmemoryPool pool = default_pool();
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, &allowed));
    CUstream stream = new_stream(), other = new_stream();
    const CUdeviceptr at = allocate(64 * kMiB, stream);
    OK(cuMemsetD32Async(at, 3, 1, stream));
    OK(cuMemFreeAsync(at, stream));
    CUdeviceptr next = 0;
    const CUresult result = cuMemAllocAsync(&next, 64 * kMiB, other);
    TRUE(result == (allowed == 1 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY));
    if (allowed == 0) continue;
    OK(cuMemsetD32Async(next, 4, 1, other));
    OK(cuStreamSynchronize(other));
    TRUE(next == at && *reinterpret_cast<unsigned*>(at) == 4);
    OK(cuStreamSynchronize(stream));
    TRUE(*reinterpret_cast<unsigned*>(at) == 4);
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocAsync(&next, kMiB, other));
  }
}

// "The allocator will try to release memory back to the OS on the next call to stream, event or
// context synchronize", beyond the threshold, which is 0.
void check_what_is_given_back() {
  const Sim sim({});
  CUmemoryPool pool = default_pool();
  CUstream stream = new_stream();
  const CUdeviceptr at = allocate(40 * kMiB, stream), small = allocate(512, stream);
  TRUE(value_of(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 64 * kMiB);
  TRUE(value_of(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 40 * kMiB + 512);
  OK(cuMemFreeAsync(at, stream));
  OK(cuMemFreeAsync(small, stream));
  TRUE(ledger_of("used_bytes") == 64 * static_cast<long>(kMiB));
  OK(cuMemPoolTrimTo(pool, 0));  // the free is not done
  TRUE(ledger_of("used_bytes") == 64 * static_cast<long>(kMiB));
  OK(cuStreamSynchronize(stream));
  TRUE(ledger_of("used_bytes") == 0 && ledger_of("reservations") == 0);
  TRUE(value_of(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0);
  TRUE(value_of(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) == 64 * kMiB);
  cuuint64_t none = 0, one = 1;
  OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &none));
  TRUE(value_of(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) == 0);
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &one));
  keep_all(pool);
  const CUdeviceptr kept = allocate(kMiB, stream);
  OK(cuMemFree(kept));  // waits, then it is free for any stream
  OK(cuCtxSynchronize());
  TRUE(ledger_of("used_bytes") == 32 * static_cast<long>(kMiB));
  OK(cuMemPoolTrimTo(pool, 0));
  TRUE(ledger_of("used_bytes") == 0);
}

// A use of memory that went back is an error of the stream's work.
void check_use_after_release() {
  const Sim sim({});
  CUstream stream = new_stream();
  const CUdeviceptr at = allocate(kMiB, stream);
  OK(cuMemFreeAsync(at, stream));
  OK(cuStreamSynchronize(stream));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD8Async(at, 1, 16, stream));  // not reserved
}

void check_pools_of_ones_own() {
  const Sim sim({{"preset", "dgx1v"}, {"memory", "128MiB"}});
  CUmemoryPool pool = new_pool(), current = nullptr;
  CUstream stream = new_stream();
  OK(cuDeviceSetMemPool(0, pool));
  const CUdeviceptr at = allocate(kMiB, stream);
  TRUE(value_of(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == kMiB);
  CUmemoryPool told = nullptr;
  OK(cuPointerGetAttribute(&told, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at));
  TRUE(told == pool);
  CUdeviceptr plain = 0;
  OK(cuMemAlloc(&plain, kMiB));
  OK(cuPointerGetAttribute(&told, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, plain));
  TRUE(told == nullptr);
  OK(cuMemFree(plain));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuDeviceSetMemPool(1, pool));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolDestroy(default_pool()));
  // Only its own device reaches it until others are granted access.
  CUmemAccess_flags flags{};
  CUmemLocation one{};
  one.type = CU_MEM_LOCATION_TYPE_DEVICE;
  one.id = 1;
  OK(cuMemPoolGetAccess(&flags, pool, &one));
  TRUE(flags == CU_MEM_ACCESS_FLAGS_PROT_NONE);
  CUmemAccessDesc desc{one, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  OK(cuMemPoolSetAccess(pool, &desc, 1));
  OK(cuMemPoolGetAccess(&flags, pool, &one));
  TRUE(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  OK(cuMemPoolDestroy(pool));  // lives on until its memory is free
  OK(cuDeviceGetMemPool(&current, 0));
  TRUE(current == default_pool());
  GIVES(CUDA_ERROR_INVALID_HANDLE, cuMemPoolTrimTo(pool, 0));
  OK(cuMemsetD8Async(at, 1, kMiB, stream));
  OK(cuMemFreeAsync(at, stream));
  OK(cuStreamSynchronize(stream));
  TRUE(ledger_of("used_bytes") == 0);
  TRUE(violations().find("not a live pool") != std::string::npos);  // of cuMemPoolTrimTo
}

void check_graph_memory() {
  const Sim sim({{"memory", "128MiB"}});
  for (const CUgraphMem_attribute which :
       {CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH}) {
    cuuint64_t bytes = 1;
    OK(cuDeviceGetGraphMemAttribute(0, which, &bytes));
    TRUE(bytes == 0);
  }
  cuuint64_t zero = 0;
  OK(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &zero));
  GIVES(CUDA_ERROR_INVALID_VALUE,
        cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &zero));
  GIVES(CUDA_ERROR_INVALID_VALUE,
        cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, nullptr));
  OK(cuDeviceGraphMemTrim(0));
  GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceGraphMemTrim(99));
}

void check_ungranted_access() {
  const Sim sim({{"preset", "dgx1v"}, {"memory", "128MiB"}});
  CUstream stream = new_stream();
  const CUdeviceptr at = allocate(kMiB, stream);
  OK(cuStreamSynchronize(stream));
  CUcontext other = nullptr;
  OK(cuDevicePrimaryCtxRetain(&other, 1));
  OK(cuCtxSetCurrent(other));
  CUstream theirs = new_stream();
  OK(cuMemsetD8Async(at, 1, 16, theirs));
  GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(theirs));
  TRUE(violations().find("access without grant") != std::string::npos);
}

// Stream-ordered allocation is refused during a capture. The caller gets an error, and the capture
// goes on.
void check_captures() {
  const Sim sim({});
  CUstream stream = new_stream();
  const CUdeviceptr at = allocate(kMiB, stream);
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CUdeviceptr more = 0;
  GIVES(CUDA_ERROR_NOT_SUPPORTED, cuMemAllocAsync(&more, kMiB, stream));
  GIVES(CUDA_ERROR_NOT_SUPPORTED, cuMemFreeAsync(at, stream));
  CUgraph graph = nullptr;
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuMemFreeAsync(at, stream));
}

// Phantom replays complete by ticks, and pools work there too.
void check_ticks() {
  const Sim sim({{"phantom", "1"}, {"complete_after", "-1"}});
  CUstream stream = new_stream(), other = new_stream();
  keep_all(default_pool());
  const CUdeviceptr at = allocate(32 * kMiB, stream);
  OK(cuMemFreeAsync(at, stream));
  TRUE(allocate(32 * kMiB, other) != at);
  OK(cuStreamSynchronize(stream));
  TRUE(allocate(32 * kMiB, other) == at);
}

}  // namespace

int main(int argc, char** argv) {
  return run_checks(argc, argv,
                    {
                        {"memory is memory", check_memory_is_memory},
                        {"pools by location", check_pools_by_location},
                        {"reuse is ordered", check_reuse_is_ordered},
                        {"internal dependencies", check_internal_dependencies},
                        {"what is given back", check_what_is_given_back},
                        {"use after release", check_use_after_release},
                        {"pools of one's own", check_pools_of_ones_own},
                        {"memory of graphs", check_graph_memory},
                        {"access without a grant", check_ungranted_access},
                        {"captures", check_captures},
                        {"ticks", check_ticks},
                    });
}
