#include "heap/growth.h"

#include <algorithm>

#include "heap/availability.h"
#include "heap/search.h"
#include "watch/watch.h"

namespace glake {

Growth::Place Growth::cheapest(const Request& r) {
  Place best{nullptr, heap_.room()};
  for (Span* s = heap_.large->first_absent(); s != nullptr; s = heap_.large->next_absent(s)) {
    Span* head = s->prev != nullptr && s->prev->state == SpanState::kFree ? s->prev->mate : nullptr;
    Bytes before = head != nullptr ? head->extent : 0;
    // No question is asked about a longer request, because it may end behind the arena.
    if (r.size > before + s->size) continue;
    if (head != nullptr && device_.clock.count() > 1 &&
        !(Availability(heap_).edge_allows(*heap_.large, head->begin, r.size, r.stream) &&
          Availability(heap_).range_ordered(head, head->begin, r.size, r.stream, nullptr))) {
      before = 0;
    }
    Granules need = Granules::ceil(r.size > before ? r.size - before : 0);
    if (s->size < need.bytes() || best.need < need) continue;
    if (best.absent != nullptr && need == best.need && s->begin > best.absent->begin) continue;
    best = {s, need};
  }
  return best;
}

Granules Growth::fewest(const Request& r) {
  const Place place = cheapest(r);
  return place.absent != nullptr ? place.need : Granules{UINT64_MAX};
}

Found Growth::grow(const Request& r, HotGuard& hot) {
  const auto [absent, need] = cheapest(r);
  if (absent == nullptr || need.count == 0) return {};
  Span* claimed = heap_.large->claim(absent, absent->begin, need.bytes());
  if (!back(*heap_.large, claimed, hot)) return {};
  heap_.large->give(claimed, Tickets{}, heap_.rule.completion());
  return Search(heap_).fit(*heap_.large, r, Wait::kAllowed);
}

Found Growth::grow_small(const Request& r, HotGuard& hot) {
  if (heap_.room().count == 0) return {};
  for (Span* s = heap_.small->first_absent(); s != nullptr; s = heap_.small->next_absent(s)) {
    Span* claimed = heap_.small->claim(s, s->begin, kGranule);
    if (!back(*heap_.small, claimed, hot)) return {};
    heap_.small->give(claimed, Tickets{}, heap_.rule.completion());
    return Search(heap_).fit(*heap_.small, r, Wait::kAllowed);
  }
  return {};
}

// Puts granules behind a claimed absent span. False if the driver has no more. Throws on other
// errors.
bool Growth::back(Arena& arena, Span* claimed, HotGuard& hot) {
  Granules n = Granules::floor(claimed->size);
  try {
    PointerMap::find(claimed->begin)->prepare(claimed->begin, n.bytes());
  } catch (...) {
    arena.disclaim(claimed);
    throw;
  }
  hot.unlock();
  // Both may run after this object has ended. The heap lives on.
  auto settled = [&heap = heap_, &arena, claimed] {
    HotGuard guard(heap.device.hot);
    arena.disclaim(claimed);
  };
  auto kept = [&heap = heap_, &arena, claimed](Granules first) {
    HotGuard guard(heap.device.hot);
    Growth(heap).keep_backed(arena, claimed, first);
  };
  Status s = heap_.granules.back(arena, claimed->begin, n, settled, kept);
  hot.lock();
  if (s.ok()) {
    count_backed(arena, claimed->begin, n);
    device_.shortage.grown(n);
    return true;
  }
  // It was undone. `settled` above has run, or will run when the deferred release is done.
  if (s.out_of_memory()) {
    device_.shortage.refuse_growth(device_.memory.driver_has(), heap_.granules.had(),
                                   heap_.granules.had_at_most(), heap_.granules.refused());
    return false;
  }
  throw Error(GLAKE_DRIVER_ERROR, "the driver refused to add " + counted(n.count, "granule") +
                                      " on " + device_text(device_.number) + ": " +
                                      device_.driver.describe(s));
}

void Growth::count_backed(const Arena& arena, Address begin, Granules n) {
  bool small = &arena == heap_.small.get();
  device_.stats.reserved_bytes.add(small, static_cast<int64_t>(n.bytes()));
  ++device_.stats.growths;
  Watch::event(GLAKE_SEGMENT_MAP, device_.number, begin, n.bytes());
}

// The first granules of a claimed span stay. The rest is absent again.
void Growth::keep_backed(Arena& arena, Span* claimed, Granules first) {
  Address begin = claimed->begin;
  arena.disclaim(claimed);
  Span* absent = arena.first_absent();
  while (begin < absent->begin || begin >= absent->end()) absent = arena.next_absent(absent);
  count_backed(arena, begin, first);
  arena.give(arena.claim(absent, begin, first.bytes()), Tickets{}, heap_.rule.completion());
}

// If one place is too short, the driver is first asked whether it has enough for all places.
// Granules in only some of them would be useless.
bool Growth::add_fresh(Granules n, std::vector<GranuleRun>& runs, TakenGranules& taken,
                       HotGuard& hot) {
  for (bool asked = false; n.count != 0; asked = true) {
    Span* place = heap_.large->first_absent();
    for (Span* s = place; s != nullptr; s = heap_.large->next_absent(s)) {
      if (s->begin < place->begin) place = s;
    }
    if (place == nullptr) return false;
    if (!asked && place->size < n.bytes()) {
      const Granules has = device_.memory.driver_has();
      if (has.count != 0 && has < n) return false;
    }
    Granules here = std::min(n, Granules::floor(place->size));
    Span* claimed = heap_.large->claim(place, place->begin, here.bytes());
    uint64_t granule = heap_.large->granule_of(claimed->begin);
    if (!back(*heap_.large, claimed, hot)) return false;
    taken.adopt(*heap_.large, claimed);
    runs.push_back({heap_.large.get(), granule, here.count, 0});
    n = n - here;
  }
  return true;
}

bool Growth::add_free(Granules n, HotGuard& hot) {
  if (heap_.room() < n) return false;
  std::vector<GranuleRun> runs;
  TakenGranules taken(heap_, 0);
  return add_fresh(n, runs, taken, hot);
}

}  // namespace glake
