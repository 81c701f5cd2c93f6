#include "heap/search.h"

#include "base/tuning.h"
#include "heap/pieces.h"

namespace glake {

Found Search::hit(const Request& r) {
  if (Found found = fit(heap_.home_of(r), r, Wait::kNo)) return found;
  return r.small() ? Found{} : idle_view(r, Wait::kNo);
}

Found Search::repeat(const Request& r, Address place) {
  if (heap_.large->contains(place)) {
    if (!available_.range_free(*heap_.large, place, r.size)) return {};
    Span* from = heap_.large->free_span_at(place);
    if (device_.clock.count() > 1) {
      if (!available_.edge_allows(*heap_.large, place, r.size, r.stream)) return {};
      if (!available_.known_ordered(from, place, r.size, r.stream)) {
        if (waits_spent(r)) {
          if (Found found = fit(*heap_.large, r, Wait::kNo)) return found;
          if (Found found = fit_between(*heap_.large, r)) return found;
        }
        if (!available_.wait_for_range(from, place, r)) return {};
      }
    }
    Span* head = place % kGranule == 0
                     ? heap_.large->extent_at_prefix(heap_.large->granule_of(place))
                     : heap_.large->extent_at_suffix(heap_.large->granule_of(place));
    return Pieces(heap_).at_home(*heap_.large, head, place, r);
  }
  View* view = heap_.views.find(place);
  if (view == nullptr || place + r.size > view->base + view->length.bytes()) return {};
  Bytes offset = place - view->base;
  if (!available_.stretch_free(*view, offset, r.size)) return {};
  Tickets pending;
  if (!available_.stretch_ordered(*view, offset, r, &pending)) {
    for (Ticket t : pending) device_.clock.ask(t);
    if (!available_.wait_for_stretch(*view, offset, r)) return {};
  }
  ++device_.stats.view_hits;
  return Pieces(heap_).on_view(view, offset, r);
}

Found Search::fit(Arena& arena, const Request& r, Wait wait) {
  Span* head = arena.best_fit(r.size);
  if (head == nullptr) return {};
  if (device_.clock.count() == 1) return Pieces(heap_).at_home(arena, head, head->begin, r);
  Span* first = nullptr;
  // A question may cost an event. The stream's own memory needs none.
  for (bool ask : {false, true}) {
    Place place = ready_place(arena, r, ask, &first);
    if (place.head != nullptr) return Pieces(heap_).at_home(arena, place.head, place.begin, r);
  }
  if (wait == Wait::kNo || first == nullptr) return {};
  if (waits_spent(r)) {
    if (Found found = fit_between(arena, r)) return found;
  }
  // Takes the first that can be waited for. While a stream is captured, not all can be.
  for (int i = 0; i < Tuning::kCandidates && first != nullptr; ++i, first = arena.next_fit(first)) {
    if (!available_.edge_allows(arena, first->begin, r.size, r.stream)) continue;
    if (available_.wait_for_range(first, first->begin, r))
      return Pieces(heap_).at_home(arena, first, first->begin, r);
  }
  return {};
}

// A place for r that needs no wait, in the smallest extents. It is at an extent's start, or else at
// its end. `waits` is the first extent whose start would need a wait.
Search::Place Search::ready_place(Arena& arena, const Request& r, bool ask, Span** waits) {
  auto ready = [&](const Span* from, Address begin) {
    return ask ? available_.known_ordered(from, begin, r.size, r.stream)
               : available_.range_ordered(from, begin, r.size, r.stream, nullptr);
  };
  Span* head = arena.best_fit(r.size);
  for (int i = 0; i < Tuning::kCandidates && head != nullptr; ++i, head = arena.next_fit(head)) {
    Address low = head->begin;
    Address high = head->begin + head->extent - r.size;
    if (available_.edge_allows(arena, low, r.size, r.stream)) {
      if (ready(head, low)) return {head, low};
      if (*waits == nullptr) *waits = head;
    }
    if (high == low) continue;
    const Span* from = head->mate;
    while (from->begin > high) from = from->prev;
    if (available_.edge_allows(arena, high, r.size, r.stream) && ready(from, high))
      return {head, high};
  }
  return {};
}

// The shortest stretch of an extent that needs no wait, between memory that other streams may still
// use. It splits a large hole in the middle, so it is only used when waits have become frequent.
Found Search::fit_between(Arena& arena, const Request& r) {
  Span* best_head = nullptr;
  Address best = 0;
  Bytes shortest = ~Bytes{0};
  int tried = 0;
  for (Span* head = arena.best_fit(r.size); head != nullptr && tried < Tuning::kExtentsWalked;
       head = arena.next_fit(head), ++tried) {
    Address begin = head->begin;
    for (Span* s = head;; s = s->next) {
      bool usable = heap_.rule.ordered(r.stream, s->tickets);
      Address end = usable ? s->end() : s->begin;
      bool ends = !usable || s == head->mate;
      if (ends && end - begin >= r.size && end - begin < shortest &&
          available_.edge_allows(arena, begin, r.size, r.stream)) {
        best_head = head;
        best = begin;
        shortest = end - begin;
      }
      if (!usable) begin = s->end();
      if (s == head->mate) break;
    }
  }
  return best_head != nullptr ? Pieces(heap_).at_home(arena, best_head, best, r) : Found{};
}

// Of several idle views it takes the least recently used. Then a repeated step finds each view at
// the same request as before.
Found Search::idle_view(const Request& r, Wait wait) {
  View* best = nullptr;
  bool best_waits = false;
  int tried = 0;
  for (View* view : heap_.views.of_length(Granules::ceil(r.size))) {
    if (++tried > Tuning::kIdleViewsTried) break;
    if (best != nullptr && view->last_used >= best->last_used) continue;
    if (!available_.stretch_free(*view, 0, r.size)) continue;
    Tickets pending;
    if (!available_.stretch_ordered(*view, 0, r, wait == Wait::kAllowed ? &pending : nullptr) &&
        pending.empty()) {
      continue;
    }
    best = view;
    best_waits = !pending.empty();
  }
  if (best == nullptr) return {};
  if (best_waits && !available_.wait_for_stretch(*best, 0, r)) return {};
  ++device_.stats.view_hits;
  return Pieces(heap_).on_view(best, 0, r);
}

Found Search::run_in_view(const Request& r, Wait wait) {
  uint64_t need = Granules::ceil(r.size).count;
  Found found;
  heap_.views.search([&](View* view) {
    ++device_.stats.views_walked;
    if (view->length.count < need) return false;
    Tickets pending;
    int64_t at = offset_in_view(*view, r, wait, &pending);
    if (at < 0) return false;
    Bytes offset = static_cast<Bytes>(at) * kGranule;
    if (!pending.empty() && !available_.wait_for_stretch(*view, offset, r)) return false;
    ++device_.stats.run_hits;
    found = Pieces(heap_).on_view(view, offset, r);
    return true;
  });
  return found;
}

// The first granule of the view from which r fits in free granules, or -1.
int64_t Search::offset_in_view(const View& view, const Request& r, Wait wait, Tickets* pending) {
  uint64_t whole = r.size / kGranule;
  Bytes tail = r.size % kGranule;
  int64_t found = -1;
  auto ready = [&](uint64_t at) {
    pending->clear();
    if (available_.stretch_ordered(view, at * kGranule, r,
                                   wait == Wait::kAllowed ? pending : nullptr)) {
      return true;
    }
    // What cannot be waited for while a stream is captured must not hide a later place.
    return wait == Wait::kAllowed && !pending->empty() && heap_.rule.can_have(r.stream, *pending);
  };
  each_free_stretch(view, [&](const FreeStretch& free) {
    if (free.length >= whole + (tail != 0 ? 1 : 0) && ready(free.start)) {
      found = static_cast<int64_t>(free.start);
    } else if (free.length >= whole && tail != 0 && free.arena != nullptr &&
               free.arena->free_prefix(free.busy) >= tail) {
      // A granule that is free only at its start can still hold the block's end.
      const uint64_t at = free.start + free.length - whole;
      if (ready(at)) found = static_cast<int64_t>(at);
    }
    return found >= 0;
  });
  return found;
}

// True once this repetition of the step has waited often. Then a place that needs no wait is better
// than the same place again. This does not hold for a request so large that moving it would cost
// mapping calls.
bool Search::waits_spent(const Request& r) {
  if (!heap_.rule.follows_steps()) return false;
  return heap_.wait_budget.spent(heap_.history, device_.clock.waits()) &&
         r.size < device_.memory.limit().bytes() / Tuning::kMovedAnyway;
}

}  // namespace glake
