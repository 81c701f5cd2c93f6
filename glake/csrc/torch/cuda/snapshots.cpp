#include "torch/cuda/snapshots.h"

#include <c10/core/AllocatorConfig.h>

#include <algorithm>
#include <iterator>

#include "torch/cuda/calls.h"

namespace glake::adapter {

namespace {

// One device's segments in torch's form, of one pool, or of all pools with kNoPool.
struct Segments {
  const History& history;
  c10::MempoolId_t pool;
  std::vector<caching::SegmentInfo> made;
  bool wanted = false;

  void segment(const glake_segment_info& each) {
    c10::MempoolId_t owner{each.pool.first, each.pool.second};
    // A paused segment has no memory to show.
    wanted = (pool == kNoPool || pool == owner) && each.paused == 0;
    if (!wanted) return;
    caching::SegmentInfo& info = made.emplace_back();
    info.device = static_cast<c10::DeviceIndex>(each.device);
    info.address = each.address;
    info.total_size = each.bytes;
    info.stream = each.stream;
    info.is_large = each.large != 0;
    info.is_expandable = each.kind == GLAKE_STITCHED;
    info.owner_private_pool_id = owner;
  }
  void block(const glake_block_record& each) {
    if (!wanted) return;
    caching::SegmentInfo& info = made.back();
    caching::BlockInfo& block = info.blocks.emplace_back();
    block.size = each.bytes;
    block.requested_size = each.requested;
    block.allocated = each.state == GLAKE_ACTIVE;
    block.active = each.state != GLAKE_INACTIVE;
    block.context_when_allocated = history.frames_of(each.context, each.context_owner);
    info.requested_size += block.active ? each.requested : 0;
    info.allocated_size += block.allocated ? each.bytes : 0;
    info.active_size += block.active ? each.bytes : 0;
  }
  void foreign(const ForeignSegment& each) {
    segment({reinterpret_cast<uint64_t>(each.base),
             each.bytes,
             each.stream,
             {each.pool.first, each.pool.second},
             each.device,
             each.large,
             GLAKE_CONTIGUOUS_VMM});
  }
  void foreign(void* ptr, const ForeignBlock& each) {
    int state = each.live ? GLAKE_ACTIVE : each.awaited ? GLAKE_AWAITING_FREE : GLAKE_INACTIVE;
    block({reinterpret_cast<uint64_t>(ptr), each.bytes, each.requested, state, each.segment->stream,
           nullptr, nullptr, nullptr});
    if (wanted) made.back().blocks.back().context_when_allocated = each.context;
  }
};

}  // namespace

native::SnapshotInfo Snapshots::take(c10::MempoolId_t pool, bool traces) const {
  native::SnapshotInfo info;
  using Config = c10::CachingAllocator::AcceleratorAllocatorConfig;
  info.config_metadata = native::AllocatorConfigInfo{};
  // This is true, because no segment is one driver call.
  info.config_metadata.expandable_segments = true;
  info.config_metadata.release_lock_on_malloc = true;
  info.config_metadata.garbage_collection_threshold = Config::garbage_collection_threshold();
  info.config_metadata.max_split_size = Config::max_split_size();
  info.config_metadata.roundup_power2_divisions = Config::roundup_power2_divisions();
  std::string options(1 << 14, '\0');
  options.resize(std::min(library_.options(&options[0], options.size()), options.size()));
  info.config_metadata.last_allocator_settings =
      Config::last_allocator_settings() + " (glake " + options + ")";
  const int devices = devices_.count();
  // The traces are read before visit_memory() records this snapshot as an event. So the next
  // snapshot shows that event.
  for (int device = 0; traces && device < devices; ++device) {
    info.device_traces.emplace_back();
    if (devices_.used(device) && history_.enabled())
      info.device_traces.back() = history_.trace(device);
  }
  if (traces) info.external_annotations = history_.annotations();
  for (int device = 0; device < devices; ++device) {
    if (!devices_.used(device)) continue;
    Segments segments{history_, pool, {}};
    visit_memory(library_, device, segments, true);
    foreign_.visit(
        device, [&](const ForeignSegment& each) { segments.foreign(each); },
        [&](void* ptr, const ForeignBlock& each) { segments.foreign(ptr, each); });
    std::sort(segments.made.begin(), segments.made.end(),
              [](const auto& a, const auto& b) { return a.address < b.address; });
    std::move(segments.made.begin(), segments.made.end(), std::back_inserter(info.segments));
  }
  return info;
}

}  // namespace glake::adapter
