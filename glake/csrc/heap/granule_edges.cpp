#include "heap/granule_edges.h"

#include <algorithm>

#include "base/tuning.h"

namespace glake {

bool GranuleEdges::ready(Arena& arena, uint64_t g, Address a, Bytes bytes) {
  return heap_.granules.pins(arena, g) == 0 && available_.edge_usable(arena, g, request_.stream) &&
         available_.range_ordered(arena.free_span_at(a), a, bytes, request_.stream, nullptr);
}

std::array<GranuleEdges::Edge, 2> GranuleEdges::widest_heads() {
  std::array<Edge, 2> widest{};
  for (Arena* arena : {heap_.large.get(), heap_.small.get()}) {
    for (Span* s = arena->best_fit(kAlignment); s != nullptr; s = arena->next_fit(s)) {
      uint64_t g = arena->granule_of(s->begin);
      Bytes inside = s->begin % kGranule;
      if (inside == 0 || s->extent < kGranule - inside) continue;
      Bytes bytes = kGranule - inside;
      if (bytes <= widest[1].bytes || !ready(*arena, g, s->begin, bytes)) continue;
      widest[1] = {{arena, g, 1, 0}, bytes};
      if (widest[0].bytes < bytes) std::swap(widest[0], widest[1]);
    }
  }
  return widest;
}

void GranuleEdges::each_tail(const Edge& head, const std::function<void(const Edge&)>& visit) {
  for (Arena* arena : {heap_.large.get(), heap_.small.get()}) {
    for (Span* s = arena->best_fit(kAlignment); s != nullptr; s = arena->next_fit(s)) {
      Address end = s->begin + s->extent;
      Bytes bytes = end % kGranule;
      if (bytes == 0 || s->extent < bytes) continue;
      uint64_t g = arena->granule_of(end);
      if (head.bytes != 0 && head.run.arena == arena && head.run.granule == g) continue;
      if (ready(*arena, g, end - bytes, bytes)) visit({{arena, g, 1, 0}, bytes});
    }
  }
}

// Looks at a bounded number of extents without a whole granule, the largest first.
void GranuleEdges::collect(Arena& arena) {
  Span* s = arena.best_fit(kGranule);
  s = s == nullptr ? arena.largest() : arena.next_smaller(s);
  for (int i = 0; s != nullptr && i < Tuning::kExtentsWalked; ++i, s = arena.next_smaller(s)) {
    const Bytes start = round_up(s->begin, kGranule) - s->begin;
    if (start != 0 && start <= s->extent) {
      const uint64_t g = arena.granule_of(s->begin);
      if (ready(arena, g, s->begin, start)) heads_.push_back({{&arena, g, 1, 0}, start});
    }
    const Address end = s->begin + s->extent;
    const Bytes last = end % kGranule;
    if (last != 0 && last <= s->extent) {
      const uint64_t g = arena.granule_of(end);
      if (ready(arena, g, end - last, last)) tails_.push_back({{&arena, g, 1, 0}, last});
    }
  }
}

bool GranuleEdges::tightest(Bytes bytes, Pair* best) {
  for (Arena* arena : {heap_.large.get(), heap_.small.get()}) collect(*arena);
  heads_.emplace_back();
  tails_.emplace_back();
  std::sort(tails_.begin(), tails_.end(),
            [](const Edge& a, const Edge& b) { return a.bytes < b.bytes; });
  Bytes least = ~Bytes{0};
  for (const Edge& head : heads_) {
    const Bytes used = std::min(head.bytes, bytes);
    auto tail =
        std::lower_bound(tails_.begin(), tails_.end(), bytes - used,
                         [](const Edge& each, Bytes wanted) { return each.bytes < wanted; });
    auto same = [&] {
      return head.bytes != 0 && tail->bytes != 0 && tail->run.arena == head.run.arena &&
             tail->run.granule == head.run.granule;
    };
    while (tail != tails_.end() && same()) ++tail;
    if (tail == tails_.end() || head.bytes + tail->bytes - bytes >= least) continue;
    least = head.bytes + tail->bytes - bytes;
    *best = {{head.run, used}, {tail->run, bytes - used}};
  }
  return least != ~Bytes{0};
}

}  // namespace glake
