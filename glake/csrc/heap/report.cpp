#include "heap/report.h"

#include <algorithm>

#include "heap/regions.h"
#include "heap/sharing.h"

namespace glake {

namespace {

void copy(const PoolStat& from, glake_stat to[3]) {
  const Stat* all[] = {&from.all, &from.small, &from.large};
  for (int i = 0; i < 3; ++i) {
    to[i] = {all[i]->current, all[i]->peak, all[i]->allocated, all[i]->freed};
  }
}

}  // namespace

std::string Report::json() {
  HotGuard hot(device_.hot);
  device_.collect_caches();
  note_inactive();
  std::string json = "{";
  append_stat(json, "allocation", device_.stats.allocation);
  append_stat(json, "allocated_bytes", device_.stats.allocated_bytes);
  append_stat(json, "requested_bytes", device_.stats.requested_bytes);
  append_stat(json, "active", device_.stats.active);
  append_stat(json, "active_bytes", device_.stats.active_bytes);
  append_stat(json, "inactive_split", device_.stats.inactive_split);
  append_stat(json, "inactive_split_bytes", device_.stats.inactive_split_bytes);
  append_stat(json, "segment", device_.stats.segment);
  append_stat(json, "reserved_bytes", device_.stats.reserved_bytes);
  auto number = [&](const char* key, uint64_t v) {
    append_number(json, key, static_cast<int64_t>(v));
  };
  number("num_alloc_retries", device_.stats.alloc_retries);
  number("num_ooms", device_.stats.ooms);
  number("num_sync_all_streams", device_.stats.device_syncs);
  number("num_device_alloc", device_.driver.calls(Call::kCreate) - device_.creates_before);
  number("num_device_free", device_.driver.calls(Call::kRelease) - device_.releases_before);
  append_memory(json);
  append_work(json);
  append_pools(json);
  number("glake.debug_checks", device_.debug != nullptr ? device_.debug->checks() : 0);
  number("glake.debug_skipped", device_.debug != nullptr ? device_.debug->skipped() : 0);
  number("glake.debug_kept_bytes", device_.debug != nullptr ? device_.debug->kept_bytes() : 0);
  for (size_t i = 0; i < kCallKinds; ++i) {
    auto call = static_cast<Call>(i);
    number((std::string("glake.driver_calls.") + call_name(call)).c_str(),
           device_.driver.calls(call));
  }
  number("glake.driver_calls", device_.driver.memory_calls());
  return json + "}";
}

// Appends the device's memory, by state.
void Report::append_memory(std::string& json) {
  const Heap& own = device_.heaps.own();
  auto number = [&](const char* key, uint64_t v) {
    append_number(json, key, static_cast<int64_t>(v));
  };
  number("glake.limit_bytes", device_.memory.limit().bytes());
  number("glake.headroom_bytes", device_.memory.headroom());
  number("glake.physical_bytes", device_.memory.physical().bytes() + device_.memory.imported());
  number("glake.owed_bytes", device_.memory.owed_bytes());
  number("glake.contiguous_bytes", device_.contiguous.physical().bytes());
  number("glake.contiguous_cached_bytes", device_.contiguous.cached_bytes());
  number("glake.pinned_bytes", Sharing(device_).pinned_granules() * kGranule);
  number("glake.shared_blocks", device_.shares.size());
  number("glake.shareable", device_.driver.traits(device_.number).shareable ? 1 : 0);
  number("glake.rdma_capable", device_.driver.traits(device_.number).rdma_capable ? 1 : 0);
  number("glake.paused_bytes", Regions(device_).paused_granules().bytes());
  number("glake.free_bytes", own.large->free_bytes() + own.small->free_bytes());
  number("glake.whole_free_bytes", own.whole_free().bytes());
  uint64_t live = 0;
  for (Heap* heap : device_.heaps.started()) live += heap->live;
  number("glake.live_blocks", live);
  number("glake.views", own.views.count());
  number("glake.view_bytes", own.views.mapped().bytes());
  number("glake.virtual_ranges", own.virtuals.ranges().size());
  number("glake.virtual_backed_bytes", own.virtuals.backed() * kGranule);
  number("glake.virtual_shared_bytes", own.virtuals.shared() * kGranule);
  number("glake.virtual_idle_bytes", own.virtuals.idle() * kGranule);
}

// Appends the work that was done, and the length of searches.
void Report::append_work(std::string& json) {
  auto number = [&](const char* key, uint64_t v) {
    append_number(json, key, static_cast<int64_t>(v));
  };
  number("glake.stitches", device_.stats.stitches);
  number("glake.stitched_bytes", device_.stats.stitched_bytes);
  number("glake.edge_stitches", device_.stats.edge_stitches);
  number("glake.view_extensions", device_.stats.extensions);
  number("glake.view_hits", device_.stats.view_hits);
  number("glake.run_hits", device_.stats.run_hits);
  number("glake.repeats", device_.stats.repeats);
  number("glake.growths", device_.stats.growths);
  number("glake.evictions", device_.stats.evictions);
  number("glake.segments_walked", device_.stats.segments_walked);
  number("glake.views_walked", device_.stats.views_walked);
  number("glake.extents_walked",
         device_.heaps.own().large->extents_walked() + device_.heaps.own().small->extents_walked());
  number("glake.streams", device_.clock.count());
  number("glake.stream_waits", device_.clock.waits());
  number("glake.stream_marks", device_.clock.marks());
  number("glake.cross_stream_hits", device_.stats.cross_stream_hits);
  number("glake.steps", device_.steps);
  number("glake.neighbours_asked", device_.stats.neighbours_asked);
  number("glake.neighbours_gave_bytes", device_.stats.neighbours_gave);
  number("glake.gave_neighbours_bytes", device_.stats.gave_neighbours);
}

void Report::append_pools(std::string& json) {
  auto number = [&](const char* key, uint64_t v) {
    append_number(json, key, static_cast<int64_t>(v));
  };
  for (auto& [id, pool] : device_.heaps.pools()) {
    const RegionName* region = pool->pool->region;
    const std::string name = region != nullptr ? "glake.region." + region->name + "."
                                               : "glake.pool." + std::to_string(id.first) + "." +
                                                     std::to_string(id.second) + ".";
    number((name + "reserved_bytes").c_str(), pool->granules.own().bytes());
    const PausedHeap* p = pool->paused();
    number((name + "paused_bytes").c_str(), p != nullptr ? p->missing.bytes() : 0);
    number((name + "users").c_str(), static_cast<uint64_t>(pool->pool->users));
  }
}

// Notes the unused parts of contiguous blocks' last granules.
void Report::note_inactive() {
  int64_t count = 0, bytes = 0;
  device_.contiguous.for_each([&](const Allocation& c) {
    if (!c.live || c.block->size == c.bytes) return;
    ++count;
    bytes += static_cast<int64_t>(c.bytes - c.block->size);
  });
  device_.stats.inactive_split.become(0, count);
  device_.stats.inactive_split_bytes.become(0, bytes);
}

glake_device_stats Report::values() {
  HotGuard hot(device_.hot);
  device_.collect_caches();
  note_inactive();
  glake_device_stats v{};
  copy(device_.stats.allocation, v.allocation);
  copy(device_.stats.segment, v.segment);
  copy(device_.stats.active, v.active);
  copy(device_.stats.inactive_split, v.inactive_split);
  copy(device_.stats.allocated_bytes, v.allocated_bytes);
  copy(device_.stats.reserved_bytes, v.reserved_bytes);
  copy(device_.stats.active_bytes, v.active_bytes);
  copy(device_.stats.inactive_split_bytes, v.inactive_split_bytes);
  copy(device_.stats.requested_bytes, v.requested_bytes);
  v.alloc_retries = static_cast<int64_t>(device_.stats.alloc_retries);
  v.ooms = static_cast<int64_t>(device_.stats.ooms);
  v.device_syncs = static_cast<int64_t>(device_.stats.device_syncs);
  v.device_allocs =
      static_cast<int64_t>(device_.driver.calls(Call::kCreate) - device_.creates_before);
  v.device_frees =
      static_cast<int64_t>(device_.driver.calls(Call::kRelease) - device_.releases_before);
  return v;
}

void Report::reset_accumulated() {
  HotGuard hot(device_.hot);
  device_.collect_caches();
  device_.stats.reset_accumulated();
  device_.creates_before = device_.driver.calls(Call::kCreate);
  device_.releases_before = device_.driver.calls(Call::kRelease);
}

void Report::reset_peaks() {
  HotGuard hot(device_.hot);
  device_.collect_caches();
  device_.stats.reset_peaks();
}

void Report::mark_step() {
  HotGuard hot(device_.hot);
  ++device_.steps;
}

Bytes Report::largest_free() {
  const Heap& own = device_.heaps.own();
  HotGuard hot(device_.hot);
  Bytes most = own.whole_free().bytes();
  for (const Arena* arena : {own.small.get(), own.large.get()}) {
    Span* extent = arena->largest();
    if (extent != nullptr) most = std::max(most, extent->extent);
  }
  return most;
}

}  // namespace glake
