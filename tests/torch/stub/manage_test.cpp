// Limits, caches, statistics, peers, pinned host memory.
#include <ATen/core/CachingHostAllocator.h>
#include <cuda.h>

#include "harness.h"

using namespace testing;

TEST(init) {
  CHECK(!allocator()->initialized());
  CHECK(allocator()->getDeviceStats(0).allocation[0].current == 0);  // opens no device
  CHECK_EQ(std::string(glake_driver_path()), std::string());
  allocator()->init(1);
  CHECK(allocator()->initialized());
  CHECK(!thrown<c10::Error>([] { allocator()->getMemoryFraction(1); }).empty());
  CHECK(!thrown<c10::Error>([] { allocator()->init(1000); }).empty());
}

TEST(name) { CHECK_EQ(allocator()->name(), std::string("glake")); }

TEST(enable) {
  CHECK(allocator()->isEnabled());
  allocator()->allocate(20 * kMiB);
  CHECK(reserved() >= static_cast<int64_t>(20 * kMiB));
  allocator()->emptyCache();
  DataPtr cached = allocator()->allocate(4 * kMiB);
  allocator()->enable(false);
  CHECK(!allocator()->isEnabled());
  int64_t before = reserved();
  DataPtr ptr = allocator()->allocate(20 * kMiB);
  allocator()->recordStream(ptr, new_stream());
  CHECK(has(thrown<c10::Error>([&] { allocator()->shareIpcHandle(ptr.get()); }), "caching off"));
  // Memory that is allocated with caching off is in no statistic. The limit holds for it too.
  CHECK_EQ(reserved(), before);
  CHECK_EQ(live_bytes(), static_cast<int64_t>(4 * kMiB));
  CHECK(!thrown<c10::OutOfMemoryError>([] { allocator()->allocate(240 * kMiB); }).empty());
  cached.clear();
  CHECK_EQ(reserved(), before);  // a block from before is still cached
  CUDA(cudaMemcpy(ptr.get(), ptr.get(), 1, cudaMemcpyDeviceToDevice));
  ptr.clear();
  DataPtr whole = allocator()->allocate(253 * kMiB);  // the cache makes room
  CHECK_EQ(reserved(), 0);
  allocator()->enable(true);
  CHECK(allocator()->isEnabled());
  CHECK(!thrown<c10::OutOfMemoryError>([] { allocator()->allocate(240 * kMiB); }).empty());
  whole.clear();  // the driver frees it, though caching is on again
  DataPtr ours = allocator()->allocate(240 * kMiB);
  CHECK(reserved() >= static_cast<int64_t>(240 * kMiB));
}

TEST(memory_fraction) {
  allocator()->setMemoryFraction(0.25, 0);
  CHECK(std::abs(allocator()->getMemoryFraction(0) - 0.25) < 1e-6);
  DataPtr fits = allocator()->allocate(60 * kMiB);
  CHECK(!thrown<c10::OutOfMemoryError>([] { allocator()->allocate(20 * kMiB); }).empty());
  allocator()->setMemoryFraction(1.0, 0);
  DataPtr more = allocator()->allocate(20 * kMiB);
  CHECK(!thrown<c10::Error>([] { allocator()->setMemoryFraction(1.5, 0); }).empty());
}

TEST(emptyCache) {
  allocator()->allocate(20 * kMiB);
  CHECK(reserved() > 0);
  static_cast<c10::DeviceAllocator*>(allocator())->emptyCache();
  CHECK_EQ(reserved(), 0);
}

TEST(cacheInfo) {
  DataPtr all = allocator()->allocate(200 * kMiB);
  size_t largest = 0;
  allocator()->cacheInfo(0, &largest);
  CHECK(largest > 0 && largest <= 56 * kMiB);
  all.clear();
  largest = 1;
  allocator()->cacheInfo(0, &largest);
  CHECK(largest >= 200 * kMiB);
}

TEST(getExpandableSegmentSizes) {
  CHECK(allocator()->getExpandableSegmentSizes(0).empty());
  DataPtr ptr = allocator()->allocate(20 * kMiB);
  size_t total = 0;
  for (const auto& each : allocator()->getExpandableSegmentSizes(0)) total += each.total_size;
  CHECK_EQ(static_cast<int64_t>(total), reserved());
}

TEST(getMemoryInfo) {
  DataPtr ptr = allocator()->allocate(100 * kMiB);
  auto [free, total] = allocator()->getMemoryInfo(0);
  CHECK_EQ(total, 256 * kMiB);
  CHECK(free > 0 && free <= 156 * kMiB);
}

TEST(getDeviceStats) {
  DataPtr ptr = allocator()->allocate(3 * kMiB);
  allocator()->allocate(700);
  auto now = allocator()->getDeviceStats(0);
  CHECK_EQ(now.allocation[0].current, 1);
  CHECK_EQ(now.allocation[0].allocated, 2);
  CHECK_EQ(now.allocated_bytes[0].current, static_cast<int64_t>(3 * kMiB));
  CHECK_EQ(now.allocated_bytes[2].current, static_cast<int64_t>(3 * kMiB));
  CHECK_EQ(now.requested_bytes[0].allocated, static_cast<int64_t>(3 * kMiB + 700));
  CHECK(now.reserved_bytes[0].current >= static_cast<int64_t>(3 * kMiB));
  CHECK_EQ(now.segment[0].current, 0);  // expandable segments are not counted
  CHECK(now.num_device_alloc > 0);
  CHECK(now.reserved_bytes_by_private_pools.empty());
}

TEST(resetPeakStats) {
  allocator()->allocate(30 * kMiB);
  CHECK(allocator()->getDeviceStats(0).allocated_bytes[0].peak >= static_cast<int64_t>(30 * kMiB));
  allocator()->resetPeakStats(0);
  CHECK_EQ(allocator()->getDeviceStats(0).allocated_bytes[0].peak, 0);
}

TEST(resetAccumulatedStats) {
  allocator()->allocate(30 * kMiB);
  CHECK(allocator()->getDeviceStats(0).allocated_bytes[0].freed > 0);
  allocator()->resetAccumulatedStats(0);
  CHECK_EQ(allocator()->getDeviceStats(0).allocated_bytes[0].freed, 0);
}

// ---- pinned host memory ----

static at::HostAllocator* host() { return at::getHostAllocator(c10::kCUDA); }

TEST(host_allocate) {
  DataPtr ptr = host()->allocate(100000);
  CHECK(ptr.get() != nullptr);
  CHECK(ptr.device() == c10::Device(c10::kCPU));
  CHECK(ptr.get_deleter() == host()->raw_deleter());
  std::memset(ptr.get(), 1, 100000);
  CHECK_EQ(host()->get_stats().active_requests.current, 1);
  CHECK_EQ(host()->get_stats().active_bytes.current, 128 * 1024);  // the block's
  void* where = ptr.get();
  ptr.clear();
  CHECK_EQ(host()->get_stats().active_requests.current, 0);
  CHECK(host()->allocate(100000).get() == where);  // from the cache
  CHECK(host()->allocate(0).get() == nullptr);
}

// Pinned memory can be used on every device. To allocate it makes no context on a device that has
// none.
OPTIONS(host_context, {"devices", "2"});
TEST(host_context) {
  CUDA(cudaSetDevice(1));
  DataPtr tensor = allocator()->allocate(kMiB);
  DataPtr pinned = host()->allocate(kMiB);
  pinned.clear();
  host()->empty_cache();
  unsigned flags = 0;
  int alive[2] = {-1, -1};
  for (int device = 0; device < 2; ++device) {
    CHECK_EQ(static_cast<int>(cuDevicePrimaryCtxGetState(device, &flags, &alive[device])), 0);
  }
  CHECK_EQ(alive[0], 0);
  CHECK_EQ(alive[1], 1);
}

TEST(host_raw_deleter) {
  DataPtr ptr = host()->allocate(1000);
  host()->raw_deleter()(ptr.release_context());
  CHECK_EQ(host()->get_stats().active_requests.current, 0);
}

TEST(host_copy_data) {
  char from[64], to[64] = "";
  std::memset(from, 5, sizeof from);
  host()->copy_data(to, from, sizeof to);
  CHECK(filled(to, 5, sizeof to));
}

TEST(host_record_event) {
  CUDAStream stream = new_stream();
  DataPtr device = allocator()->allocate(8 * kMiB);
  DataPtr pinned = host()->allocate(8 * kMiB);
  std::memset(pinned.get(), 0x66, 8 * kMiB);
  CUDA(cudaMemcpyAsync(device.get(), pinned.get(), 8 * kMiB, cudaMemcpyHostToDevice,
                       stream.stream()));
  CHECK(host()->record_event(pinned.get(), pinned.get_context(), stream.unwrap()));
  pinned.clear();
  DataPtr next = host()->allocate(8 * kMiB);
  std::memset(next.get(), 0, 8 * kMiB);
  stream.synchronize();
  CHECK(filled(device.get(), 0x66, 8 * kMiB));
  int value = 0;
  CHECK(!host()->record_event(&value, &value, stream.unwrap()));
}

TEST(host_empty_cache) {
  host()->allocate(8 * kMiB);
  CHECK(host()->get_stats().allocated_bytes.current >= static_cast<int64_t>(8 * kMiB));
  host()->empty_cache();
  CHECK_EQ(host()->get_stats().allocated_bytes.current, 0);
  CHECK(host()->get_stats().num_host_free > 0);
}

TEST(host_stats) {
  host()->allocate(1 * kMiB);
  auto stats = host()->get_stats();
  CHECK(stats.active_bytes.peak >= static_cast<int64_t>(kMiB));
  CHECK_EQ(stats.active_requests.allocated, 1);
  CHECK_EQ(stats.num_host_alloc, 1);
  CHECK_EQ(stats.host_alloc_time.count, 1);
  host()->allocate(1 * kMiB);  // from the cache
  CHECK_EQ(host()->get_stats().host_alloc_time.count, 1);
  {
    DataPtr more = host()->allocate(1 * kMiB), third = host()->allocate(5 * kMiB);
    CHECK_EQ(host()->get_stats().host_alloc_time.count, 2);
  }
  host()->empty_cache();
  host()->empty_cache();  // frees nothing
  CHECK_EQ(host()->get_stats().host_free_time.count, 2);
  CHECK_EQ(host()->get_stats().num_host_free, 2);
  host()->reset_accumulated_stats();
  CHECK_EQ(host()->get_stats().num_host_free, 0);
  host()->allocate(1 * kMiB);
  host()->reset_peak_stats();
  CHECK_EQ(host()->get_stats().active_bytes.peak, 0);
  host()->reset_accumulated_stats();
  CHECK_EQ(host()->get_stats().active_requests.allocated, 0);
}

TEST(host_pool) {
  constexpr MempoolId_t kPool{0, 9};
  bool ours = true;
  host()->begin_allocate_to_pool(kPool, [&](c10::Stream) { return ours; });
  CHECK(!thrown<c10::Error>([&] {
           host()->begin_allocate_to_pool(kPool, [](c10::Stream) { return true; });
         }).empty());
  DataPtr used = host()->allocate(kMiB);
  host()->record_event(used.get(), used.get_context(), new_stream().unwrap());
  void* captured = used.get();
  used.clear();
  DataPtr unused = host()->allocate(kMiB);
  void* free = unused.get();
  CHECK(free != captured);  // a captured copy reads it at every replay
  unused.clear();
  CHECK(host()->allocate(kMiB).get() == free);
  host()->end_allocate_to_pool(kPool);
  CHECK(!thrown<c10::Error>([&] { host()->end_allocate_to_pool(kPool); }).empty());
  DataPtr other = host()->allocate(kMiB);
  CHECK(other.get() != free && other.get() != captured);
  auto held = host()->get_stats().allocated_bytes.current;
  host()->release_pool(kPool);
  other.clear();
  host()->empty_cache();
  CHECK(held >= static_cast<int64_t>(3 * kMiB));
  CHECK_EQ(host()->get_stats().allocated_bytes.current, 0);
}
