#include "heap/trim.h"

#include <algorithm>

#include "heap/eviction.h"
#include "heap/frees.h"
#include "heap/pause.h"
#include "heap/virtual_ranges.h"
#include "watch/watch.h"

namespace glake {

Granules Trim::trim(Granules want, HotGuard& hot) {
  Granules given{0};
  for (Arena* arena : {heap_.large.get(), heap_.small.get()}) {
    const Span* at = nullptr;
    for (uint64_t g = 0; g < arena->granule_count() && given < want && heap_.rule.may_unmap();) {
      uint64_t skip = arena->whole().busy_run(g, arena->granule_count() - g);
      if (skip != 0) {
        g += skip;
        continue;
      }
      uint64_t most = std::min(arena->granule_count() - g, (want - given).count);
      uint64_t n = settled_run(*arena, g, arena->whole().free_run(g, most), at);
      if (n == 0) {
        ++g;
        continue;
      }
      given = given + give_granules(*arena, g, Granules{n}, hot);
      at = nullptr;  // the lock was let go
      g += n;
    }
  }
  device_.shortage.try_growth();
  if (given.count != 0) device_.shortage.forget(given);
  return given;
}

// How many granules from g on, `most` at most, may go back to the driver. Each is wholly free and
// not pinned, no view maps it, and all work that used it is done. `at` says how far the walk over
// the arena's spans has come, so that a search over many granules looks at each span only a few
// times. Null: the walk begins here.
uint64_t Trim::settled_run(const Arena& arena, uint64_t g, uint64_t most, const Span*& at) {
  for (uint64_t n = 0; n < most; ++n) {
    Address begin = arena.granule_at(g + n);
    if (heap_.granules.aliases(arena, g + n) != 0 || heap_.granules.pins(arena, g + n) != 0)
      return n;
    if (at == nullptr) at = arena.free_span_at(begin);
    for (; at->end() <= begin; at = at->next) ++device_.stats.segments_walked;
    for (const Span* s = at; s != nullptr && s->begin < begin + kGranule; s = s->next) {
      ++device_.stats.segments_walked;
      if (!device_.clock.complete(s->tickets)) return n;
    }
  }
  return most;
}

// Gives free granules back to the driver. Returns how many the driver took.
Granules Trim::give_granules(Arena& arena, uint64_t g, Granules n, HotGuard& hot) {
  Span* s = arena.take(arena.extent_at_prefix(g), arena.granule_at(g), n.bytes());
  hot.unlock();
  Status status = heap_.granules.unback(arena, s->begin, n);
  hot.lock();
  if (!status.ok()) {
    arena.give(s, Tickets{}, heap_.rule.completion());
    return {0};
  }
  Watch::event(GLAKE_SEGMENT_UNMAP, device_.number, s->begin, n.bytes());
  if (device_.debug != nullptr) device_.debug->forget(s->begin, n.bytes());
  arena.disclaim(s);
  device_.stats.reserved_bytes.subtract(&arena == heap_.small.get(),
                                        static_cast<int64_t>(n.bytes()));
  return n;
}

Granules Trim::shrink(Granules want, HotGuard& hot) {
  heap_.thaw();
  if (!heap_.rule.may_unmap() || heap_.paused() != nullptr) return {0};
  Frees(heap_).drain_caches(true);
  Frees(heap_).drain_pending(Wait::kNo);
  Frees(heap_).drain_whole();
  device_.clock.mark_all();
  device_.clock.poll();
  Granules got = trim(want, hot);
  if (!(got < want) || (heap_.views.count() == 0 && heap_.virtuals.empty())) return got;
  VirtualRanges(heap_).drop_idle(false, hot);
  std::vector<View*> oldest(heap_.views.recent_first().rbegin(), heap_.views.recent_first().rend());
  for (View* view : oldest) Eviction(heap_).evict(view, hot);
  return got + trim(want - got, hot);
}

void Trim::all(bool synced, HotGuard& hot) {
  if (heap_.paused() != nullptr) return Pause(heap_).trim(synced, hot);
  idle(synced, hot);
}

void Trim::idle(bool synced, HotGuard& hot) {
  heap_.thaw();
  if (!heap_.rule.may_unmap()) return;
  Frees(heap_).drain_pending(Wait::kNo);
  Frees(heap_).drain_whole();
  std::vector<View*> all(heap_.views.recent_first().begin(), heap_.views.recent_first().end());
  for (View* view : all) {
    if (view->live != 0) continue;
    if (synced) view->tickets_full = false;
    Eviction(heap_).evict(view, hot);
  }
  VirtualRanges(heap_).drop_idle(synced, hot);
  trim({~uint64_t{0}}, hot);
}

}  // namespace glake
