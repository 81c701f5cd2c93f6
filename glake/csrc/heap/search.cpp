// Finding memory that is already mapped: best fit at home, a whole idle view, a run inside one.
// All under the device's hot lock; no driver call but, where waiting is allowed, stream waits.
#include "base/tuning.h"
#include "heap/device_allocator.h"

namespace glake {

bool DeviceAllocator::range_ordered(const Span* from, Address begin, Bytes size, StreamId s,
                                    Tickets* pending) {
  bool all = true;
  for (const Span* seg = from; seg != nullptr && seg->begin < begin + size; seg = seg->next) {
    for (Ticket t : seg->tickets) {
      if (ordered(s, t)) continue;
      all = false;
      if (pending == nullptr || !pending->add(t)) return false;
    }
  }
  return all;
}

// The same, asking the driver which of that work is complete.
bool DeviceAllocator::known_ordered(const Span* from, Address begin, Bytes size, StreamId s) {
  for (const Span* seg = from; seg != nullptr && seg->begin < begin + size; seg = seg->next) {
    for (Ticket t : seg->tickets) {
      if (ordered(s, t)) continue;
      clock_.ask(t);
      if (!ordered(s, t)) return false;
    }
  }
  return true;
}

// Makes r's stream wait for what may still use the range: as many tickets at a time as a set holds.
bool DeviceAllocator::wait_for_range(const Span* from, Address begin, const Request& r) {
  for (;;) {
    Tickets pending;
    if (range_ordered(from, begin, r.size, r.stream, &pending)) break;
    if (!wait_for(r.stream, pending)) return false;
  }
  ++stats_.cross_stream_hits;
  return true;
}

bool DeviceAllocator::edge_allows(const Arena& arena, Address begin, Bytes size, StreamId s) const {
  for (Address a : {begin, begin + size - 1}) {
    const GranulePool::Edge& edge = granules_.edge(arena, arena.granule_of(a));
    if (edge.users != 0 && edge.stream != s) return false;
  }
  return true;
}

// A granule partly held by others may serve as a view's edge only beside the same stream's blocks.
bool DeviceAllocator::edge_usable(Arena& arena, uint64_t g, StreamId s) const {
  if (clock_.count() == 1 || arena.whole_free(g)) return true;
  const GranulePool::Edge& edge = granules_.edge(arena, g);
  if (edge.users != 0 && edge.stream != s) return false;
  Address begin = arena.granule_at(g), end = begin + kGranule;
  const Span* at =
      arena.free_prefix(g) != 0 ? arena.extent_at_prefix(g) : arena.extent_at_suffix(g);
  while (at->prev != nullptr && at->begin > begin) at = at->prev;
  for (; at != nullptr && at->begin < end; at = at->next) {
    if (at->state == SpanState::kBusy && at->end() > begin && at->stream != s) return false;
  }
  return true;
}

// Counts (step = 1) or discounts (-1) the granules of which these pieces hold only a part.
void DeviceAllocator::use_edges(Span* pieces, StreamId s, int step) {
  for (Span* p = pieces; p != nullptr; p = p->piece_next) {
    Arena& arena = arena_of(p->begin);
    auto use = [&](uint64_t g) {
      GranulePool::Edge& edge = granules_.edge(arena, g);
      edge.stream = s;
      edge.users = static_cast<uint32_t>(static_cast<int>(edge.users) + step);
    };
    bool starts_inside = p->begin % kGranule != 0;
    if (starts_inside) use(arena.granule_of(p->begin));
    if (p->end() % kGranule != 0 &&
        !(starts_inside && arena.granule_of(p->begin) == arena.granule_of(p->end()))) {
      use(arena.granule_of(p->end()));
    }
  }
}

DeviceAllocator::Found DeviceAllocator::at_home(Arena& arena, Span* head, Address begin,
                                                const Request& r) {
  Span* s = arena.take(head, begin, r.size);
  s->stream = r.stream;
  return {s, nullptr, begin};
}

// A place for r that needs no wait, in the smallest extents: at an extent's start, or else its end.
// `waits`: the first whose start would need one.
DeviceAllocator::Place DeviceAllocator::ready_place(Arena& arena, const Request& r, bool ask,
                                                    Span** waits) {
  auto ready = [&](const Span* from, Address begin) {
    return ask ? known_ordered(from, begin, r.size, r.stream)
               : range_ordered(from, begin, r.size, r.stream, nullptr);
  };
  Span* head = arena.best_fit(r.size);
  for (int i = 0; i < Tuning::kCandidates && head != nullptr; ++i, head = arena.next_fit(head)) {
    Address low = head->begin;
    Address high = head->begin + head->extent - r.size;
    if (edge_allows(arena, low, r.size, r.stream)) {
      if (ready(head, low)) return {head, low};
      if (*waits == nullptr) *waits = head;
    }
    if (high == low) continue;
    const Span* from = head->mate;
    while (from->begin > high) from = from->prev;
    if (edge_allows(arena, high, r.size, r.stream) && ready(from, high)) return {head, high};
  }
  return {};
}

DeviceAllocator::Found DeviceAllocator::fit(Arena& arena, const Request& r, Wait wait) {
  Span* head = arena.best_fit(r.size);
  if (head == nullptr) return {};
  if (clock_.count() == 1) return at_home(arena, head, head->begin, r);
  Span* first = nullptr;
  // A question may cost an event, and to own memory is none.
  for (bool ask : {false, true}) {
    Place place = ready_place(arena, r, ask, &first);
    if (place.head != nullptr) return at_home(arena, place.head, place.begin, r);
  }
  if (wait == Wait::kNo || first == nullptr) return {};
  if (wait_budget_spent(r)) {
    if (Found found = fit_between(arena, r)) return found;
  }
  // The first that can be waited for: not all can, while a stream is captured.
  for (int i = 0; i < Tuning::kCandidates && first != nullptr; ++i, first = arena.next_fit(first)) {
    if (!edge_allows(arena, first->begin, r.size, r.stream)) continue;
    if (wait_for_range(first, first->begin, r)) return at_home(arena, first, first->begin, r);
  }
  return {};
}

// Exact but for a range that lies inside one granule: that one must be wholly free.
bool DeviceAllocator::range_free(const Arena& arena, Address begin, Bytes size) const {
  uint64_t g = arena.granule_of(begin);
  Bytes inside = begin % kGranule;
  if (inside != 0) {
    Bytes rest = kGranule - inside;
    if (size < rest) return arena.whole_free(g);
    if (arena.free_suffix(g) < rest) return false;
    size -= rest;
    ++g;
  }
  uint64_t whole = size / kGranule;
  if (arena.free_run(g, whole) != whole) return false;
  Bytes tail = size % kGranule;
  return tail == 0 || arena.free_prefix(g + whole) >= tail;
}

// Between memory that other streams may still use, the shortest stretch of an extent that needs no
// wait. It splits a large hole in the middle, so it is for when waits have become many.
DeviceAllocator::Found DeviceAllocator::fit_between(Arena& arena, const Request& r) {
  Span* best_head = nullptr;
  Address best = 0;
  Bytes shortest = ~Bytes{0};
  int tried = 0;
  for (Span* head = arena.best_fit(r.size); head != nullptr && tried < Tuning::kExtentsWalked;
       head = arena.next_fit(head), ++tried) {
    Address begin = head->begin;
    for (Span* s = head;; s = s->next) {
      bool usable = ordered(r.stream, s->tickets);
      Address end = usable ? s->end() : s->begin;
      bool ends = !usable || s == head->mate;
      if (ends && end - begin >= r.size && end - begin < shortest &&
          edge_allows(arena, begin, r.size, r.stream)) {
        best_head = head;
        best = begin;
        shortest = end - begin;
      }
      if (!usable) begin = s->end();
      if (s == head->mate) break;
    }
  }
  return best_head != nullptr ? at_home(arena, best_head, best, r) : Found{};
}

bool DeviceAllocator::stretch_free(const View& view, Bytes offset, Bytes size) const {
  return for_each_run(view, offset, size, [&](Arena& arena, Address a, Bytes bytes) {
    return range_free(arena, a, bytes);
  });
}

bool DeviceAllocator::stretch_ordered(const View& view, Bytes offset, const Request& r,
                                      Tickets* pending) {
  if (clock_.count() == 1) return true;
  bool all = true;
  bool usable = for_each_run(view, offset, r.size, [&](Arena& arena, Address a, Bytes bytes) {
    uint64_t last = arena.granule_of(a + bytes - 1);
    if (a % kGranule != 0 && !edge_usable(arena, arena.granule_of(a), r.stream)) return false;
    if ((a + bytes) % kGranule != 0 && !edge_usable(arena, last, r.stream)) return false;
    all = range_ordered(arena.free_span_at(a), a, bytes, r.stream, pending) && all;
    return all || pending != nullptr;
  });
  return usable && all;
}

bool DeviceAllocator::wait_for_stretch(const View& view, Bytes offset, const Request& r) {
  for (;;) {
    Tickets pending;
    if (stretch_ordered(view, offset, r, &pending)) break;
    // Nothing to wait for: an edge of another stream's.
    if (pending.empty() || !wait_for(r.stream, pending)) return false;
  }
  ++stats_.cross_stream_hits;
  return true;
}

DeviceAllocator::Found DeviceAllocator::on_view(View* view, Bytes offset, const Request& r) {
  Span* first = nullptr;
  Span** link = &first;
  for_each_run(*view, offset, r.size, [&](Arena& arena, Address a, Bytes bytes) {
    uint64_t g = arena.granule_of(a);
    Span* head = a % kGranule == 0 ? arena.extent_at_prefix(g) : arena.extent_at_suffix(g);
    Span* s = arena.take(head, a, bytes);
    s->stream = r.stream;
    *link = s;
    link = &s->piece_next;
    return true;
  });
  use_edges(first, r.stream, 1);
  ++view->live;
  views_.touch(view, tick_);
  show_stitched(first, view->base + offset, r.size, true);
  return {first, view, view->base + offset};
}

// Of several idle views the least recently used: a step that repeats then finds each view at the
// same request as before.
DeviceAllocator::Found DeviceAllocator::idle_view(const Request& r, Wait wait) {
  View* best = nullptr;
  bool best_waits = false;
  int tried = 0;
  for (View* view : views_.of_length(Granules::ceil(r.size))) {
    if (++tried > Tuning::kIdleViewsTried) break;
    if (best != nullptr && view->last_used >= best->last_used) continue;
    if (!stretch_free(*view, 0, r.size)) continue;
    Tickets pending;
    if (!stretch_ordered(*view, 0, r, wait == Wait::kAllowed ? &pending : nullptr) &&
        pending.empty()) {
      continue;
    }
    best = view;
    best_waits = !pending.empty();
  }
  if (best == nullptr) return {};
  if (best_waits && !wait_for_stretch(*best, 0, r)) return {};
  ++stats_.view_hits;
  return on_view(best, 0, r);
}

// The first granule of the view from which r fits in free granules, or -1.
int64_t DeviceAllocator::offset_in_view(const View& view, const Request& r, Wait wait,
                                        Tickets* pending) {
  uint64_t whole = r.size / kGranule;
  Bytes tail = r.size % kGranule;
  uint64_t start = 0, length = 0;  // the free stretch that ends where we are
  auto ready = [&](uint64_t at) {
    pending->clear();
    if (stretch_ordered(view, at * kGranule, r, wait == Wait::kAllowed ? pending : nullptr)) {
      return true;
    }
    // What cannot be waited for, while a stream is captured, must not hide a later place.
    return wait == Wait::kAllowed && !pending->empty() && can_have(r.stream, *pending);
  };
  for (const Run& run : view.runs) {
    for (uint64_t i = 0; i < run.count;) {
      uint64_t free = run.arena->free_run(run.granule + i, run.count - i);
      if (length == 0) start = run.at + i;
      length += free;
      i += free;
      if (length >= whole + (tail != 0 ? 1 : 0) && ready(start)) {
        return static_cast<int64_t>(start);
      }
      if (i == run.count) break;
      // A granule free only at its start can still end the block.
      if (length >= whole && tail != 0 && run.arena->free_prefix(run.granule + i) >= tail) {
        uint64_t at = run.at + i - whole;
        if (ready(at)) return static_cast<int64_t>(at);
      }
      length = 0;
      i += run.arena->busy_run(run.granule + i, run.count - i);
    }
  }
  return -1;
}

DeviceAllocator::Found DeviceAllocator::run_in_view(const Request& r, Wait wait) {
  uint64_t need = Granules::ceil(r.size).count;
  Found found;
  views_.search([&](View* view) {
    ++stats_.views_walked;
    if (view->length.count < need) return false;
    Tickets pending;
    int64_t at = offset_in_view(*view, r, wait, &pending);
    if (at < 0) return false;
    Bytes offset = static_cast<Bytes>(at) * kGranule;
    if (!pending.empty() && !wait_for_stretch(*view, offset, r)) return false;
    ++stats_.run_hits;
    found = on_view(view, offset, r);
    return true;
  });
  return found;
}

// True once this repetition of the step has waited often: then a place that needs no wait is better
// than the same place again, unless r is so large that moving it would cost mapping calls. A
// sequence that repeats within a step (a layer's) does not make the budget anew.
bool DeviceAllocator::wait_budget_spent(const Request& r) {
  if (pool_ != nullptr) return false;  // which follows no steps
  uint64_t period = history_.period();
  bool step = period >= Tuning::kLeastStep && period <= Tuning::kMostStep;
  if (history_.count() - window_begin_ >= (step ? period : Tuning::kWindow)) {
    window_begin_ = history_.count();
    window_waits_ = clock_.waits();
  }
  uint64_t budget = step ? Tuning::kWaitsPerStep : Tuning::kWaitsPerWindow;
  return clock_.waits() - window_waits_ >= budget && r.size < limit_.bytes() / 32;
}

// The place a request's counterpart had, if it is free again. It may cost a wait, as it did then.
DeviceAllocator::Found DeviceAllocator::repeat(const Request& r, Address place) {
  if (large_->contains(place)) {
    if (!range_free(*large_, place, r.size)) return {};
    Span* from = large_->free_span_at(place);
    if (clock_.count() > 1) {
      if (!edge_allows(*large_, place, r.size, r.stream)) return {};
      if (!known_ordered(from, place, r.size, r.stream)) {
        if (wait_budget_spent(r)) {
          if (Found found = fit(*large_, r, Wait::kNo)) return found;
          if (Found found = fit_between(*large_, r)) return found;
        }
        if (!wait_for_range(from, place, r)) return {};
      }
    }
    Span* head = place % kGranule == 0 ? large_->extent_at_prefix(large_->granule_of(place))
                                       : large_->extent_at_suffix(large_->granule_of(place));
    return at_home(*large_, head, place, r);
  }
  View* view = views_.find(place);
  if (view == nullptr || place + r.size > view->base + view->length.bytes()) return {};
  Bytes offset = place - view->base;
  if (!stretch_free(*view, offset, r.size)) return {};
  Tickets pending;
  if (!stretch_ordered(*view, offset, r, &pending)) {
    for (Ticket t : pending) clock_.ask(t);
    if (!wait_for_stretch(*view, offset, r)) return {};
  }
  ++stats_.view_hits;
  return on_view(view, offset, r);
}

DeviceAllocator::Found DeviceAllocator::hit(const Request& r) {
  if (Found found = fit(home_of(r), r, Wait::kNo)) return found;
  return r.small() ? Found{} : idle_view(r, Wait::kNo);
}

}  // namespace glake
