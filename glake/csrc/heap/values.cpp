// Statistics as values, and limits that change while the program runs.
#include <algorithm>

#include "heap/device_allocator.h"

namespace glake {
namespace {

void copy(const PoolStat& from, glake_stat to[3]) {
  const Stat* all[] = {&from.all, &from.small, &from.large};
  for (int i = 0; i < 3; ++i) {
    to[i] = {all[i]->current, all[i]->peak, all[i]->allocated, all[i]->freed};
  }
}

}  // namespace

// What contiguous blocks leave of their last granule.
void DeviceAllocator::note_inactive() {
  int64_t count = 0, bytes = 0;
  contiguous_.for_each([&](const Chunk& c) {
    if (!c.live || c.block->size == c.bytes) return;
    ++count;
    bytes += static_cast<int64_t>(c.bytes - c.block->size);
  });
  stats_.inactive_split.become(0, count);
  stats_.inactive_split_bytes.become(0, bytes);
}

glake_device_stats DeviceAllocator::values() {
  HotGuard hot(hot_);
  for (auto& cache : caches_) cache->collect(stats_);
  note_inactive();
  glake_device_stats v{};
  copy(stats_.allocation, v.allocation);
  copy(stats_.segment, v.segment);
  copy(stats_.active, v.active);
  copy(stats_.inactive_split, v.inactive_split);
  copy(stats_.allocated_bytes, v.allocated_bytes);
  copy(stats_.reserved_bytes, v.reserved_bytes);
  copy(stats_.active_bytes, v.active_bytes);
  copy(stats_.inactive_split_bytes, v.inactive_split_bytes);
  copy(stats_.requested_bytes, v.requested_bytes);
  v.alloc_retries = static_cast<int64_t>(stats_.alloc_retries);
  v.ooms = static_cast<int64_t>(stats_.ooms);
  v.device_syncs = static_cast<int64_t>(stats_.device_syncs);
  v.device_allocs = static_cast<int64_t>(driver_.calls(Call::kCreate) - shared_.creates_before);
  v.device_frees = static_cast<int64_t>(driver_.calls(Call::kRelease) - shared_.releases_before);
  return v;
}

void DeviceAllocator::reset_accumulated() {
  HotGuard hot(hot_);
  for (auto& cache : caches_) cache->collect(stats_);
  stats_.reset_accumulated();
  shared_.creates_before = driver_.calls(Call::kCreate);
  shared_.releases_before = driver_.calls(Call::kRelease);
}

void DeviceAllocator::set_limit_fraction(double fraction) {
  const bool fits = fraction > 0 && fraction <= 1;
  const Bytes limit = fits ? static_cast<Bytes>(fraction * static_cast<double>(total_memory_)) : 0;
  if (limit < kGranule) {
    throw Error(GLAKE_INVALID_ARGUMENT, "a limit of " + exact_text(fraction) +
                                            " of the device's memory: it takes a fraction above 0 "
                                            "and up to 1, of at least one granule of 2 MiB");
  }
  std::lock_guard<FairMutex> slow(slow_);
  HotGuard hot(hot_);
  limit_ = Granules::floor(limit);
  shared_.limit_fraction = fraction;
}

double DeviceAllocator::limit_fraction() {
  HotGuard hot(hot_);
  if (shared_.limit_fraction > 0) return shared_.limit_fraction;
  return static_cast<double>(limit_.bytes()) / static_cast<double>(total_memory_);
}

void DeviceAllocator::check_headroom(Bytes bytes) const {
  if (bytes >= total_memory_) {
    throw Error(GLAKE_INVALID_ARGUMENT, "a headroom of " + size_text(bytes) + " on " +
                                            device_text(device_) + ", which has " +
                                            size_text(total_memory_) + ": give less");
  }
}

Bytes DeviceAllocator::set_headroom(Bytes bytes) {
  check_headroom(bytes);
  std::lock_guard<FairMutex> slow(slow_);
  DeviceScope scope(driver_, device_);
  require(scope.status(), "to make its context current");
  HotGuard hot(hot_);
  driver_.set_headroom(device_, bytes);
  forget_refusals({0});
  Bytes free = 0, total = 0;
  auto lacks = [&] {
    require(driver_.memory_info(&free, &total), "its memory's state");
    return free < bytes ? Granules::ceil(bytes - free) : Granules{0};
  };
  Granules missing = lacks();
  for (DeviceAllocator* heap : heaps()) {
    if (missing.count == 0) return free;
    if (heap->pool_ != nullptr && !heap->idle()) continue;
    heap->shrink(missing, hot);
    settle(hot);
    missing = lacks();
  }
  if (missing.count != 0) give_back(hot);
  if (lacks().count != 0) require_all_given();
  return free;
}

void DeviceAllocator::memory_info(Bytes* free, Bytes* total) {
  DeviceScope scope(driver_, device_);
  require(scope.status(), "to make its context current");
  require(driver_.memory_info(free, total), "its memory's state");
}

void DeviceAllocator::stream_wait(StreamHandle stream, StreamHandle other) {
  DeviceScope scope(driver_, device_);
  require(scope.status(), "to make its context current");
  EventId event = 0;
  require(driver_.create_event(device_, &event), "an event");
  Status s = driver_.record(device_, event, other);
  if (s.ok()) s = driver_.wait_stream(device_, stream, event);
  driver_.destroy_event(event);  // what waits for it goes on waiting
  require(s, "that one stream waits for another");
}

// Of the device's own memory; whole granules are stitched.
Bytes DeviceAllocator::largest_free() {
  HotGuard hot(hot_);
  Bytes most = whole_free().bytes();
  for (const Arena* arena : {small_.get(), large_.get()}) {
    Span* extent = arena->largest();
    if (extent != nullptr) most = std::max(most, extent->extent);
  }
  return most;
}

}  // namespace glake
