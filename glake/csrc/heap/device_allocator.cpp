#include "heap/device_allocator.h"

#include <algorithm>

#include "base/tuning.h"

namespace glake {

DeviceAllocator::DeviceAllocator(Driver& driver, int device, const Options& options)
    : owned_(std::make_unique<DeviceShared>(driver, device)),
      shared_(*owned_),
      driver_(driver),
      device_(device),
      options_(options),
      limit_(shared_.limit),
      total_memory_(shared_.total_memory),
      hot_(shared_.hot),
      slow_(shared_.slow),
      blocks_(shared_.blocks),
      deferred_(shared_.deferred),
      granules_(driver, deferred_, shared_.refusals, device, shared_.physical, shared_.grants),
      clock_(shared_.clock),
      contiguous_(shared_.contiguous),
      pins_(granules_),
      history_(true),
      stats_(shared_.stats),
      attached_(shared_.attached),
      driver_full_(shared_.driver_full) {
  shared_.own = this;
}

DeviceAllocator::DeviceAllocator(DeviceAllocator& own)
    : shared_(own.shared_),
      driver_(own.driver_),
      device_(own.device_),
      options_(own.options_),
      limit_(shared_.limit),
      total_memory_(shared_.total_memory),
      hot_(shared_.hot),
      slow_(shared_.slow),
      blocks_(shared_.blocks),
      deferred_(shared_.deferred),
      granules_(driver_, deferred_, shared_.refusals, device_, shared_.physical, shared_.grants),
      clock_(shared_.clock),
      contiguous_(shared_.contiguous),
      pins_(granules_),
      history_(false),
      stats_(shared_.stats),
      pool_(std::make_unique<Pool>()),
      attached_(shared_.attached),
      driver_full_(shared_.driver_full) {}

void DeviceAllocator::require(Status s, const char* what) const {
  if (s.ok()) return;
  throw Error(GLAKE_DRIVER_ERROR, "the driver refused " + device_text(device_) + " " + what + ": " +
                                      driver_.describe(s));
}

void DeviceAllocator::start() {
  if (started_) return;
  if (!attached_) require(driver_.attach(device_), "a primary context");
  attached_ = true;
  DeviceScope scope(driver_, device_);
  require(scope.status(), "to make its context current");
  bool vmm = false;
  Bytes granularity = 0;
  require(driver_.vmm_supported(device_, &vmm), "its attributes");
  if (!vmm) {
    throw Error(GLAKE_DRIVER_ABSENT,
                device_text(device_) + " has no virtual memory management; glake needs it");
  }
  require(driver_.choose_traits(device_), "its attributes");
  require(driver_.granularity(device_, &granularity), "its granularity");
  if (granularity == 0 || kGranule % granularity != 0) {
    throw Error(GLAKE_DRIVER_ABSENT, device_text(device_) + " maps memory by " +
                                         std::to_string(granularity) +
                                         " bytes; glake needs a divisor of 2 MiB");
  }
  require(driver_.total_memory(device_, &total_memory_), "its memory size");
  Bytes limit =
      options_.limit_bytes != 0
          ? options_.limit_bytes
          : static_cast<Bytes>(options_.limit_fraction * static_cast<double>(total_memory_));
  limit_ = Granules::floor(std::min(limit, total_memory_));
  if (limit_.count == 0) {
    throw Error(GLAKE_INVALID_OPTION, "option limit: " + size_text(limit) + " of " +
                                          device_text(device_) + "'s " + size_text(total_memory_) +
                                          " is less than one granule of 2 MiB; give more");
  }
  if (options_.headroom >= total_memory_) {
    throw Error(GLAKE_INVALID_OPTION, "option headroom: " + size_text(options_.headroom) + " of " +
                                          device_text(device_) + "'s " + size_text(total_memory_) +
                                          "; give less");
  }
  driver_.set_headroom(device_, options_.headroom);
  reserve_arenas();
  if (options_.peers) grant_peers();
  started_ = true;
}

void DeviceAllocator::reserve_arenas() {
  bool own = pool_ == nullptr;
  Bytes small = own ? total_memory_ : total_memory_ / Tuning::kPoolSmallShare;
  Bytes large = own ? total_memory_ * Tuning::kArenaFactor : total_memory_;
  if (small_range_ == nullptr) {
    small_range_ = std::make_unique<Reservation>(driver_, this, small, kAlignment);
  }
  if (large_range_ == nullptr) {
    large_range_ = std::make_unique<Reservation>(driver_, this, large, kMiB);
  }
  if (view_space_ == nullptr) {
    view_space_ = std::make_unique<ViewSpace>(
        driver_, this, own ? large : total_memory_ / Tuning::kPoolSmallShare);
  }
  small_ = std::make_unique<Arena>(0, small_range_->base(), small_range_->size(), spans_);
  large_ = std::make_unique<Arena>(1, large_range_->base(), large_range_->size(), spans_);
  granules_.add(*small_);
  granules_.add(*large_);
}

DeviceAllocator::~DeviceAllocator() = default;

Block* DeviceAllocator::make_block(const Request& r, const Found& found, StreamHandle stream) {
  Block* b = blocks_.make();
  b->ptr.store(found.ptr, std::memory_order_relaxed);
  b->size = r.size;
  b->requested = r.requested;
  b->stream = stream;
  b->stream_id = r.stream;
  b->device = this;
  b->pieces = found.pieces;
  b->view = found.view;
  b->small_pool = found.view == nullptr && small_->contains(found.ptr);
  PointerMap::find(b->ptr)->insert(b);
  ++live_;
  if (pool_ != nullptr) pool_->blocks.emplace(b->ptr, b);
  stats_.allocate(b->small_pool, b->size, b->requested);
  b->state.store(BlockState::kLive, std::memory_order_release);
  return b;
}

Block* DeviceAllocator::allocate(Bytes bytes, StreamHandle stream, ThreadCache& cache) {
  Bytes size = round_up(bytes, kAlignment);
  if (size <= kSmallLimit || cache.holds_large()) {
    if (Block* b = cache.take(size, bytes, stream)) return b;
  }
  uint64_t slot = 0;
  {
    HotGuard hot(hot_);
    cache.collect(stats_);
    Request r = request(bytes, stream);
    if (!r.small()) {
      Address place = history_.expect(size, r.stream, &slot);
      if (place != 0) {
        if (Found found = repeat(r, place)) {
          history_.placed(slot, found.ptr);
          ++stats_.repeats;
          return make_block(r, found, stream);
        }
      }
    }
    if (Found found = hit(r)) {
      if (!r.small()) history_.placed(slot, found.ptr);
      return make_block(r, found, stream);
    }
  }
  std::lock_guard<FairMutex> slow_guard(slow_);
  DeviceScope scope(driver_, device_);
  require(scope.status(), "to make its context current");
  HotGuard hot(hot_);
  Block* b = allocate_slowly({size, bytes, clock_.id_of(stream)}, stream, hot);
  if (size > kSmallLimit) history_.placed(slot, b->ptr);
  return b;
}

// As an allocation starts, under hot_.
DeviceAllocator::Request DeviceAllocator::request(Bytes bytes, StreamHandle stream) {
  StreamId id = clock_.turn(clock_.id_of(stream));
  if (clock_.replaced() != replaced_seen_) {
    // What threads keep for a handle may be another stream's.
    replaced_seen_ = clock_.replaced();
    drain_caches(true);
  }
  ++tick_;
  return {round_up(bytes, kAlignment), bytes, id};
}

void DeviceAllocator::free(Block* block, ThreadCache& cache) {
  // A small block that had to go to the large arena is counted there, where no cache counts.
  bool cached = block->small() ? block->small_pool : hot_.contended();
  if (cached && block->recorded.empty() && cache.device() == this && cache.put(block)) {
    return;
  }
  HotGuard hot(hot_);
  cache.collect(stats_);
  stats_.free(block->small_pool, block->size, block->requested);
  free_locked(block);
}

void DeviceAllocator::record_stream(Block* block, StreamHandle stream) {
  HotGuard hot(hot_);
  StreamId id = clock_.id_of(stream);
  if (id == block->stream_id) return;
  block->recorded.add(id);
}

void DeviceAllocator::keep_from_reuse(Block* block) {
  HotGuard hot(hot_);
  stats_.free(block->small_pool, block->size, block->requested);
  stats_.wait(block->small_pool, block->size, block->requested);
  kept_blocks_.push_back(block);
}

void DeviceAllocator::end_keeping(Block* block) {
  HotGuard hot(hot_);
  kept_blocks_.erase(std::find(kept_blocks_.begin(), kept_blocks_.end(), block));
  stats_.done_waiting(block->small_pool, block->size, block->requested);
  free_locked(block);
}

bool DeviceAllocator::order_after_recorded(Block* block) {
  HotGuard hot(hot_);
  for (StreamId s : block->recorded) {
    if (!clock_.wait(block->stream_id, Tickets(clock_.stamp(s)))) return false;
  }
  // A shared block's own stream stays, which keeps the block out of a thread's cache.
  const bool own = own_recorded(*block) != 0;
  block->recorded.clear();
  if (own) block->recorded.add(block->stream_id);
  return true;
}

void DeviceAllocator::note_unticketed() {
  HotGuard hot(hot_);
  clock_.note_unticketed();
}

bool DeviceAllocator::capturing() {
  HotGuard hot(hot_);
  return clock_.any_capturing();
}

Block* DeviceAllocator::find(const Region& region, Address ptr) {
  HotGuard hot(hot_);
  return region.find(ptr);
}

Block* DeviceAllocator::around(const Region& region, Address ptr) {
  HotGuard hot(hot_);
  if (large_->contains(ptr)) return region.around(ptr, large_->base());
  if (small_->contains(ptr)) return region.around(ptr, ptr - std::min(ptr, kSmallLimit));
  const View* view = views_.find(ptr);
  return view != nullptr ? region.around(ptr, view->base) : nullptr;
}

ThreadCache* DeviceAllocator::make_cache() {
  Bytes limit = 0;
  {
    HotGuard hot(hot_);
    limit = limit_.bytes();
  }
  auto cache = std::make_unique<ThreadCache>(this, limit);
  HotGuard hot(hot_);
  caches_.push_back(std::move(cache));
  return caches_.back().get();
}

void DeviceAllocator::drop_cache(ThreadCache* cache) {
  HotGuard hot(hot_);
  drained_.clear();
  cache->drain(true, drained_);
  cache->collect(stats_);
  for (Block* b : drained_) free_locked(b);
  auto mine = [cache](const std::unique_ptr<ThreadCache>& c) { return c.get() == cache; };
  caches_.erase(std::find_if(caches_.begin(), caches_.end(), mine));
}

void DeviceAllocator::forget_stream(StreamHandle handle) {
  HotGuard hot(hot_);
  clock_.forget(handle);
}

void DeviceAllocator::mark_step() {
  HotGuard hot(hot_);
  ++steps_;
}

uint64_t DeviceAllocator::live_blocks() {
  if (!started_) return 0;
  if (debug_ != nullptr) debug_->release_kept();
  std::lock_guard<FairMutex> slow(slow_);
  HotGuard hot(hot_);
  drain_caches(true);
  auto drained = [this] {
    bool all = true;
    for (DeviceAllocator* heap : heaps()) {
      heap->drain_pending(Wait::kAllowed);
      heap->drain_whole();
      heap->drop_freed();
      all = all && heap->pending_frees_.empty();
    }
    return all;
  };
  // What a destroyed stream did is known complete only after the whole device's work.
  if (!drained() && !clock_.any_capturing() && synchronize(hot).ok()) drained();
  uint64_t live = 0;
  for (DeviceAllocator* heap : heaps()) live += heap->live_;
  return live;
}

// Gives the address ranges back; a refusal stops it, to be tried again.
Status DeviceAllocator::release_ranges() {
  Status s;
  auto release = [&s](auto& owner) {
    if (s.ok() && owner != nullptr) s = owner->release();
    if (s.ok()) owner.reset();
  };
  release(view_space_);
  release(small_range_);
  release(large_range_);
  return s;
}

// May be called again after a refusal: what was given back stays given back.
void DeviceAllocator::close() {
  if (started_) {
    uint64_t live = live_blocks();
    if (live != 0) {
      throw Error(GLAKE_INVALID_ARGUMENT, device_text(device_) + " still has " +
                                              counted(live, "live block") + "; free them");
    }
    abandon_pools();
    std::lock_guard<FairMutex> slow(slow_);
    DeviceScope scope(driver_, device_);
    require(scope.status(), "to make its context current");
    HotGuard hot(hot_);
    give_back(hot);
  }
  if (!attached_) return;
  Status s = debug_ != nullptr ? debug_->close() : Status{};
  require(s, "to end its checks");
  std::lock_guard<FairMutex> slow(slow_);
  {
    DeviceScope scope(driver_, device_);
    s = scope.status();
    bool clean =
        deferred_.settle() && contiguous_.settle() && views_.count() == 0 && physical().count == 0;
    for (auto& [id, pool] : shared_.pools) clean = clean && pool->views_.count() == 0;
    if (!clean) {
      throw Error(GLAKE_DRIVER_ERROR, "the driver refused to take " + device_text(device_) +
                                          "'s memory back (" + shared_.refusals.text() +
                                          "); try again");
    }
    started_ = false;
    close_pools(&s);
    if (s.ok()) s = release_ranges();
    if (s.ok()) s = clock_.close();
  }
  if (s.ok()) s = driver_.detach(device_);
  if (!s.ok()) {
    throw Error(GLAKE_DRIVER_ERROR, "the driver refused to give up " + device_text(device_) + ": " +
                                        driver_.describe(s) + "; try again");
  }
  attached_ = false;
}

}  // namespace glake
