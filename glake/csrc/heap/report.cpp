// What the allocator says of itself: statistics, broken invariants.
#include <set>

#include "heap/device_allocator.h"

namespace glake {

std::string DeviceAllocator::stats_json() {
  HotGuard hot(hot_);
  for (auto& cache : caches_) cache->collect(stats_);
  note_inactive();
  std::string json = "{";
  append_stat(json, "allocation", stats_.allocation);
  append_stat(json, "allocated_bytes", stats_.allocated_bytes);
  append_stat(json, "requested_bytes", stats_.requested_bytes);
  append_stat(json, "active", stats_.active);
  append_stat(json, "active_bytes", stats_.active_bytes);
  append_stat(json, "inactive_split", stats_.inactive_split);
  append_stat(json, "inactive_split_bytes", stats_.inactive_split_bytes);
  append_stat(json, "segment", stats_.segment);
  append_stat(json, "reserved_bytes", stats_.reserved_bytes);
  auto number = [&](const char* key, uint64_t v) {
    append_number(json, key, static_cast<int64_t>(v));
  };
  number("num_alloc_retries", stats_.alloc_retries);
  number("num_ooms", stats_.ooms);
  number("num_sync_all_streams", stats_.device_syncs);
  number("num_device_alloc", driver_.calls(Call::kCreate) - shared_.creates_before);
  number("num_device_free", driver_.calls(Call::kRelease) - shared_.releases_before);
  number("glake.limit_bytes", limit_.bytes());
  number("glake.headroom_bytes", headroom());
  number("glake.physical_bytes", physical().bytes() + shared_.imported);
  number("glake.owed_bytes", owed_bytes());
  number("glake.contiguous_bytes", contiguous_.physical().bytes());
  number("glake.contiguous_cached_bytes", contiguous_.cached_bytes());
  number("glake.pinned_bytes", pinned_granules() * kGranule);
  number("glake.shared_blocks", shared_.shares.size());
  number("glake.shareable", driver_.traits(device_).shareable ? 1 : 0);
  number("glake.rdma_capable", driver_.traits(device_).rdma_capable ? 1 : 0);
  number("glake.paused_bytes", paused_granules().bytes());
  number("glake.free_bytes", large_->free_bytes() + small_->free_bytes());
  number("glake.whole_free_bytes", whole_free().bytes());
  uint64_t live = 0;
  for (DeviceAllocator* heap : heaps()) live += heap->live_;
  number("glake.live_blocks", live);
  number("glake.views", views_.count());
  number("glake.view_bytes", views_.mapped().bytes());
  number("glake.stitches", stats_.stitches);
  number("glake.stitched_bytes", stats_.stitched_bytes);
  number("glake.edge_stitches", stats_.edge_stitches);
  number("glake.view_extensions", stats_.extensions);
  number("glake.view_hits", stats_.view_hits);
  number("glake.run_hits", stats_.run_hits);
  number("glake.repeats", stats_.repeats);
  number("glake.growths", stats_.growths);
  number("glake.evictions", stats_.evictions);
  number("glake.segments_walked", stats_.segments_walked);
  number("glake.views_walked", stats_.views_walked);
  number("glake.extents_walked", large_->extents_walked() + small_->extents_walked());
  number("glake.streams", clock_.count());
  number("glake.stream_waits", clock_.waits());
  number("glake.stream_marks", clock_.marks());
  number("glake.cross_stream_hits", stats_.cross_stream_hits);
  number("glake.steps", steps_);
  for (auto& [id, pool] : shared_.pools) {
    std::string name = std::to_string(id.first) + "." + std::to_string(id.second) + ".";
    number(("glake.pool." + name + "reserved_bytes").c_str(), pool->granules_.own().bytes());
    const PausedHeap* p = pool->paused();
    number(("glake.pool." + name + "paused_bytes").c_str(), p != nullptr ? p->missing.bytes() : 0);
    number(("glake.pool." + name + "users").c_str(), static_cast<uint64_t>(pool->pool_->users));
  }
  number("glake.debug_checks", debug_ != nullptr ? debug_->checks() : 0);
  number("glake.debug_skipped", debug_ != nullptr ? debug_->skipped() : 0);
  number("glake.debug_kept_bytes", debug_ != nullptr ? debug_->kept_bytes() : 0);
  for (size_t i = 0; i < kCallKinds; ++i) {
    auto call = static_cast<Call>(i);
    number((std::string("glake.driver_calls.") + call_name(call)).c_str(), driver_.calls(call));
  }
  number("glake.driver_calls", driver_.memory_calls());
  return json + "}";
}

std::string DeviceAllocator::explain_pointer(Address ptr) {
  HotGuard hot(hot_);
  auto inside = [ptr](Address begin, Bytes size) { return ptr - begin < size; };
  const View* view = nullptr;
  for (const View* v : views_.recent_first()) {
    if (inside(v->base, v->length.bytes())) view = v;
  }
  if (view == nullptr && !small_->contains(ptr) && !large_->contains(ptr)) {
    return " lies in glake's addresses but no block is there";
  }
  // At home the span tells whether somebody holds these bytes; in a view the runs do.
  Address home = ptr;
  if (view != nullptr) {
    for_each_run(*view, ptr - view->base, 1, [&](Arena&, Address a, Bytes) {
      home = a;
      return false;
    });
  }
  for (const Span* s = arena_of(home).first_span(); s != nullptr; s = s->next) {
    if (home < s->begin || home >= s->end()) continue;
    if (s->state == SpanState::kBusy && (home != s->begin || view != nullptr)) {
      return " lies inside a block; glake knows it by its first byte's address only";
    }
  }
  return " is no live block's address: freed already, or never given out";
}

Bytes DeviceAllocator::driver_free_bytes() {
  Bytes free = 0, total = 0;
  DeviceScope scope(driver_, device_);
  return scope.status().ok() && driver_.memory_info(&free, &total).ok() ? free : 0;
}

void DeviceAllocator::reset_peaks() {
  HotGuard hot(hot_);
  for (auto& cache : caches_) cache->collect(stats_);
  stats_.reset_peaks();
}

// Physical granules an arena has behind it.
Granules DeviceAllocator::used_granules(const Arena& arena) const {
  Bytes bytes = 0;
  for (const Span* s = arena.first_span(); s != nullptr; s = s->next) {
    if (s->state != SpanState::kAbsent) bytes += s->size;
  }
  return Granules::floor(bytes);
}

// Adds the bytes that blocks of this heap occupy to `busy_bytes`, and takes off those nobody holds.
std::string DeviceAllocator::broken_invariant(Bytes* busy_bytes) {
  for (const Arena* arena : {small_.get(), large_.get()}) {
    std::string wrong = arena->check();
    if (!wrong.empty()) return wrong;
  }
  Granules has = granules_.own();
  if (const PausedHeap* p = paused()) has = has + p->missing;
  if (deferred_.empty() && used_granules(*small_) + used_granules(*large_) != has) {
    return "granules behind the arenas are not those held from the driver";
  }
  std::string pins = pins_.check();
  if (!pins.empty()) return pins;
  std::vector<std::vector<uint32_t>> aliases{std::vector<uint32_t>(small_->granule_count()),
                                             std::vector<uint32_t>(large_->granule_count())};
  uint64_t mapped = 0;
  for (const View* v : views_.recent_first()) {
    uint64_t length = 0;
    std::set<std::pair<int, uint64_t>> seen;
    for (const Run& run : v->runs) {
      if (run.at != length) return "a view's runs do not tile it";
      length += run.count;
      for (uint64_t i = 0; i < run.count; ++i) {
        ++aliases[run.arena->id()][run.granule + i];
        if (!seen.emplace(run.arena->id(), run.granule + i).second) {
          return "a view holds a granule twice";
        }
      }
    }
    if (length != v->length.count) return "a view's length is wrong";
    mapped += length;
  }
  if (mapped != views_.mapped().count) return "mapped view granules are miscounted";
  for (const Arena* arena : {small_.get(), large_.get()}) {
    for (uint64_t g = 0; g < arena->granule_count() && deferred_.empty(); ++g) {
      if (aliases[arena->id()][g] != granules_.aliases(*arena, g)) {
        return "a granule's aliases are miscounted";
      }
    }
  }
  for (const Arena* arena : {small_.get(), large_.get()}) {
    for (const Span* s = arena->first_span(); s != nullptr; s = s->next) {
      if (s->state == SpanState::kBusy) *busy_bytes += s->size;
    }
  }
  for (auto& c : caches_) *busy_bytes -= c->kept_bytes();
  for (const PendingFree& freed : pending_frees_) *busy_bytes -= freed.block->size;
  for (const Block* b : kept_blocks_) *busy_bytes -= b->size;
  if (pool_ == nullptr) return "";
  for (const Whole& w : pool_->whole) *busy_bytes -= w.block->size;
  if (live_ != pool_->blocks.size() + pool_->lent + pool_->whole.size() + pending_frees_.size()) {
    return "a pool's live blocks are miscounted";
  }
  return "";
}

void DeviceAllocator::check() {
  std::lock_guard<FairMutex> slow(slow_);
  HotGuard hot(hot_);
  // Other threads' hits move bytes between live and cached with no other lock.
  std::vector<std::unique_lock<SpinLock>> still;
  for (auto& cache : caches_) {
    still.emplace_back(cache->lock());
    cache->publish_locked(stats_);
  }
  std::string wrong;
  Bytes busy = 0;
  uint64_t own = 0;
  contiguous_.for_each([&](const Chunk& c) { busy += c.live ? c.block->size : 0; });
  for (DeviceAllocator* heap : heaps()) {
    if (wrong.empty()) wrong = heap->broken_invariant(&busy);
    own += heap->granules_.own().count;
  }
  bool settled = deferred_.empty();  // what a refused undo still claims is busy, and nobody's
  if (wrong.empty() && settled && busy != static_cast<Bytes>(stats_.allocated_bytes.all.current)) {
    wrong = "busy bytes are not those of live and cached blocks";
  } else if (wrong.empty() && own != shared_.physical) {
    wrong = "the heaps' granules are not the device's";
  } else if (wrong.empty() && static_cast<Bytes>(stats_.reserved_bytes.all.current) !=
                                  (physical() - owed()).bytes()) {
    wrong = "reserved bytes are not those held from the driver and not owed to it";
  }
  if (!wrong.empty()) {
    throw Error(GLAKE_INTERNAL, device_text(device_) + ": " + wrong);
  }
}

}  // namespace glake
