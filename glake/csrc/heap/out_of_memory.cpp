#include "heap/out_of_memory.h"

#include <algorithm>

#include "heap/pause.h"
#include "heap/reclaim.h"
#include "heap/sharing.h"
#include "heap/stitch.h"

namespace glake {

// Says that the driver refused to map the idle granules side by side, although there are enough of
// them. "" if it did not refuse.
std::string OutOfMemory::stitch_text(Granules idle) const {
  const DriverShortage& shortage = device_.shortage;
  if (!shortage.refused_view() || !(shortage.most_in_view() < idle)) return "";
  return ", which the driver refused to map side by side (it said " + shortage.view_said() + ")";
}

// Says who holds the device's memory when the driver has no more to give.
std::string OutOfMemory::driver_text(Bytes driver_free, const GrowthRoom& growth) const {
  std::string text = line("the driver has no more");
  // The driver gave this much and refused the next granule. What it gave is given back by now.
  if (growth.driver.count != 0) text += " than " + size_text(growth.driver.bytes());
  if (!growth.said.empty()) text += ", and answered a request for more with " + growth.said;
  Bytes held = device_.memory.physical().bytes();
  text += line("it reports " + size_text(driver_free) + " free");
  if (growth.kept.count != 0) {
    text += ", of which " + size_text(growth.kept.bytes()) + " are headroom for others";
  }
  if (driver_free + held < device_.memory.total()) {
    text += ", so " + size_text(device_.memory.total() - driver_free - held) +
            " is held outside glake: by this process's other allocations and CUDA contexts, or by "
            "other processes";
    if (device_.neighbours == nullptr) {
      text +=
          " (with GLAKE_COOPERATE=1 in each, processes of one user give back what they do not use)";
    }
  }
  return text;
}

// Says how much memory is held from the driver, and how much of it the driver refuses to take back.
std::string OutOfMemory::held_text() const {
  const std::string refusal = " (" + device_.refusals.text() + ")";
  const std::string again =
      ", emptying the cache (torch.cuda.empty_cache(), glake_empty_cache()) tries again";
  std::string text = line("limit " + size_text(device_.memory.limit().bytes()) + " of " +
                          size_text(device_.memory.total()) + ", held from the driver " +
                          size_text(device_.memory.physical().bytes()));
  if (Bytes owed = device_.memory.owed().bytes(); owed != 0) {
    text +=
        line(size_text(owed) + " of it owed: the driver refuses to take it back" + refusal + again);
  }
  if (Bytes kept = Reclaim(device_).kept_mapped().bytes(); kept != 0) {
    text += line(size_text(kept) + " of it idle and still mapped: the driver refused to unmap it" +
                 refusal);
  }
  if (Bytes imported = device_.memory.imported(); imported != 0) {
    text +=
        line("besides, " + size_text(imported) +
             " of other processes' blocks that the driver refuses to take back" + refusal + again);
  }
  if (Bytes addresses = device_.memory.owed_addresses(); addresses != 0) {
    text += line("besides, " + size_text(addresses) +
                 " of addresses that the driver refuses to take back" + refusal);
  }
  return text;
}

// Says what memory the heap has but cannot use for this request.
std::string OutOfMemory::idle_text(Granules mine) {
  Bytes whole = heap_.whole_free().bytes();
  Bytes free = heap_.large->free_bytes() + heap_.small->free_bytes();
  Bytes cached = 0, waiting = 0;
  if (heap_.rule.cached_by_threads()) {
    for (auto& c : device_.caches) cached += c->kept_bytes();
  }
  for (const PendingFree& freed : heap_.pending_frees) waiting += freed.block->size;
  const bool region = heap_.pool != nullptr && heap_.pool->region != nullptr;
  const std::string whose = region ? Pause(heap_).text() + " has idle " : "idle ";
  std::string text = line(whose + size_text(free) + ": " + size_text(whole) + " in whole granules" +
                          stitch_text(mine) + ", " + size_text(free - whole) +
                          " in parts of granules held by live blocks");
  if (heap_.rule.captured() && mine.bytes() < whole) {
    text += line(size_text(whole - mine.bytes()) +
                 " of it is kept for CUDA graphs, whose memory serves only the stream it was freed "
                 "on");
  } else if (mine.bytes() < whole && device_.clock.any_capturing()) {
    text += line(
        "of that, what was freed on a stream that is being captured serves no other stream before "
        "the capture ends");
  }
  if (device_.memory.outside() != 0) {
    text += line(size_text(device_.memory.outside()) + " of the limit taken by other allocators");
  }
  if (Bytes allocations = device_.contiguous.physical().bytes(); allocations != 0) {
    text += line(size_text(allocations) + " in contiguous blocks");
    if (Bytes pinned = device_.contiguous.cached_pinned_bytes(); pinned != 0) {
      text += " (" + size_text(pinned) +
              " of it freed but pinned: it serves requests of nearly a block's size, and "
              "unpinning (glake.unpin, glake_unpin()) gives it back)";
    }
  }
  if (uint64_t pinned = Sharing(device_).pinned_granules(); pinned != 0) {
    text += line(size_text(pinned * kGranule) + " pinned for others, out of stitching");
  }
  Bytes kept = 0;
  for (const WholeBlock& w : heap_.whole_blocks) kept += w.block->size;
  if (kept != 0) {
    text += line(size_text(kept) + " in freed blocks that its pool keeps whole");
  }
  if (cached != 0) text += line(size_text(cached) + " in thread caches");
  if (waiting != 0) text += line(size_text(waiting) + " waiting for recorded streams");
  return text;
}

// The first line begins as PyTorch's text does, because other software looks for that. A contiguous
// block consists of new granules only: none that glake already holds can be a part of it.
Error OutOfMemory::error(const Request& r, const Asked& asked, HotGuard& hot) {
  device_.settle(hot, Device::Use::kAgain);  // as the next request would do first
  const bool contiguous = asked.kind != GLAKE_STITCHED;
  const int kind = contiguous ? asked.kind : device_.options.contiguous.kind;
  const Granules below =
      contiguous ? Granules::ceil(r.size) - Granules{1} : Granules::floor(UINT64_MAX);
  Bytes driver_free = 0;
  const bool allocations_fit = contiguous || heap_.contiguous_from() != 0;
  const GrowthRoom allocations =
      allocations_fit ? LargestFit(heap_).allocation_growth(kind, below, &driver_free, hot)
                      : GrowthRoom{};
  const GrowthRoom grow = contiguous ? allocations : LargestFit(heap_).growth(&driver_free);
  Bytes needed = contiguous ? round_up(r.size, kGranule) : r.size;
  std::string text = "CUDA out of memory. Tried to allocate " + size_text(r.requested) +
                     (contiguous ? ", which is " + size_text(needed) + " in whole granules," : "") +
                     " on " + device_text(device_.number) + held_text();
  if (grow.driver < grow.limit) text += driver_text(driver_free, grow);
  auto live = static_cast<Bytes>(device_.stats.requested_bytes.all.current -
                                 device_.stats.waiting_requested);
  text += line("live " + size_text(live) + " in " +
               counted(static_cast<uint64_t>(device_.stats.allocation.all.current), "block"));
  const VirtualBook& pages = device_.heaps.own().virtuals;
  if (const Granules backed{pages.backed() - pages.shared()}; backed.count != 0) {
    text += line(size_text(backed.bytes()) + " of it in pages of " +
                 counted(pages.ranges().size(), "virtual range"));
  }
  Tickets pending;
  std::vector<GranuleRun> runs;
  heap_.granules.new_stamp();
  const Granules idle = Stitch(heap_).collect(r, heap_.whole_free(), Wait::kSure, runs, &pending);
  text += idle_text(idle);
  const Granules lacks = missing(r, asked, grow.now);
  Bytes callers = LargestFit(heap_).callers(r, asked, allocations);
  text +=
      line("largest fit now " + size_text(callers) + " (" + std::to_string(callers) + " bytes)");
  text += line(advice(needed, lacks, grow, contiguous ? Granules{0} : idle));
  if (by_budget(needed)) return Error(GLAKE_OUT_OF_MEMORY, text);
  // What the limit does not allow, nobody can give.
  const bool limited = grow.limit < grow.now + lacks;
  return Error(GLAKE_OUT_OF_MEMORY, text + pools_text(), limited ? 0 : lacks.bytes());
}

// How many granules the request needs beyond `growth`. A cached contiguous block does not count,
// because it cannot be a part of another one.
Granules OutOfMemory::missing(const Request& r, const Asked& asked, Granules growth) {
  const Granules all = Granules::ceil(r.size);
  const Bytes fits =
      asked.kind != GLAKE_STITCHED ? growth.bytes() : LargestFit(heap_).largest(r, growth);
  Granules more = Granules::ceil(std::max(r.size - std::min(fits, r.size), Bytes{1}));
  if (asked.kind != GLAKE_STITCHED) return more;
  // More than r.size less what fits may be needed. What fits now may be a pinned stretch, or the
  // two ends of one granule, and these cannot be a part of a larger block.
  for (uint64_t step = 1; more < all && LargestFit(heap_).largest(r, growth + more) < r.size;
       step *= 2) {
    more = more + Granules{step};
  }
  return std::min(more, all);
}

// Names the exact amount, so that a limit raised by it is enough. A hundredth of a GiB is several
// granules.
std::string OutOfMemory::raise_text(Bytes by, const char* then) const {
  auto mib = [](Bytes b) { return std::to_string(b / kMiB); };
  const std::string exact = by * 100 % kGiB == 0 ? size_text(by) : mib(by) + ".00 MiB";
  return "GLAKE_LIMIT by " + exact + then +
         " (GLAKE_LIMIT=" + mib(device_.memory.limit().bytes() + by) + "MiB)";
}

// Whether the region's budget refuses the request, and not what the device has. Then memory of
// others is of no use.
bool OutOfMemory::by_budget(Bytes needed) const {
  return heap_.budget_room() < device_.memory.room() &&
         heap_.budget_room() < Granules::floor(needed) + Granules{1};
}

// What the user can do to have `needed` bytes, for which `missing` more granules are enough.
std::string OutOfMemory::advice(Bytes needed, Granules missing, const GrowthRoom& growth,
                                Granules idle) const {
  if (Granules::floor(device_.memory.total()) < Granules::ceil(needed)) {
    return "This request is larger than the device and can never fit: use a smaller batch, or "
           "more devices.";
  }
  if (device_.shortage.refused_view() && !(idle + growth.now < Granules::ceil(needed))) {
    return "Memory is free, and the driver refuses to map it side by side: ask for less, or try "
           "again.";
  }
  const Bytes short_by = missing.bytes();
  if (by_budget(needed)) {
    const Bytes budget = heap_.pool->region->budget.load();
    return Pause(heap_).text() + " holds " + size_text(heap_.granules.own().bytes()) +
           " of its budget of " + size_text(budget) + ": raise the budget by " +
           size_text(short_by) + ", or free about as much of the region.";
  }
  Bytes above = round_down(device_.memory.total() - device_.memory.limit().bytes(), kGranule);
  Granules more = growth.driver - growth.now;  // what the driver has above the limit
  Bytes raise = std::min(above, more.bytes());
  const Bytes beyond = growth.above.bytes();
  if (short_by <= raise && short_by + beyond <= above) {
    return "Raising " + raise_text(short_by + beyond, " would let this request through") + ".";
  }
  if (short_by <= std::min(growth.kept, growth.limit - growth.now).bytes()) {
    // The driver may have less free than the headroom. Then that much more must be given up.
    const Bytes to = (growth.kept - missing).bytes();
    return "Lowering the headroom by " + size_text(device_.memory.headroom() - to) +
           " would let this request through (glake.headroom, GLAKE_HEADROOM=" +
           std::to_string(to / kMiB) + "MiB).";
  }
  if (short_by <= device_.memory.owed().bytes()) {
    return "emptying the cache (torch.cuda.empty_cache(), glake_empty_cache()) tries again to give "
           "back the " +
           size_text(device_.memory.owed().bytes()) + " that are owed: try after it.";
  }
  const char* where = heap_.rule.captured() ? " on its stream" : "";
  if (device_.memory.limit() < Granules::ceil(needed)) {
    // Even with everything freed, the request does not fit under this limit.
    return "Raise " + raise_text(above, "") + " and free about " + size_text(short_by - raise) +
           where + ", or use a smaller batch.";
  }
  if (Granules::ceil(short_by) <= growth.withheld) {
    return "The driver refuses memory that it reports free: do what it says above, if that names a "
           "way, or ask for less.";
  }
  // Freeing can give back the granules that blocks hold, with what is idle in them.
  if (device_.memory.physical() < device_.memory.owed() + heap_.whole_free() + missing) {
    return "Freeing all that is live here would not do, " + size_text(short_by) +
           " are missing: use a smaller batch, or end what holds the rest.";
  }
  const char* unpin =
      short_by <= device_.contiguous.cached_pinned_bytes() ? "Unpin, or free" : "Free";
  return std::string(unpin) + " about " + size_text(short_by) + where + ", or use a smaller batch.";
}

std::string OutOfMemory::pools_text() {
  std::string text, paused;
  bool may_end = false;
  for (Heap* heap : device_.heaps.started()) {
    Bytes bytes = heap->granules.own().bytes();
    if (const PausedHeap* p = heap->paused()) {
      if (heap == &heap_) continue;
      paused += line(Pause(*heap).text() + " is paused (" + size_text(p->missing.bytes()) + ")");
      continue;
    }
    if (heap == &heap_ || bytes == 0) continue;
    Bytes idle = heap->small->free_bytes() + heap->large->free_bytes();
    const Pool* pool = heap->pool.get();
    may_end = may_end || (pool != nullptr && pool->region == nullptr);
    std::string holder = "the device's own memory";
    for (const WholeBlock& w : heap->whole_blocks) idle += w.block->size;
    if (pool != nullptr) {
      holder = (pool->region == nullptr ? "private " : "") + RegionBook::instance().text(pool->id);
    }
    text += line("besides, " + holder + " holds " + size_text(bytes) + " (" + size_text(idle) +
                 " idle");
    if (heap->rule.captured()) text += ", kept for CUDA graphs";
    if (pool != nullptr && pool->users != 0) text += ", users " + std::to_string(pool->users);
    text += ')';
  }
  if (may_end) {
    text += line("ending graphs and pools that are no longer needed gives theirs back");
  }
  return text + paused;
}

}  // namespace glake
