// The text of an out-of-memory error: who holds what, what would fit now, what would help.
#include <algorithm>

#include "core/debug.h"
#include "core/device_allocator.h"

namespace glake {

// What r's stream may have of the idle memory, by the rules of search.cpp and stitch.cpp. A
// captured pool keeps what other streams freed; pinned granules are out of stitching.
DeviceAllocator::Usable DeviceAllocator::usable(const Request& r) {
  Usable found;
  std::vector<Run> runs;
  Tickets pending;
  granules_.new_mark();
  found.whole = collect(r, whole_free(), Wait::kAllowed, runs, &pending);
  found.large = longest_stretch(*large_, r);
  found.small = std::max(found.large, longest_stretch(*small_, r));
  auto [head, head_bytes] = widest_head(r);
  Bytes tail_bytes = 0;
  each_tail(r, head_bytes != 0 ? &head : nullptr,
            [&](const Run&, Bytes bytes) { tail_bytes = std::max(tail_bytes, bytes); });
  found.edges = head_bytes + tail_bytes;
  for (Segment* s = large_->first_absent(); s != nullptr; s = large_->next_absent(s)) {
    bool before = s->prev != nullptr && s->prev->state == SegmentState::kFree;
    const Segment* head_of = before ? s->prev->mate : nullptr;
    bool ready = before && edge_allows(*large_, head_of->begin, head_of->extent, r.stream) &&
                 range_ordered(head_of, head_of->begin, head_of->extent, r.stream, nullptr);
    if (!ready || head_of->extent % kGranule == 0) continue;
    found.grown = std::max(found.grown, head_of->extent);
    found.grown_room = std::max(found.grown_room, s->size);
  }
  return found;
}

// The longest block that fits at either end of a free extent.
Bytes DeviceAllocator::longest_stretch(const Arena& arena, const Request& r) {
  Bytes longest = 0;
  auto consider = [&](Address begin, Address end) {
    if (begin >= end || !edge_allows(arena, begin, end - begin, r.stream)) return;
    longest = std::max(longest, end - begin);
  };
  auto may = [&](const Segment* s) { return !captured_ || ordered(r.stream, s->tickets); };
  for (const Segment* head = arena.best_fit(kAlignment); head != nullptr;
       head = arena.next_fit(head, kAlignment)) {
    Address begin = head->begin, low = begin, end = begin + head->extent, high = end;
    for (const Segment* s = head; low == s->begin && may(s); s = s->next) {
      low = s->end();
      if (s == head->mate) break;
    }
    for (const Segment* s = head->mate; high == s->end() && may(s); s = s->prev) {
      high = s->begin;
      if (s == head) break;
    }
    // Only at its beginning may a block wait for other streams' work.
    auto ready = [&](Address from) {
      const Segment* s = head;
      while (s->end() <= from) s = s->next;
      return range_ordered(s, from, end - from, r.stream, nullptr);
    };
    consider(begin, low);
    if (high < end && ready(high)) consider(high, end);
    // Without the granule at an end, which a view's block of another stream may share.
    consider(begin, round_down(low, kGranule));
    Address inner = round_up(high, kGranule);
    if (inner < end && ready(inner)) consider(inner, end);
  }
  return longest;
}

// The largest block that r's stream could have next, when the arenas may grow by so much.
Bytes DeviceAllocator::largest_fit(const Request& r, Granules growth) {
  Usable mine = usable(r);
  Bytes large = std::max(mine.large, (mine.whole + growth).bytes());
  large = std::max(large, mine.whole.bytes() + mine.edges);
  bool grows = options_.policy == PolicyKind::kBalanced && !driver_full_;
  if (growth.count != 0 && grows) {  // stitching, the other way to grow, takes whole granules
    large = std::max(large, mine.grown + std::min(growth.bytes(), mine.grown_room));
  }
  if (large <= kSmallLimit) {  // then a small block's rules count
    bool granule = growth.count != 0 || mine.whole.count != 0;
    large =
        std::min(granule ? kSmallLimit : std::max({mine.small, mine.edges, large}), kSmallLimit);
  }
  for (DeviceAllocator* heap : heaps()) {
    bool lends = heap != this && heap->pool_ != nullptr && !captured_ && !heap->captured_ &&
                 (heap->pool_->flags & GLAKE_POOL_USE_ON_OOM) != 0;
    if (!lends) continue;
    for (const Whole& w : heap->pool_->whole) large = std::max(large, w.block->size);
    Usable theirs = heap->usable(r);
    large = std::max({large, theirs.large, theirs.whole.bytes() + theirs.edges});
  }
  return round_down(large, kAlignment);
}

// By how much the arenas could grow under the limit (`limit`), and as far as the driver has memory
// (`driver`): known when it has just refused, else as it reports, less what it refused before.
DeviceAllocator::Growth DeviceAllocator::growth(Bytes* driver_free) {
  Growth g{room(), room(), {0}};
  Bytes total = 0;
  bool known = driver_.memory_info(driver_free, &total).ok();
  if (!known) *driver_free = 0;
  if (known) g.driver = Granules::floor(*driver_free) + granules_.idle_debts();
  if (shared_.refused_now) {
    g.driver = g.driver < shared_.had ? g.driver : shared_.had;
  } else if (driver_full_) {
    g.driver = shared_.withheld < g.driver && known ? g.driver - shared_.withheld : Granules{0};
  }
  g.now = g.limit < g.driver ? g.limit : g.driver;
  return g;
}

// Who has the device's memory, where it is the driver that has no more.
std::string DeviceAllocator::driver_text(Bytes driver_free) const {
  std::string text = " (the driver has no more";
  bool refused = shared_.refused_now || (driver_full_ && shared_.withheld.count != 0);
  if (refused) text += ", it said " + shared_.refusal;
  Bytes held = physical().bytes();
  text += "; it reports " + size_text(driver_free) + " free";
  if (driver_free + held < total_memory_) {
    text += ", so " + size_text(total_memory_ - driver_free - held) +
            " is held outside glake: by this process's other allocations and CUDA contexts, or by "
            "other processes";
  }
  return text + ")";
}

// What the heap has and cannot use for this request.
std::string DeviceAllocator::idle_text(Granules mine) {
  Bytes whole = whole_free().bytes();
  Bytes free = large_->free_bytes() + small_->free_bytes();
  Bytes cached = 0, limbo = 0;
  for (auto& c : caches_) cached += c->held_bytes();
  for (const Held& held : limbo_) limbo += held.block->size;
  std::string text = "; idle " + size_text(free) + ": " + size_text(whole) +
                     " in whole granules, " + size_text(free - whole) +
                     " in parts of granules held by live blocks";
  if (captured_ && mine.bytes() < whole) {
    text += "; " + size_text(whole - mine.bytes()) +
            " of it is kept for CUDA graphs, whose memory serves only the stream it was freed on";
  }
  if (shared_.outside != 0) {
    text += ", " + size_text(shared_.outside) + " of the limit taken by other allocators";
  }
  if (Bytes chunks = contiguous_.physical().bytes(); chunks != 0) {
    text += ", " + size_text(chunks) + " in contiguous blocks";
  }
  if (uint64_t pinned = pinned_granules(); pinned != 0) {
    text += ", " + size_text(pinned * kGranule) + " pinned for others, out of stitching";
  }
  if (cached != 0) text += ", " + size_text(cached) + " in thread caches";
  if (limbo != 0) text += ", " + size_text(limbo) + " waiting for recorded streams";
  return text;
}

// It begins as PyTorch's does, which other software looks for. A contiguous block takes whole
// granules, and room for new ones: none that is held can be its part.
Error DeviceAllocator::out_of_memory(const Request& r, bool contiguous) {
  Bytes driver_free = 0;
  Growth grow = growth(&driver_free);
  bool guarded = debug() != nullptr && pool_ == nullptr && !contiguous;
  Bytes guards = guarded ? debug()->overhead() : 0;
  Bytes fits = contiguous ? grow.now.bytes() : largest_fit(r, grow.now);
  Bytes needed = contiguous ? round_up(r.size, kGranule) : r.size;
  std::string text = "CUDA out of memory. Tried to allocate " + size_text(r.requested - guards) +
                     (contiguous ? ", which is " + size_text(needed) + " in whole granules," : "") +
                     " on device " + std::to_string(device_) + "; limit " +
                     size_text(limit_.bytes()) + " of " + size_text(total_memory_) +
                     ", held from the driver " + size_text(physical().bytes());
  if (grow.driver < grow.limit) text += driver_text(driver_free);
  if (Bytes debt = owed().bytes(); debt != 0) {
    text += "; " + size_text(debt) + " of it owed: the driver refuses to take it back (" +
            shared_.refusals.text() + "), glake_empty_cache() tries again";
  }
  if (Bytes kept = kept_mapped().bytes(); kept != 0) {
    text += "; " + size_text(kept) +
            " of it idle and still mapped: the driver refused to unmap it (" +
            shared_.refusals.text() + ")";
  }
  auto live = static_cast<Bytes>(stats_.requested_bytes.all.current - stats_.waiting_requested);
  text += "; live " + size_text(live) + " in " +
          counted(static_cast<uint64_t>(stats_.allocation.all.current), "block");
  Tickets pending;
  std::vector<Run> runs;
  granules_.new_mark();
  text += idle_text(collect(r, whole_free(), Wait::kAllowed, runs, &pending));
  Bytes callers = fits - std::min(fits, guards);
  text += "; largest fit now " + size_text(callers) + " (" + std::to_string(callers) + " bytes). ";
  return Error(GLAKE_OUT_OF_MEMORY, text + pools_text() + advice(needed, fits, grow));
}

// What would let a request of so many bytes through, of which now `fits` would.
std::string DeviceAllocator::advice(Bytes needed, Bytes fits, const Growth& growth) const {
  if (Granules::floor(total_memory_) < Granules::ceil(needed)) {
    return "This request is larger than the device and can never fit: use a smaller batch, or "
           "more devices.";
  }
  Bytes short_by = needed > fits ? round_up(needed - fits, kGranule) : kGranule;
  Bytes above = round_down(total_memory_ - limit_.bytes(), kGranule);
  Granules more = growth.driver - growth.now;  // that the driver has above the limit
  Bytes raise = std::min(above, more.bytes());
  if (short_by <= raise) {
    return "Raising GLAKE_LIMIT by " + size_text(short_by) + " would let this request through.";
  }
  const char* where = captured_ ? " on its stream" : "";
  if (limit_ < Granules::ceil(needed)) {
    // Whatever is freed under this limit, it is too low.
    return "Raise GLAKE_LIMIT by " + size_text(above) + " and free about " +
           size_text(short_by - raise) + where + ", or use a smaller batch.";
  }
  if (Granules::ceil(short_by) <= shared_.withheld && driver_full_) {
    return "The driver refuses memory that it reports free: ask for less, or try again after "
           "glake_empty_cache().";
  }
  return "Free about " + size_text(short_by) + where + ", or use a smaller batch.";
}

// Who else on the device holds memory, and how to get at it.
std::string DeviceAllocator::pools_text() {
  std::string text;
  for (DeviceAllocator* heap : heaps()) {
    Bytes bytes = heap->granules_.own().bytes();
    if (heap == this || bytes == 0) continue;
    Bytes idle = heap->small_->free_bytes() + heap->large_->free_bytes();
    const Pool* pool = heap->pool_.get();
    text += text.empty() ? "Besides, " : ", ";
    if (pool == nullptr) {
      text += "the device's own memory holds ";
    } else {
      for (const Whole& w : pool->whole) idle += w.block->size;
      text += "private pool {" + std::to_string(pool->id.first) + ", " +
              std::to_string(pool->id.second) + "} holds ";
    }
    text += size_text(bytes) + " (" + size_text(idle) + " idle";
    if (pool != nullptr && heap->captured_) text += ", kept for CUDA graphs";
    if (pool != nullptr && pool->users != 0) text += ", users " + std::to_string(pool->users);
    text += ")";
  }
  if (text.empty()) return "";
  return text + ": ending graphs and pools that are no longer needed gives theirs back. ";
}

}  // namespace glake
