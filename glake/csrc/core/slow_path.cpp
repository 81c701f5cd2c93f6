// What a request tries when nothing mapped fits: grow, stitch, or both; see DESIGN's order of
// preference in docs/design.md. Runs under slow_; hot_ is let go around every mapping call.
#include "core/device_allocator.h"
#include <algorithm>

namespace glake {

Granules DeviceAllocator::room() const {
  Granules held = granules_.physical();
  return held < limit_ ? limit_ - held : Granules{0};
}

// Memory that is mapped but whose last work is on another stream: worth a wait before worse.
DeviceAllocator::Found DeviceAllocator::reuse_waiting(const Request& r) {
  if (clock_.count() == 1) return {};
  if (Found found = fit(home_of(r), r, Wait::kAllowed)) return found;
  return r.small() ? Found{} : idle_view(r, Wait::kAllowed);
}

DeviceAllocator::Found DeviceAllocator::slow(const Request& r, HotGuard& hot) {
  if (closing_) {
    throw Error(GLAKE_DRIVER_ERROR, "a shutdown of device " + std::to_string(device_) +
                                        " was refused half way; call glake_shutdown() again");
  }
  settle(hot);
  drain_caches(false);
  if (clock_.count() > 1) clock_.poll();
  if (Found found = hit(r)) return found;
  bool compact = options_.policy == PolicyKind::kCompact;
  if (!compact && !driver_full_) {
    if (Found found = r.small() ? grow_small(r, hot) : grow(r, hot)) return found;
  }
  if (Found found = reuse_waiting(r)) return found;
  if (r.small()) {
    drain_caches(true);
    if (Found found = fit(*small_, r, Wait::kAllowed)) return found;
    if (compact && !driver_full_) {
      if (Found found = grow_small(r, hot)) return found;
    }
    if (Found found = fit(*large_, r, Wait::kAllowed)) return found;
    if (Found found = grow_small(r, hot)) return found;
  } else {
    if (Found found = run_in_view(r, Wait::kNo)) return found;
    if (clock_.count() > 1) {
      if (Found found = run_in_view(r, Wait::kAllowed)) return found;
    }
    if (Found found = stitch(r, hot)) return found;
  }
  // Last resorts: what caches and record_stream hold back, then granules shared at their edges.
  ++stats_.alloc_retries;
  drain_caches(true);
  drain_limbo();
  if (Found found = fit(home_of(r), r, Wait::kAllowed)) return found;
  if (Found found = r.small() ? fit(*large_, r, Wait::kAllowed) : stitch(r, hot)) return found;
  if (Found found = stitch_edges(r, hot)) return found;
  ++stats_.ooms;
  throw out_of_memory(r);
}

// Puts granules behind a claimed absent segment. False if the driver has no more; throws on others.
bool DeviceAllocator::back(Arena& arena, Segment* claimed, HotGuard& hot) {
  hot.unlock();
  bool owed = false;
  Granules n = Granules::floor(claimed->size);
  Status s = granules_.back(arena, claimed->begin, n, &owed, [this, &arena, claimed] {
    HotGuard guard(hot_);
    arena.disclaim(claimed);
  });
  hot.lock();
  if (s.ok()) {
    bool small = &arena == small_.get();
    stats_.segment.add(small, static_cast<int64_t>(n.count));
    stats_.reserved_bytes.add(small, static_cast<int64_t>(n.bytes()));
    ++stats_.growths;
    return true;
  }
  // Undone: `settled` above has run, or runs when the debt is paid.
  if (s.out_of_memory()) {
    driver_full_ = true;
    return false;
  }
  throw Error(GLAKE_DRIVER_ERROR, "the driver refused to add " + std::to_string(n.count) +
                                      " granules on device " + std::to_string(device_) + ": " +
                                      driver_.describe(s));
}

DeviceAllocator::Found DeviceAllocator::grow_small(const Request& r, HotGuard& hot) {
  if (room().count == 0) return {};
  for (Segment* s = small_->first_absent(); s != nullptr; s = small_->next_absent(s)) {
    Segment* claimed = small_->claim(s, s->begin, kGranule);
    if (!back(*small_, claimed, hot)) return {};
    small_->give(claimed, Tickets{});
    return fit(*small_, r, Wait::kAllowed);
  }
  return {};
}

// Extends the free extent that needs the fewest new granules, most often the arena's end.
DeviceAllocator::Found DeviceAllocator::grow(const Request& r, HotGuard& hot) {
  Segment* best = nullptr;
  Granules fewest = room();
  for (Segment* s = large_->first_absent(); s != nullptr; s = large_->next_absent(s)) {
    Bytes before = 0;
    if (s->prev != nullptr && s->prev->state == SegmentState::kFree) {
      Segment* head = s->prev->mate;
      bool ready = clock_.count() == 1 ||
                   (edge_allows(*large_, head->begin, r.size, r.stream) &&
                    range_ordered(head, head->begin, r.size, r.stream, nullptr));
      if (ready) before = head->extent;
    }
    Granules need = Granules::ceil(r.size > before ? r.size - before : 0);
    if (s->size < need.bytes() || fewest < need) continue;
    if (best != nullptr && (need == fewest && s->begin > best->begin)) continue;
    best = s;
    fewest = need;
  }
  if (best == nullptr || fewest.count == 0) return {};
  Segment* claimed = large_->claim(best, best->begin, fewest.bytes());
  if (!back(*large_, claimed, hot)) return {};
  large_->give(claimed, Tickets{});
  return fit(*large_, r, Wait::kAllowed);
}

// Whole free granules for r, from the largest extents first: best fit leaves those alone longest, so
// the view is the likelier to be idle when the step comes round again.
Granules DeviceAllocator::collect(const Request& r, Granules want, Wait wait,
                                  std::vector<Run>& runs, Tickets* pending) {
  Granules have{0};
  auto add = [&](Arena& arena, Address begin, Address end) {
    Address from = round_up(begin, kGranule);
    if (from >= end) return;
    uint64_t n = std::min((end - from) / kGranule, want.count - have.count);
    if (n == 0) return;
    runs.push_back({&arena, arena.granule_of(from), n, have.count});
    have = have + Granules{n};
  };
  for (Arena* arena : {large_.get(), small_.get()}) {
    std::vector<Segment*> heads;
    for (Segment* head = arena->best_fit(kGranule); head != nullptr;
         head = arena->next_fit(head, kGranule)) {
      heads.push_back(head);
    }
    std::reverse(heads.begin(), heads.end());
    for (Segment* head : heads) {
      if (!(have < want)) break;
      // Neighbouring segments that may be used now are one stretch.
      Address begin = head->begin, end = head->begin;
      for (Segment* s = head;; s = s->next) {
        bool usable = clock_.ordered(r.stream, s->tickets);
        if (!usable && wait == Wait::kAllowed) {
          usable = true;
          for (Ticket t : s->tickets) {
            if (!clock_.ordered(r.stream, t)) usable = pending->add(t) && usable;
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

// New granules at the first absent places, as runs; they are free (and at home) until taken.
bool DeviceAllocator::add_fresh(Granules n, std::vector<Run>& runs, HotGuard& hot) {
  uint64_t at = 0;
  for (const Run& run : runs) at += run.count;
  while (n.count != 0) {
    Segment* place = large_->first_absent();
    for (Segment* s = place; s != nullptr; s = large_->next_absent(s)) {
      if (s->begin < place->begin) place = s;
    }
    if (place == nullptr) return false;
    Granules here = std::min(n, Granules::floor(place->size));
    Segment* claimed = large_->claim(place, place->begin, here.bytes());
    uint64_t granule = large_->granule_of(claimed->begin);
    if (!back(*large_, claimed, hot)) return false;
    large_->give(claimed, Tickets{});
    runs.push_back({large_.get(), granule, here.count, at});
    at += here.count;
    n = n - here;
  }
  return true;
}

DeviceAllocator::Found DeviceAllocator::stitch(const Request& r, HotGuard& hot) {
  Granules need = Granules::ceil(r.size);
  make_view_room(need, hot);
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
  if (have < need) {
    Granules missing = need - have;
    if (room() < missing) return {};
    if (have.count == 0) return grow(r, hot);
    if (!clock_.wait(r.stream, pending)) return {};
    // hot_ is let go while the driver creates: hold what was found, then free it again.
    Segment* held = nullptr;
    std::vector<std::pair<Arena*, Segment*>> holds;
    for (const Run& run : runs) {
      Segment* head = run.arena->extent_at_prefix(run.granule);
      held = run.arena->take(head, run.arena->granule_at(run.granule), Granules{run.count}.bytes());
      held->stream = r.stream;
      holds.emplace_back(run.arena, held);
    }
    auto let_go = [&] {
      for (auto& [arena, s] : holds) arena->give(s, Tickets(clock_.stamp(r.stream)));
    };
    bool grown = false;
    try {
      grown = add_fresh(missing, runs, hot);
    } catch (...) {
      let_go();
      throw;
    }
    let_go();
    if (!grown) return {};
  } else if (!clock_.wait(r.stream, pending)) {
    return {};
  }
  return build_view(std::move(runs), 0, r, hot);
}

// A last resort: the free end of one granule, whole granules, the free start of another.
DeviceAllocator::Found DeviceAllocator::stitch_edges(const Request& r, HotGuard& hot) {
  make_view_room(Granules::ceil(r.size) + Granules{1}, hot);
  Run head{}, tail{};
  Bytes head_bytes = 0;
  auto usable = [&](Arena& arena, uint64_t g, Address a, Bytes bytes) {
    return edge_usable(arena, g, r.stream) &&
           range_ordered(arena.free_segment_at(a), a, bytes, r.stream, nullptr);
  };
  auto each_extent = [&](auto&& visit) {
    for (Arena* arena : {large_.get(), small_.get()}) {
      for (Segment* s = arena->best_fit(kAlignment); s != nullptr;
           s = arena->next_fit(s, kAlignment)) {
        visit(*arena, s);
      }
    }
  };
  each_extent([&](Arena& arena, Segment* s) {
    uint64_t g = arena.granule_of(s->begin);
    Bytes inside = s->begin % kGranule;
    if (inside == 0 || s->extent < kGranule - inside) return;
    Bytes bytes = kGranule - inside;
    if (bytes <= head_bytes || !usable(arena, g, s->begin, bytes)) return;
    head = {&arena, g, 1, 0};
    head_bytes = bytes;
  });
  // A block no longer than the head alone would have been a best fit.
  if (r.size <= head_bytes) head_bytes = 0;
  Bytes rest = r.size - head_bytes;
  Granules whole = Granules::floor(rest);
  Bytes tail_bytes = rest % kGranule;
  Bytes best = kGranule;
  each_extent([&](Arena& arena, Segment* s) {
    Address end = s->begin + s->extent;
    Bytes bytes = end % kGranule;
    if (tail_bytes == 0 || bytes < tail_bytes || bytes >= best || s->extent < bytes) return;
    uint64_t g = arena.granule_of(end);
    if (head_bytes != 0 && head.arena == &arena && head.granule == g) return;
    if (!usable(arena, g, end - bytes, tail_bytes)) return;
    tail = {&arena, g, 1, 0};
    best = bytes;
  });
  bool partial_tail = best < kGranule;
  Granules need = whole + Granules{tail_bytes != 0 && !partial_tail ? 1u : 0u};
  std::vector<Run> runs;
  Tickets pending;
  if (collect(r, need, Wait::kAllowed, runs, &pending) < need) return {};
  if (!clock_.wait(r.stream, pending)) return {};
  uint64_t shift = head_bytes != 0 ? 1 : 0;
  for (Run& run : runs) run.at += shift;
  if (shift != 0) runs.insert(runs.begin(), head);
  if (partial_tail) {
    tail.at = shift + need.count;
    runs.push_back(tail);
  }
  ++stats_.edge_stitches;
  return build_view(std::move(runs), head_bytes != 0 ? kGranule - head_bytes : 0, r, hot);
}

// Maps the runs side by side and takes r's bytes of them. The bytes are held before hot_ is let go.
DeviceAllocator::Found DeviceAllocator::build_view(std::vector<Run> runs, Bytes offset,
                                                   const Request& r, HotGuard& hot) {
  auto owner = std::make_unique<View>();
  View* view = owner.get();
  for (const Run& run : runs) view->length = view->length + Granules{run.count};
  view->runs = std::move(runs);
  view->base = view_space_.take(view->length);
  views_.add(std::move(owner));
  Found found = on_view(view, offset, r);
  std::vector<Handle> handles;
  handles.reserve(view->length.count);
  for (const Run& run : view->runs) {
    for (uint64_t i = 0; i < run.count; ++i) {
      handles.push_back(granules_.handle(*run.arena, run.granule + i));
      ++granules_.aliases(*run.arena, run.granule + i);
    }
  }
  hot.unlock();
  uint64_t mapped = 0;
  Status s;
  while (mapped < handles.size()) {
    s = driver_.map(view->base + mapped * kGranule, handles[mapped]);
    if (!s.ok()) break;
    ++mapped;
  }
  if (s.ok()) s = driver_.set_access(view->base, view->length.bytes(), granules_.grants());
  hot.lock();
  if (s.ok()) {
    ++stats_.stitches;
    stats_.stitched_bytes += r.size;
    return found;
  }
  abandon_view(view, found, r, mapped, hot);
  throw Error(GLAKE_DRIVER_ERROR, "the driver refused to map a view of " +
                                      std::to_string(handles.size()) + " granules on device " +
                                      std::to_string(device_) + ": " + driver_.describe(s));
}

// Undoes a view of which the first `mapped` granules are mapped: at once, or when the driver lets us.
void DeviceAllocator::abandon_view(View* view, const Found& found, const Request& r,
                                   uint64_t mapped, HotGuard& hot) {
  use_edges(found.pieces, r.stream, -1);
  for (Segment* p = found.pieces; p != nullptr;) {
    Segment* next = p->piece_next;
    arena_of(p->begin).give(p, Tickets(clock_.stamp(r.stream)));
    p = next;
  }
  std::shared_ptr<View> wreck = views_.remove(view);
  hot.unlock();
  debts_.owe({wreck->base, mapped * kGranule, {}, [this, wreck] {
                HotGuard guard(hot_);
                release_view(*wreck);
              }});
  hot.lock();
}

}  // namespace glake
