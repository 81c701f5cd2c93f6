// Finding memory that is already mapped: best fit at home, a whole idle view, a run inside one.
// All under the device's hot lock; no driver call but, where waiting is allowed, stream waits.
#include "core/device_allocator.h"

namespace glake {
namespace {

constexpr int kCandidates = 8;    // extents tried at both ends for one that needs no wait
constexpr int kViewsTried = 64;   // idle views of the same length

}  // namespace

bool DeviceAllocator::range_ordered(const Segment* from, Address begin, Bytes size, StreamId s,
                                    Tickets* pending) {
  bool all = true;
  for (const Segment* seg = from; seg != nullptr && seg->begin < begin + size; seg = seg->next) {
    for (Ticket t : seg->tickets) {
      if (clock_.ordered(s, t)) continue;
      all = false;
      if (pending == nullptr || !pending->add(t)) return false;
    }
  }
  return all;
}

bool DeviceAllocator::edge_allows(const Arena& arena, Address begin, Bytes size,
                                  StreamId s) const {
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
  const Segment* at = arena.free_prefix(g) != 0 ? arena.extent_at_prefix(g)
                                                : arena.extent_at_suffix(g);
  while (at->prev != nullptr && at->begin > begin) at = at->prev;
  for (; at != nullptr && at->begin < end; at = at->next) {
    if (at->state == SegmentState::kBusy && at->end() > begin && at->stream != s) return false;
  }
  return true;
}

// Counts (step = 1) or discounts (-1) the granules of which these pieces hold only a part.
void DeviceAllocator::use_edges(Segment* pieces, StreamId s, int step) {
  for (Segment* p = pieces; p != nullptr; p = p->piece_next) {
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

DeviceAllocator::Found DeviceAllocator::at_home(Arena& arena, Segment* head, Address begin,
                                                const Request& r) {
  Segment* s = arena.take(head, begin, r.size);
  s->stream = r.stream;
  return {s, nullptr, begin};
}

DeviceAllocator::Found DeviceAllocator::fit(Arena& arena, const Request& r, Wait wait) {
  Segment* head = arena.best_fit(r.size);
  if (head == nullptr) return {};
  if (clock_.count() == 1) return at_home(arena, head, head->begin, r);
  Segment* first = nullptr;
  for (int i = 0; i < kCandidates && head != nullptr; ++i, head = arena.next_fit(head, r.size)) {
    Address low = head->begin;
    Address high = head->begin + head->extent - r.size;
    if (edge_allows(arena, low, r.size, r.stream)) {
      if (range_ordered(head, low, r.size, r.stream, nullptr)) return at_home(arena, head, low, r);
      if (first == nullptr) first = head;
    }
    if (high == low) continue;
    const Segment* from = head->mate;
    while (from->begin > high) from = from->prev;
    if (edge_allows(arena, high, r.size, r.stream) &&
        range_ordered(from, high, r.size, r.stream, nullptr)) {
      return at_home(arena, head, high, r);
    }
  }
  if (wait == Wait::kNo || first == nullptr) return {};
  Tickets pending;
  range_ordered(first, first->begin, r.size, r.stream, &pending);
  // A full ticket set leaves some work out; one wait for what it names, then look again.
  if (!clock_.wait(r.stream, pending)) return {};
  if (!range_ordered(first, first->begin, r.size, r.stream, nullptr)) return {};
  ++stats_.cross_stream_hits;
  return at_home(arena, first, first->begin, r);
}

bool DeviceAllocator::stretch_free(const View& view, Bytes offset, Bytes size) const {
  return for_each_run(view, offset, size, [&](Arena& arena, Address a, Bytes bytes) {
    uint64_t g = arena.granule_of(a);
    Bytes inside = a % kGranule;
    if (inside != 0) {
      Bytes rest = kGranule - inside;
      if (bytes < rest || arena.free_suffix(g) < rest) return false;
      bytes -= rest;
      ++g;
    }
    uint64_t whole = bytes / kGranule;
    if (arena.free_run(g, whole) != whole) return false;
    Bytes tail = bytes % kGranule;
    return tail == 0 || arena.free_prefix(g + whole) >= tail;
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
    all = range_ordered(arena.free_segment_at(a), a, bytes, r.stream, pending) && all;
    return all || pending != nullptr;
  });
  return usable && all;
}

DeviceAllocator::Found DeviceAllocator::on_view(View* view, Bytes offset, const Request& r) {
  Segment* first = nullptr;
  Segment** link = &first;
  for_each_run(*view, offset, r.size, [&](Arena& arena, Address a, Bytes bytes) {
    uint64_t g = arena.granule_of(a);
    Segment* head = a % kGranule == 0 ? arena.extent_at_prefix(g) : arena.extent_at_suffix(g);
    Segment* s = arena.take(head, a, bytes);
    s->stream = r.stream;
    *link = s;
    link = &s->piece_next;
    return true;
  });
  use_edges(first, r.stream, 1);
  ++view->live;
  views_.touch(view, tick_);
  return {first, view, view->base + offset};
}

DeviceAllocator::Found DeviceAllocator::idle_view(const Request& r, Wait wait) {
  const std::vector<View*>& same = views_.of_length(Granules::ceil(r.size));
  int tried = 0;
  for (auto it = same.rbegin(); it != same.rend() && tried < kViewsTried; ++it, ++tried) {
    View* view = *it;
    if (!stretch_free(*view, 0, r.size)) continue;
    Tickets pending;
    if (!stretch_ordered(*view, 0, r, wait == Wait::kAllowed ? &pending : nullptr)) {
      if (pending.empty() || !clock_.wait(r.stream, pending) ||
          !stretch_ordered(*view, 0, r, nullptr)) {
        continue;
      }
      ++stats_.cross_stream_hits;
    }
    ++stats_.view_hits;
    return on_view(view, 0, r);
  }
  return {};
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
    return wait == Wait::kAllowed && !pending->empty();
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
  for (View* view : views_.recent_first()) {
    if (view->length.count < need) continue;
    Tickets pending;
    int64_t at = offset_in_view(*view, r, wait, &pending);
    if (at < 0) continue;
    Bytes offset = static_cast<Bytes>(at) * kGranule;
    if (!pending.empty()) {
      if (!clock_.wait(r.stream, pending) || !stretch_ordered(*view, offset, r, nullptr)) continue;
      ++stats_.cross_stream_hits;
    }
    ++stats_.run_hits;
    return on_view(view, offset, r);
  }
  return {};
}

DeviceAllocator::Found DeviceAllocator::hit(const Request& r) {
  if (Found found = fit(home_of(r), r, Wait::kNo)) return found;
  return r.small() ? Found{} : idle_view(r, Wait::kNo);
}

}  // namespace glake
