// Checks that the tests test something. It lists each virtual function of the two allocators, with
// the test that must fail if the function does nothing. ADAPTER_TEST_EMPTY=<class>.<function>
// empties one.
#include "emptied.h"

#include <ATen/core/CachingHostAllocator.h>

#include "harness.h"

namespace testing {

namespace {

using Device = c10::cuda::CUDACachingAllocator::CUDAAllocator;
using Host = at::HostAllocator;

struct Function {
  const char *name, *test;
  bool host;
  size_t slot;
  void* nothing;
};

// An emptied member function. Its first argument is `this`, and it returns a default value.
template <typename R, typename Class, typename... A>
R nothing(Class*, A...) {
  if constexpr (!std::is_void_v<R>) return R{};
}

// A pointer to a virtual function holds the function's offset in the table, plus one.
template <typename Method>
size_t slot_of(Method method) {
  uintptr_t words[2];
  static_assert(sizeof method == sizeof words);
  std::memcpy(words, &method, sizeof words);
  CHECK_EQ(words[0] % sizeof(void*), size_t{1});
  return words[0] / sizeof(void*);
}

template <typename R, typename Class, typename... A>
Function function(const char* name, const char* test, bool host, R (Class::*method)(A...)) {
  return {name, test, host, slot_of(method), reinterpret_cast<void*>(&nothing<R, Class, A...>)};
}
template <typename R, typename Class, typename... A>
Function function(const char* name, const char* test, bool host, R (Class::*method)(A...) const) {
  return {name, test, host, slot_of(method), reinterpret_cast<void*>(&nothing<R, Class, A...>)};
}

#define DEVICE(name, test) function("device." #name, #test, false, &Device::name)
#define DEVICE_AS(type, name, test) \
  function("device." #name "." #test, #test, false, static_cast<type>(&Device::name))
#define HOST(name, test) function("host." #name, #test, true, &Host::name)

const std::vector<Function>& functions() {
  using OnStream = void (Device::*)(const DataPtr&, CUDAStream);
  using OnAnyStream = void (Device::*)(const DataPtr&, c10::Stream);
  static const std::vector<Function> all = {
      DEVICE(allocate, allocate),
      DEVICE(raw_deleter, raw_deleter),
      DEVICE(copy_data, copy_data),
      DEVICE(raw_alloc, raw_alloc),
      DEVICE(raw_alloc_with_stream, raw_alloc_with_stream),
      DEVICE(raw_delete, raw_delete),
      DEVICE(allocateWithAddress, allocateWithAddress),
      DEVICE_AS(OnStream, recordStream, recordStream),
      DEVICE_AS(OnAnyStream, recordStream, recordStream_of_DeviceAllocator),
      DEVICE(getBaseAllocation, getBaseAllocation),
      DEVICE(memcpyAsync, memcpyAsync),
      DEVICE(init, init),
      DEVICE(initialized, init),
      DEVICE(name, name),
      DEVICE(enable, enable),
      DEVICE(isEnabled, enable),
      DEVICE(getMemoryFraction, memory_fraction),
      DEVICE(setMemoryFraction, memory_fraction),
      DEVICE(emptyCache, emptyCache),
      DEVICE(cacheInfo, cacheInfo),
      DEVICE(getExpandableSegmentSizes, getExpandableSegmentSizes),
      DEVICE(getMemoryInfo, getMemoryInfo),
      DEVICE(enablePeerAccess, enablePeerAccess),
      DEVICE(shareIpcHandle, ipc),
      DEVICE(getIpcDevPtr, ipc),
      DEVICE(getDeviceStats, getDeviceStats),
      DEVICE(resetAccumulatedStats, resetAccumulatedStats),
      DEVICE(resetPeakStats, resetPeakStats),
      DEVICE(beginAllocateToPool, beginAllocateToPool),
      DEVICE(endAllocateToPool, endAllocateToPool),
      DEVICE(markCaptureBegin, markCapture),
      DEVICE(markCaptureEnd, markCapture),
      DEVICE(releasePool, releasePool),
      DEVICE(getPoolUseCount, getPoolUseCount),
      DEVICE(createOrIncrefPool, createOrIncrefPool),
      DEVICE(setUseOnOOM, setUseOnOOM),
      DEVICE(setNoSplit, setNoSplit),
      DEVICE(checkPoolLiveAllocations, checkPoolLiveAllocations),
      DEVICE(getCheckpointState, checkpoint),
      DEVICE(setCheckpointPoolState, checkpoint),
      DEVICE(snapshot, snapshot),
      DEVICE(isHistoryEnabled, isHistoryEnabled),
      DEVICE(getContextForPointer, getContextForPointer),
      DEVICE(recordHistory, recordHistory),
      DEVICE(recordAnnotation, recordAnnotation),
      DEVICE(pushCompileContext, pushCompileContext),
      DEVICE(popCompileContext, popCompileContext),
      DEVICE(setUserMetadata, setUserMetadata),
      DEVICE(getUserMetadata, setUserMetadata),
      DEVICE(attachOutOfMemoryObserver, attachOutOfMemoryObserver),
      DEVICE(attachOomRejectionObserver, attachOomRejectionObserver),
      DEVICE(attachAllocatorTraceTracker, attachAllocatorTraceTracker),
      HOST(allocate, host_allocate),
      HOST(raw_deleter, host_raw_deleter),
      HOST(copy_data, host_copy_data),
      HOST(record_event, host_record_event),
      HOST(empty_cache, host_empty_cache),
      HOST(get_stats, host_stats),
      HOST(reset_accumulated_stats, host_stats),
      HOST(reset_peak_stats, host_stats),
      HOST(begin_allocate_to_pool, host_pool),
      HOST(end_allocate_to_pool, host_pool),
      HOST(release_pool, host_pool),
  };
  return all;
}

}  // namespace

void list_functions() {
  for (const Function& each : functions()) std::printf("%s %s\n", each.name, each.test);
}

bool empty_a_function(const char* name) {
  for (const Function& each : functions()) {
    if (std::strcmp(each.name, name) != 0) continue;
    constexpr size_t kBefore = 2, kEntries = 80;  // offset and type; more than enough
    void* object = each.host ? static_cast<void*>(at::getHostAllocator(c10::kCUDA))
                             : static_cast<void*>(allocator());
    auto& table = *static_cast<void***>(object);
    auto** copy = new void*[kBefore + kEntries];
    std::memcpy(copy, table - kBefore, (kBefore + kEntries) * sizeof(void*));
    copy[kBefore + each.slot] = each.nothing;
    table = copy + kBefore;
    return true;
  }
  return false;
}

}  // namespace testing
