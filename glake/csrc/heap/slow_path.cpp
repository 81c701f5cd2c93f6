#include "heap/slow_path.h"

#include <algorithm>

#include "base/tuning.h"
#include "heap/contiguous_blocks.h"
#include "heap/frees.h"
#include "heap/growth.h"
#include "heap/lending.h"
#include "heap/out_of_memory.h"
#include "heap/search.h"
#include "heap/stitch.h"

namespace glake {

Block* SlowPath::allocate(const Request& r, StreamHandle stream, HotGuard& hot) {
  const Bytes most_live = heap_.most_live;
  try {
    if (Found found = all(r, hot)) return heap_.make_block(r, found, stream);
    if (Block* b = Lending(heap_).borrow(r, stream, hot)) return b;
  } catch (...) {
    heap_.most_live = most_live;
    throw;
  }
  heap_.most_live = most_live;  // what is never live says nothing about how far to grow
  ++device_.stats.ooms;
  throw OutOfMemory(heap_).error(r, {}, hot);
}

Found SlowPath::granules(const Request& r, HotGuard& hot) {
  if (Found found = all(r, hot)) return found;
  ++device_.stats.ooms;
  throw OutOfMemory(heap_).error(r, {}, hot);
}

Found SlowPath::all(const Request& r, HotGuard& hot) {
  device_.settle(hot, Device::Use::kAgain);
  device_.shortage.request_begins();
  if (grows_to_keep(r)) {
    if (Found found = Growth(heap_).grow(r, hot)) return found;
  }
  Frees(heap_).drain_caches(false);
  if (!heap_.pending_frees.empty()) {
    ask_all(r);
    Frees(heap_).drain_pending(device_.options.policy == PolicyKind::kCompact ? Wait::kAllowed
                                                                              : Wait::kNo);
  }
  if (!r.granules) {
    if (Found found = Search(heap_).hit(r)) return found;
    if (heap_.rule.cached_by_threads() && !r.small()) device_.keeping.end();
  }
  if (Found found = sized(r, hot)) return found;
  if (ContiguousBlocks(device_).trim(hot)) {
    if (Found found = sized(r, hot)) return found;
  }
  ++device_.stats.alloc_retries;
  if (Lending(heap_).reclaim_elsewhere(r, hot)) {
    if (Found found = sized(r, hot)) return found;
  }
  if (Found found = last_resort(r, hot)) return found;
  if (device_.wait_for_work(hot)) {
    if (Found found = last_resort(r, hot)) return found;
    if (Lending(heap_).reclaim_elsewhere(r, hot)) {
      if (Found found = sized(r, hot)) return found;
      if (Found found = last_resort(r, hot)) return found;
    }
  }
  // If the driver refused a growth half-way, and then refused to undo it, that memory is still
  // mapped. It can serve this request.
  if (device_.deferred.empty()) return {};
  device_.settle(hot, Device::Use::kAgain);
  return last_resort(r, hot);
}

Found SlowPath::sized(const Request& r, HotGuard& hot) {
  if (r.granules) return Stitch(heap_).granules(r, hot);
  return r.small() ? small(r, hot) : large(r, hot);
}

// Whether memory grows for the request rather than that threads give back the large blocks that
// they keep. After that, each block of the working set would need the device's lock once more. One
// thread alone hardly notices. Several take the lines of the books from each other.
bool SlowPath::grows_to_keep(const Request& r) {
  if (!device_.keeping.now() || !heap_.rule.cached_by_threads()) return false;
  if (r.granules || r.small() || device_.shortage.full()) return false;
  const auto keeping = std::count_if(device_.caches.begin(), device_.caches.end(),
                                     [](const auto& cache) { return cache->holds_large(); });
  return keeping > 1 &&
         device_.memory.physical().bytes() + r.size <= most_held(r, Tuning::kHoardToKeep);
}

// The most that was ever live, and a part of it.
Bytes SlowPath::most_held(const Request& r, uint64_t part) {
  const Bytes live = static_cast<Bytes>(device_.stats.allocated_bytes.all.current) + r.size;
  heap_.most_live = std::max(heap_.most_live, live);
  return heap_.most_live + heap_.most_live / part;
}

// Asks how far every stream is, because that decides which memory is stitched.
void SlowPath::ask_all(const Request& r) {
  if (device_.clock.count() == 1) return;
  device_.clock.ask_idle(r.stream);
  device_.clock.poll();
}

Found SlowPath::small(const Request& r, HotGuard& hot) {
  bool may_grow = !device_.shortage.full();
  if (device_.options.policy == PolicyKind::kBalanced && may_grow) {
    if (caches_hoard()) {
      Frees(heap_).drain_caches(true);
      if (Found found = Search(heap_).fit(*heap_.small, r, Wait::kNo)) return found;
    }
    if (Found found = Growth(heap_).grow_small(r, hot)) return found;
  }
  if (Found found = Search(heap_).fit(*heap_.small, r, Wait::kAllowed)) return found;
  ask_all(r);
  Frees(heap_).drain_caches(true);
  if (Found found = Search(heap_).fit(*heap_.small, r, Wait::kAllowed)) return found;
  if (device_.options.policy == PolicyKind::kCompact && may_grow) {
    if (Found found = in_rest(r)) return found;
    if (Found found = Growth(heap_).grow_small(r, hot)) return found;
  }
  if (Found found = Search(heap_).fit(*heap_.large, r, Wait::kAllowed)) return found;
  if (Found found = Growth(heap_).grow_small(r, hot)) return found;
  // A private pool's small arena may be full of blocks.
  return heap_.small->first_absent() == nullptr ? Growth(heap_).grow(r, hot) : Found{};
}

// Whether threads keep so much of the small arena that they must give it back before that grows.
// They keep every small block that they free, also those of sizes that no request has again.
bool SlowPath::caches_hoard() const {
  Bytes kept = 0;
  for (const auto& cache : device_.caches) kept += cache->small_bytes();
  const auto reserved = static_cast<Bytes>(device_.stats.reserved_bytes.small.current);
  return heap_.rule.cached_by_threads() &&
         kept >= std::max(kGranule, reserved / 100 * Tuning::kCachesHoard);
}

// Looks in the rests of granules that large blocks leave, because no stitch can use these.
Found SlowPath::in_rest(const Request& r) {
  const Span* smallest = heap_.large->best_fit(r.size);
  if (smallest == nullptr || smallest->extent >= kGranule) return {};
  return Search(heap_).fit(*heap_.large, r, Wait::kNo);
}

Found SlowPath::large(const Request& r, HotGuard& hot) {
  bool grows = device_.options.policy == PolicyKind::kBalanced && !device_.shortage.full();
  bool hoards = device_.memory.physical().bytes() > most_held(r, Tuning::kHoard);
  if (grows && !hoards) {
    if (Found found = Growth(heap_).grow(r, hot)) return found;
  }
  if (device_.clock.count() > 1) {
    if (Found found = Search(heap_).fit(*heap_.large, r, Wait::kAllowed)) return found;
    ask_all(r);
    if (Found found = Search(heap_).idle_view(r, Wait::kAllowed)) return found;
  }
  if (grows && hoards && heap_.whole_free() < Granules::ceil(r.size)) {
    if (Found found = Growth(heap_).grow(r, hot)) return found;
  }
  if (Found found = Search(heap_).run_in_view(r, Wait::kNo)) return found;
  if (device_.clock.count() > 1) {
    if (Found found = Search(heap_).run_in_view(r, Wait::kAllowed)) return found;
  }
  return Stitch(heap_).stitch(r, hot);
}

Found SlowPath::last_resort(const Request& r, HotGuard& hot) {
  Frees(heap_).drain_caches(true);
  Frees(heap_).drain_pending(Wait::kAllowed);
  if (heap_.rule.may_split_whole()) Frees(heap_).drain_whole();
  if (r.granules) return Stitch(heap_).granules(r, hot);
  if (Found found = Search(heap_).fit(heap_.home_of(r), r, Wait::kAllowed)) return found;
  if (r.small()) {
    if (Found found = Search(heap_).fit(*heap_.large, r, Wait::kAllowed)) return found;
  }
  if (Found found = Search(heap_).run_in_view(r, Wait::kAllowed)) return found;
  if (!r.small()) {
    if (Found found = Stitch(heap_).stitch(r, hot)) return found;
    if (Found found = Growth(heap_).grow(r, hot)) return found;
  }
  return Stitch(heap_).stitch_edges(r, hot);
}

}  // namespace glake
