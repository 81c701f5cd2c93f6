// Stitching: idle granules from anywhere, mapped side by side into a view, or behind what a view
// has (extend.cpp). Nothing is unmapped here and nothing is synchronised. Runs under slow_.
#include <algorithm>

#include "heap/device_allocator.h"
#include "heap/taken_granules.h"

namespace glake {
// Whole free granules for r but the marked ones, from the largest extents first: best fit leaves
// those alone longest, so the view is the likelier to be idle when the step comes round again.
Granules DeviceAllocator::collect(const Request& r, Granules want, Wait wait,
                                  std::vector<Run>& runs, Tickets* pending) {
  Granules have{0};
  auto add = [&](Arena& arena, Address begin, Address end) {
    Address from = round_up(begin, kGranule);
    if (from >= end) return;
    uint64_t g = arena.granule_of(from);
    for (uint64_t last = g + (end - from) / kGranule; g < last && have < want;) {
      uint64_t n = 0, most = std::min(last - g, want.count - have.count);
      while (n < most && !granules_.marked(arena, g + n) && granules_.pins(arena, g + n) == 0) ++n;
      if (n != 0) runs.push_back({&arena, g, n, 0});
      have = have + Granules{n};
      g += n == most ? n : n + 1;
    }
  };
  for (Arena* arena : {large_.get(), small_.get()}) {
    // Extents without a whole granule are passed over; behind the last that has one is nothing.
    uint64_t left = arena->whole_free_count();
    for (Span* head = arena->largest();
         head != nullptr && head->extent >= kGranule && left != 0 && have < want;
         head = arena->next_smaller(head)) {
      Address first = round_up(head->begin, kGranule);
      Address last = round_down(head->begin + head->extent, kGranule);
      if (first >= last) continue;
      left -= (last - first) / kGranule;
      // Neighbouring spans that may be used now are one stretch.
      Address begin = head->begin, end = head->begin;
      for (Span* s = head;; s = s->next) {
        bool usable = ordered(r.stream, s->tickets);
        if (!usable && wait != Wait::kNo && !captured_) {
          usable = wait == Wait::kAllowed || can_have(r.stream, s->tickets);
          for (Ticket t : s->tickets) {
            if (usable && !ordered(r.stream, t)) usable = pending->add(t);
          }
        }
        if (usable) end = s->end();
        if (!usable || s == head->mate) {
          add(*arena, begin, end);
          begin = end = s->end();
        }
        if (s == head->mate || !(have < want)) break;
      }
    }
  }
  return have;
}

// New granules at the first absent places, as runs that `taken` keeps: hot_ is let go for each
// place. The driver is asked first whether it has as many as several places need: some of them
// would serve nobody.
bool DeviceAllocator::add_fresh(Granules n, std::vector<Run>& runs, TakenGranules& taken,
                                HotGuard& hot) {
  for (bool asked = false; n.count != 0; asked = true) {
    Span* place = large_->first_absent();
    for (Span* s = place; s != nullptr; s = large_->next_absent(s)) {
      if (s->begin < place->begin) place = s;
    }
    if (place == nullptr) return false;
    if (!asked && place->size < n.bytes()) {
      const Granules has = driver_has();
      if (has.count != 0 && has < n) return false;
    }
    Granules here = std::min(n, Granules::floor(place->size));
    Span* claimed = large_->claim(place, place->begin, here.bytes());
    uint64_t granule = large_->granule_of(claimed->begin);
    if (!back(*large_, claimed, hot)) return false;
    taken.adopt(*large_, claimed);
    runs.push_back({large_.get(), granule, here.count, 0});
    n = n - here;
  }
  return true;
}

DeviceAllocator::Found DeviceAllocator::stitch(const Request& r, HotGuard& hot) {
  Granules need = Granules::ceil(r.size);
  if (whole_free() + room() < need) return {};
  make_view_room(need, hot);
  if (Found found = extend_view(r, hot)) return found;
  std::vector<Run> runs;
  Granules have = collect(r, need, Wait::kNo, runs, nullptr);
  Tickets pending;
  if (have < need && clock_.count() > 1) {
    std::vector<Run> more;
    Granules all = collect(r, need, Wait::kAllowed, more, &pending);
    // Growing instead of waiting is for `balanced`, where there is room.
    bool compact = options_.policy == PolicyKind::kCompact;
    if (!(all < need) || (compact && have < all) || have + room() < need) {
      runs.swap(more);
      have = all;
    } else {
      pending.clear();
    }
  }
  if (have < need && room() < need - have) return {};
  if (!wait_for(r.stream, pending)) {
    // Not for some of it, on a stream that is captured: there may be enough besides.
    runs.clear();
    pending.clear();
    have = collect(r, need, Wait::kSure, runs, &pending);
    if (have < need && room() < need - have) return {};
    if (!wait_for(r.stream, pending)) return {};
  }
  if (have < need) {
    if (have.count == 0) return grow(r, hot);
    TakenGranules taken(*this, r.stream);
    taken.take(runs);
    if (!add_fresh(need - have, runs, taken, hot)) return {};
  }
  return build_view(std::move(runs), 0, r, hot);
}

// The free part of a granule that a view may begin or end with.
bool DeviceAllocator::edge_ready(Arena& arena, uint64_t g, Address a, Bytes bytes,
                                 const Request& r) {
  return granules_.pins(arena, g) == 0 && edge_usable(arena, g, r.stream) &&
         range_ordered(arena.free_span_at(a), a, bytes, r.stream, nullptr);
}

// The longest free ends of two granules, the longer first; of 0 bytes where there are no more. The
// second is for a block that could end best in the granule of the first.
std::array<DeviceAllocator::Edge, 2> DeviceAllocator::widest_heads(const Request& r) {
  std::array<Edge, 2> widest{};
  for (Arena* arena : {large_.get(), small_.get()}) {
    for (Span* s = arena->best_fit(kAlignment); s != nullptr; s = arena->next_fit(s)) {
      uint64_t g = arena->granule_of(s->begin);
      Bytes inside = s->begin % kGranule;
      if (inside == 0 || s->extent < kGranule - inside) continue;
      Bytes bytes = kGranule - inside;
      if (bytes <= widest[1].bytes || !edge_ready(*arena, g, s->begin, bytes, r)) continue;
      widest[1] = {{arena, g, 1, 0}, bytes};
      if (widest[0].bytes < bytes) std::swap(widest[0], widest[1]);
    }
  }
  return widest;
}

// Visits the free starts of granules other than the head's.
void DeviceAllocator::each_tail(const Request& r, const Edge& head,
                                const std::function<void(const Edge&)>& visit) {
  for (Arena* arena : {large_.get(), small_.get()}) {
    for (Span* s = arena->best_fit(kAlignment); s != nullptr; s = arena->next_fit(s)) {
      Address end = s->begin + s->extent;
      Bytes bytes = end % kGranule;
      if (bytes == 0 || s->extent < bytes) continue;
      uint64_t g = arena->granule_of(end);
      if (head.bytes != 0 && head.run.arena == arena && head.run.granule == g) continue;
      if (edge_ready(*arena, g, end - bytes, bytes, r)) visit({{arena, g, 1, 0}, bytes});
    }
  }
}

// A last resort: the free end of one granule, whole granules, the free start of another. What is
// missing of whole granules is new; then all is looked for again, as hot_ has been let go.
DeviceAllocator::Found DeviceAllocator::stitch_edges(const Request& r, HotGuard& hot, bool grows) {
  if (whole_free() + room() + Granules{2} < Granules::ceil(r.size)) return {};
  make_view_room(Granules::ceil(r.size) + Granules{1}, hot);
  Granules missing{UINT64_MAX};
  for (const Edge& head : widest_heads(r)) {
    // The head alone may do: of the small arena, which large blocks are not searched for in.
    Bytes rest = r.size - std::min(r.size, head.bytes);
    Granules need = Granules::ceil(rest);
    const Bytes tail_bytes = rest % kGranule;
    Edge tail{{}, kGranule};
    if (tail_bytes != 0) {
      each_tail(r, head, [&](const Edge& edge) {
        if (edge.bytes >= tail_bytes && edge.bytes < tail.bytes) tail = edge;
      });
    }
    const bool partial_tail = tail.bytes < kGranule;
    if (partial_tail) need = need - Granules{1};
    std::vector<Run> runs;
    Tickets pending;
    const Granules have = collect(r, need, Wait::kSure, runs, &pending);
    if (have < need) {
      missing = std::min(missing, need - have);
      continue;
    }
    if (!wait_for(r.stream, pending)) return {};
    if (head.bytes != 0) runs.insert(runs.begin(), head.run);
    if (partial_tail) runs.push_back(tail.run);
    ++stats_.edge_stitches;
    return build_view(std::move(runs), head.bytes != 0 ? kGranule - head.bytes : 0, r, hot);
  }
  return grows && add_free(missing, hot) ? stitch_edges(r, hot, false) : Found{};
}

// New granules that are free for any request.
bool DeviceAllocator::add_free(Granules n, HotGuard& hot) {
  if (room() < n) return false;
  std::vector<Run> runs;
  TakenGranules taken(*this, 0);
  return add_fresh(n, runs, taken, hot);
}

DeviceAllocator::Found DeviceAllocator::build_view(std::vector<Run> runs, Bytes offset,
                                                   const Request& r, HotGuard& hot) {
  auto owner = std::make_unique<View>();
  View* view = owner.get();
  Granules length = total(runs);
  view->capacity = length + length;  // addresses to extend it into
  view->base = view_space_->take(view->capacity);
  views_.add(std::move(owner));
  return map_behind(view, offset, std::move(runs), r, hot);
}

// Maps the runs behind what the view has, and takes r's bytes from `offset` on. They are held
// before hot_ is let go. All or nothing.
DeviceAllocator::Found DeviceAllocator::map_behind(View* view, Bytes offset, std::vector<Run> runs,
                                                   const Request& r, HotGuard& hot) {
  Granules before = view->length;
  Granules added = total(runs);
  std::vector<Handle> handles;
  handles.reserve(added.count);
  for (Run& run : runs) {
    run.at = before.count + handles.size();
    for (uint64_t i = 0; i < run.count; ++i) {
      handles.push_back(granules_.handle(*run.arena, run.granule + i));
    }
  }
  views_.extend(view, runs);
  add_aliases(runs, 1);
  Found found = on_view(view, offset, r);
  Address at = view->base + before.bytes();
  hot.unlock();
  uint64_t mapped = 0;
  Status s;
  while (mapped < handles.size()) {
    s = driver_.map(at + mapped * kGranule, handles[mapped]);
    if (!s.ok()) break;
    ++mapped;
  }
  if (s.ok()) s = driver_.set_access(at, added.bytes(), granules_.grants());
  hot.lock();
  if (s.ok()) {
    ++stats_.stitches;
    stats_.stitched_bytes += added.bytes();
    if (shared_.stitch_most < Granules::ceil(r.size)) shared_.stitch_refusal.clear();
    return found;
  }
  abandon(view, before, found, r, mapped, hot);
  if (s.out_of_memory()) {
    const bool maps = mapped < handles.size();
    shared_.stitch_most = Granules::ceil(r.size) - (maps ? added - Granules{mapped} : Granules{1});
    shared_.stitch_refusal = maps ? "cuMemMap: " : "cuMemSetAccess: ";
    shared_.stitch_refusal += driver_.describe(s);
    return {};
  }
  throw Error(GLAKE_DRIVER_ERROR, "the driver refused to map " +
                                      counted(handles.size(), "granule") + " into a view on " +
                                      device_text(device_) + ": " + driver_.describe(s));
}

// Undoes map_behind() after `mapped` granules: at once, or when the driver lets us.
void DeviceAllocator::abandon(View* view, Granules before, const Found& found, const Request& r,
                              uint64_t mapped, HotGuard& hot) {
  use_edges(found.pieces, r.stream, -1);
  show_stitched(found.pieces, found.ptr, r.size, false);
  for (Span* p = found.pieces; p != nullptr;) {
    Span* next = p->piece_next;
    arena_of(p->begin).give(p, Tickets(clock_.stamp(r.stream)), completion());
    p = next;
  }
  --view->live;
  // Until that unmapping is done nothing may be mapped there, and the view may not be evicted.
  view->owed = true;
  std::vector<Run> added = views_.truncate(view, before);
  hot.unlock();
  deferred_.defer({view->base + before.bytes(),
                   mapped * kGranule,
                   {},
                   [this, view, added] {
                     HotGuard guard(hot_);
                     view->owed = false;
                     add_aliases(added, -1);
                     if (view->length.count == 0) {
                       view_space_->give(view->base, view->capacity);
                       views_.remove(view);
                     }
                   },
                   {}});
  hot.lock();
}

}  // namespace glake
