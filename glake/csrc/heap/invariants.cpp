#include "heap/invariants.h"

#include <mutex>
#include <set>
#include <vector>

#include "memory/fair_mutex.h"

namespace glake {

void Invariants::check() {
  std::lock_guard<FairMutex> slow_guard(device_.slow);
  HotGuard hot(device_.hot);
  // Hits of other threads move bytes between live and cached under their caches' locks alone.
  std::vector<std::unique_lock<SpinLock>> still;
  for (auto& cache : device_.caches) {
    still.emplace_back(cache->lock());
    cache->publish_locked(device_.stats);
  }
  std::string wrong;
  Bytes busy = 0;
  uint64_t own = 0;
  device_.contiguous.for_each([&](const Allocation& c) { busy += c.live ? c.block->size : 0; });
  for (Heap* heap : device_.heaps.started()) {
    if (wrong.empty()) wrong = broken(*heap, &busy);
    own += heap->granules.own().count;
  }
  bool settled = device_.deferred.empty();  // what a refused undo claims is busy, and nobody has it
  if (wrong.empty() && settled &&
      busy != static_cast<Bytes>(device_.stats.allocated_bytes.all.current)) {
    wrong = "busy bytes are not those of live and cached blocks";
  } else if (wrong.empty() && own != device_.memory.backed()) {
    wrong = "the heaps' granules are not the device's";
  } else if (wrong.empty() && static_cast<Bytes>(device_.stats.reserved_bytes.all.current) !=
                                  (device_.memory.physical() - device_.memory.owed()).bytes()) {
    wrong = "reserved bytes are not those held from the driver and not owed to it";
  }
  if (!wrong.empty()) {
    throw Error(GLAKE_INTERNAL, device_text(device_.number) + ": " + wrong);
  }
}

// Adds the bytes that blocks of this heap occupy to `busy_bytes`, and subtracts those that nobody
// holds.
std::string Invariants::broken(Heap& heap, Bytes* busy_bytes) {
  for (const Arena* arena : {heap.small.get(), heap.large.get()}) {
    std::string wrong = arena->check();
    if (!wrong.empty()) return wrong;
  }
  Granules has = heap.granules.own();
  if (const PausedHeap* p = heap.paused()) has = has + p->missing;
  if (device_.deferred.empty() && used_granules(*heap.small) + used_granules(*heap.large) != has) {
    return "granules behind the arenas are not those held from the driver";
  }
  std::string pins = heap.pins.check();
  if (!pins.empty()) return pins;
  std::string views = broken_views(heap, device_.deferred.empty());
  if (!views.empty()) return views;
  for (const Arena* arena : {heap.small.get(), heap.large.get()}) {
    for (const Span* s = arena->first_span(); s != nullptr; s = s->next) {
      if (s->state == SpanState::kBusy) *busy_bytes += s->size;
    }
  }
  if (heap.rule.cached_by_threads()) {
    for (auto& c : device_.caches) *busy_bytes -= c->kept_bytes();
  }
  for (const PendingFree& freed : heap.pending_frees) *busy_bytes -= freed.block->size;
  for (const Block* b : heap.kept_blocks) *busy_bytes -= b->size;
  for (const WholeBlock& w : heap.whole_blocks) *busy_bytes -= w.block->size;
  if (heap.pool != nullptr && heap.live != heap.pool->blocks.size() + heap.pool->lent +
                                               heap.whole_blocks.size() +
                                               heap.pending_frees.size()) {
    return "a pool's live blocks are miscounted";
  }
  return "";
}

// Checks a heap's views, and their aliases if no refused undo still claims any.
std::string Invariants::broken_views(const Heap& heap, bool settled) {
  std::vector<std::vector<uint32_t>> aliases{std::vector<uint32_t>(heap.small->granule_count()),
                                             std::vector<uint32_t>(heap.large->granule_count())};
  uint64_t mapped = 0;
  for (const View* v : heap.views.recent_first()) {
    uint64_t length = 0;
    std::set<std::pair<int, uint64_t>> seen;
    for (const GranuleRun& run : v->runs) {
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
  for (const auto& [base, range] : heap.virtuals.ranges()) {
    const std::string wrong = broken_range(heap, *range, &aliases);
    if (!wrong.empty()) return wrong;
  }
  if (mapped != heap.views.mapped().count) return "mapped view granules are miscounted";
  for (const Arena* arena : {heap.small.get(), heap.large.get()}) {
    for (uint64_t g = 0; g < arena->granule_count() && settled; ++g) {
      if (aliases[arena->id()][g] != heap.granules.aliases(*arena, g)) {
        return "a granule's aliases are miscounted";
      }
    }
  }
  return "";
}

// Checks a virtual range's counts, and adds what its pages map to `aliases`.
std::string Invariants::broken_range(const Heap& heap, VirtualRange& range,
                                     std::vector<std::vector<uint32_t>>* aliases) {
  uint64_t backed = 0, mapped = 0;
  bool elsewhere = false;
  range.each([&](uint64_t, const VirtualPage& page) {
    if (page.mapped()) ++mapped, ++(*aliases)[page.arena->id()][page.granule];
    if (page.block == nullptr) return;
    ++backed;
    elsewhere = elsewhere || !page.mapped() || page.block->state.load() != BlockState::kPage ||
                page.arena->granule_at(page.granule) != page.block->ptr;
  });
  if (elsewhere) return "a virtual page does not map its granule";
  if (backed != range.backed_pages || mapped != range.mapped_pages) {
    return "the pages of a virtual range are miscounted";
  }
  return heap.virtuals.backed() >= heap.virtuals.shared() ? "" : "shared pages are miscounted";
}

// The number of granules behind an arena.
Granules Invariants::used_granules(const Arena& arena) {
  Bytes bytes = 0;
  for (const Span* s = arena.first_span(); s != nullptr; s = s->next) {
    if (s->state != SpanState::kAbsent) bytes += s->size;
  }
  return Granules::floor(bytes);
}

}  // namespace glake
