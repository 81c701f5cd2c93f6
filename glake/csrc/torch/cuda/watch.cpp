// Snapshots, history and observers.
#include <c10/core/AllocatorConfig.h>

#include "base/types.h"
#include "torch/cuda/allocator.h"

namespace glake::adapter {

namespace {

// One device's segments, of one pool or (kNoPool) of all, as torch describes them.
struct Segments {
  MempoolId_t pool;
  std::vector<caching::SegmentInfo> made;
  bool wanted = false;

  void segment(const glake_segment_info& each) {
    MempoolId_t owner{each.pool.first, each.pool.second};
    wanted = (pool == kNoPool || pool == owner) && each.paused == 0;  // others have no memory
    if (!wanted) return;
    caching::SegmentInfo& info = made.emplace_back();
    info.device = static_cast<DeviceIndex>(each.device);
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
    block.context_when_allocated = History::frames_of(each.context);
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
           nullptr, nullptr});
    if (wanted) made.back().blocks.back().context_when_allocated = each.context;
  }
};

}  // namespace

native::SnapshotInfo CudaAllocator::snapshot(MempoolId_t pool, bool traces) {
  native::SnapshotInfo info;
  using Config = c10::CachingAllocator::AcceleratorAllocatorConfig;
  info.config_metadata = native::AllocatorConfigInfo{};
  info.config_metadata.expandable_segments = true;  // as is: no segment is of one driver call
  info.config_metadata.release_lock_on_malloc = true;
  info.config_metadata.garbage_collection_threshold = Config::garbage_collection_threshold();
  info.config_metadata.max_split_size = Config::max_split_size();
  info.config_metadata.roundup_power2_divisions = Config::roundup_power2_divisions();
  std::string options(1 << 14, '\0');
  options.resize(std::min(library_.options(&options[0], options.size()), options.size()));
  info.config_metadata.last_allocator_settings =
      Config::last_allocator_settings() + " (glake " + options + ")";
  int devices = devices_.load();
  for (int device = 0; device < kMaxDevices; ++device) {
    if (used(device)) devices = std::max(devices, device + 1);
  }
  // First: the event of this snapshot is the next one's to show.
  for (int device = 0; traces && device < devices; ++device) {
    info.device_traces.emplace_back();
    if (used(device) && history_.enabled()) info.device_traces.back() = history_.trace(device);
  }
  if (traces) info.external_annotations = history_.annotations();
  for (int device = 0; device < kMaxDevices; ++device) {
    if (used(device)) {
      Segments segments{pool, {}};
      visit_memory(device, segments, true);
      foreign_.visit(
          device, [&](const ForeignSegment& each) { segments.foreign(each); },
          [&](void* ptr, const ForeignBlock& each) { segments.foreign(ptr, each); });
      std::sort(segments.made.begin(), segments.made.end(),
                [](const auto& a, const auto& b) { return a.address < b.address; });
      std::move(segments.made.begin(), segments.made.end(), std::back_inserter(info.segments));
    }
  }
  return info;
}

bool CudaAllocator::isHistoryEnabled() { return history_.enabled(); }

std::shared_ptr<c10::GatheredContext> CudaAllocator::getContextForPointer(const void* ptr) {
  ForeignBlock block;
  if (foreign_.describe(ptr, &block)) return block.context;
  return History::frames_of(library_.block_context(const_cast<void*>(ptr)));
}

void CudaAllocator::recordHistory(bool enabled, caching::CreateContextFn gather, size_t entries,
                                  caching::RecordContext when, bool clear,
                                  const std::vector<std::string>& skip_actions) {
  require(history_.record(enabled, gather, entries, when, clear, skip_actions));
}

void CudaAllocator::recordAnnotation(const std::vector<std::pair<std::string, std::string>>& what) {
  if (history_.enabled()) history_.annotate(c10::cuda::current_device(), what);
}

void CudaAllocator::pushCompileContext(std::string& context) {
  history_.push_compile_context(c10::cuda::current_device(), context);
}
void CudaAllocator::popCompileContext() {
  history_.pop_compile_context(c10::cuda::current_device());
}

void CudaAllocator::setUserMetadata(const std::string& metadata) {
  history_.set_metadata(c10::cuda::current_device(), metadata);
}
std::string CudaAllocator::getUserMetadata() {
  return history_.metadata(c10::cuda::current_device());
}
bool CudaAllocator::supportsUserMetadata() { return true; }

void CudaAllocator::annotateMemory(const void* ptr, const std::string& metadata) {
  Known known;
  if (!describe(const_cast<void*>(ptr), &known)) raise();
  history_.annotate_block(known.device, ptr, known.bytes, known.stream, metadata);
}

void CudaAllocator::attachOutOfMemoryObserver(native::OutOfMemoryObserver observer) {
  std::lock_guard<std::mutex> guard(mutex_);
  on_oom_.push_back(std::move(observer));
}

void CudaAllocator::attachOomRejectionObserver(OomRejectionObserver observer) {
  std::lock_guard<std::mutex> guard(mutex_);
  on_rejection_.push_back(std::move(observer));
}

void CudaAllocator::attachAllocatorTraceTracker(caching::AllocatorTraceTracker tracker) {
  require(history_.track(std::move(tracker)));
}

}  // namespace glake::adapter
