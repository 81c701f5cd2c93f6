#include "heap/reclaim.h"

#include <algorithm>

#include "driver/device_scope.h"
#include "heap/contiguous_blocks.h"
#include "heap/frees.h"
#include "heap/mapping_turn.h"
#include "heap/out_of_memory.h"
#include "heap/pools.h"
#include "heap/trim.h"

namespace glake {

void Reclaim::empty_cache() {
  MappingTurn turn(device_);
  HotGuard hot(device_.hot);
  // A caller who gives memory back wants less of it to be held. So what was live before no longer
  // says how much may be held before waits come first.
  for (Heap* heap : device_.heaps.started()) heap->most_live = 0;
  give_back(hot);
  require_all_given();
}

void Reclaim::claim_outside(int64_t bytes) {
  MappingTurn turn(device_);
  HotGuard hot(device_.hot);
  if (bytes <= 0) {
    device_.memory.end_claim(static_cast<Bytes>(-bytes));
    return;
  }
  auto more = static_cast<Bytes>(bytes);
  auto fits = [&] { return device_.memory.may_claim(more); };
  if (!fits()) ContiguousBlocks(device_).trim(hot);
  if (!fits()) give_back_idle(hot);
  if (!fits()) {
    ++device_.stats.ooms;
    throw OutOfMemory(device_.heaps.own())
        .error({round_up(more, kAlignment), more, 0}, {GLAKE_CONTIGUOUS_VMM, false, true}, hot);
  }
  device_.memory.claim(more);
}

Granules Reclaim::give_some(Granules want) {
  std::vector<EventId> work;
  const Granules given = give_now(want, &work);
  if (!(given < want)) return given;
  {
    // No lock is held. The work may last long, and may wait for what other threads do next.
    DeviceScope scope(device_.driver, device_.number);
    if (!scope.status().ok()) return given;
    for (const EventId mark : work) device_.driver.wait_host(mark);
  }
  return given + give_now(want - given, nullptr);
}

Granules Reclaim::give_now(Granules want, std::vector<EventId>* work) {
  MappingTurn turn(device_);
  HotGuard hot(device_.hot);
  device_.clock.poll();
  const Granules before = device_.memory.physical();
  auto given = [&] {
    device_.settle(hot);
    return before - std::min(before, device_.memory.physical());
  };
  ContiguousBlocks(device_).trim(hot);
  for (Heap* heap : device_.heaps.started()) {
    if (given() < want && heap->gives_back()) Trim(*heap).shrink(want - given(), hot);
  }
  Pools(device_).end_unused();
  if (work != nullptr && given() < want) *work = device_.clock.last_marks();
  return given();
}

void Reclaim::give_back(HotGuard& hot) {
  device_.refusals.count_anew();
  device_.settle(hot);
  Frees(device_.heaps.own()).drain_caches(true);
  Frees(device_.heaps.own()).drain_pending(Wait::kAllowed);
  // While a graph is captured, nothing may wait for the device. Work that is not known to be
  // complete stays.
  bool synced = !device_.clock.any_capturing();
  if (synced) device_.require(device_.synchronize(hot), "to be synchronised for empty_cache");
  ContiguousBlocks(device_).trim(hot);
  trim_heaps(synced, hot);
}

void Reclaim::give_back_idle(HotGuard& hot) {
  Frees(device_.heaps.own()).drain_caches(true);
  Frees(device_.heaps.own()).drain_pending(Wait::kAllowed);
  const bool captures = device_.clock.any_capturing();
  trim_heaps(device_.wait_for_work(hot) && !captures, hot);
}

void Reclaim::trim_heaps(bool synced, HotGuard& hot) {
  for (Heap* heap : device_.heaps.started()) {
    if (heap->gives_back()) Trim(*heap).all(synced, hot);
  }
  Pools(device_).end_unused();
}

Granules Reclaim::kept_mapped() {
  Granules idle{0};
  for (Heap* heap : device_.heaps.started()) idle = idle + heap->whole_free();
  return std::min(device_.refusals.kept(), idle);
}

void Reclaim::require_all_given() {
  Bytes owed_bytes = device_.memory.owed_bytes();
  Bytes kept = kept_mapped().bytes();
  Bytes addresses = device_.memory.owed_addresses();
  if (owed_bytes == 0 && kept == 0 && addresses == 0) return;
  const std::string reserved =
      addresses == 0 ? "" : ", and " + size_text(addresses) + " of addresses stay reserved";
  throw Error(
      GLAKE_MEMORY_OWED,
      "the driver refused to take back " + size_text(owed_bytes + kept) + " of " +
          device_text(device_.number) + ": " + size_text(owed_bytes) +
          " are owed (in no segment: glake.owed_bytes), " + size_text(kept) +
          " stay mapped (in reserved bytes) and serve later requests" + reserved + ". It said " +
          device_.refusals.text() +
          ". Nothing is lost: owed memory is used again before new memory is asked for. "
          "Empty the cache again (torch.cuda.empty_cache(), glake_empty_cache()) to give it back");
}

}  // namespace glake
