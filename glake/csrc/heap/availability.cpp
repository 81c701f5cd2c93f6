#include "heap/availability.h"

namespace glake {

bool Availability::range_free(const Arena& arena, Address begin, Bytes size) const {
  uint64_t g = arena.granule_of(begin);
  Bytes inside = begin % kGranule;
  if (inside != 0) {
    Bytes rest = kGranule - inside;
    if (size < rest) return arena.whole().has(g);
    if (arena.free_suffix(g) < rest) return false;
    size -= rest;
    ++g;
  }
  uint64_t whole = size / kGranule;
  if (arena.whole().free_run(g, whole) != whole) return false;
  Bytes tail = size % kGranule;
  return tail == 0 || arena.free_prefix(g + whole) >= tail;
}

bool Availability::stretch_free(const View& view, Bytes offset, Bytes size) const {
  return for_each_run(view, offset, size, [&](Arena& arena, Address a, Bytes bytes) {
    return range_free(arena, a, bytes);
  });
}

bool Availability::range_ordered(const Span* from, Address begin, Bytes size, StreamId s,
                                 Tickets* pending) {
  bool all = true;
  for (const Span* seg = from; seg != nullptr && seg->begin < begin + size; seg = seg->next) {
    for (Ticket t : seg->tickets) {
      if (heap_.rule.ordered(s, t)) continue;
      all = false;
      if (pending == nullptr || !pending->add(t)) return false;
    }
  }
  return all;
}

bool Availability::known_ordered(const Span* from, Address begin, Bytes size, StreamId s) {
  for (const Span* seg = from; seg != nullptr && seg->begin < begin + size; seg = seg->next) {
    for (Ticket t : seg->tickets) {
      if (heap_.rule.ordered(s, t)) continue;
      device_.clock.ask(t);
      if (!heap_.rule.ordered(s, t)) return false;
    }
  }
  return true;
}

bool Availability::stretch_ordered(const View& view, Bytes offset, const Request& r,
                                   Tickets* pending) {
  if (device_.clock.count() == 1) return true;
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

// Each round waits for as many tickets as a set has room for.
bool Availability::wait_for_range(const Span* from, Address begin, const Request& r) {
  for (;;) {
    Tickets pending;
    if (range_ordered(from, begin, r.size, r.stream, &pending)) break;
    if (!heap_.rule.wait_for(r.stream, pending)) return false;
  }
  ++device_.stats.cross_stream_hits;
  return true;
}

bool Availability::wait_for_stretch(const View& view, Bytes offset, const Request& r) {
  for (;;) {
    Tickets pending;
    if (stretch_ordered(view, offset, r, &pending)) break;
    // Nothing can be waited for if an edge belongs to another stream.
    if (pending.empty() || !heap_.rule.wait_for(r.stream, pending)) return false;
  }
  ++device_.stats.cross_stream_hits;
  return true;
}

bool Availability::edge_allows(const Arena& arena, Address begin, Bytes size, StreamId s) const {
  for (Address a : {begin, begin + size - 1}) {
    const GranulePool::Edge& edge = heap_.granules.edge(arena, arena.granule_of(a));
    if (edge.users != 0 && edge.stream != s) return false;
  }
  return true;
}

bool Availability::edge_usable(Arena& arena, uint64_t g, StreamId s) const {
  if (device_.clock.count() == 1 || arena.whole().has(g)) return true;
  const GranulePool::Edge& edge = heap_.granules.edge(arena, g);
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

}  // namespace glake
