#include "heap/regions.h"

#include "driver/device_scope.h"
#include "heap/mapping_turn.h"
#include "heap/neighbours.h"
#include "heap/pause.h"
#include "heap/pools.h"
#include "heap/trim.h"
#include "memory/fair_mutex.h"

namespace glake {

std::vector<SavedPart> Regions::begin_pause(PoolId id) {
  MappingTurn turn(device_);
  HotGuard hot(device_.hot);
  Heap& heap = Pools(device_).need(id);
  Pause(heap).require_pausable();
  heap.pool->paused = std::make_unique<PausedHeap>();
  try {
    device_.settle(hot);
    device_.require(device_.synchronize(hot), "to be synchronised to pause a region");
    if (heap.started) {
      Trim(heap).idle(true, hot);
      Pause(heap).list_homes();
    }
  } catch (...) {
    heap.pool->paused.reset();
    throw;
  }
  return Pause(heap).bytes_to_save();
}

void Regions::finish_pause(PoolId id, std::unique_ptr<SavedBytes> saved) {
  std::lock_guard<FairMutex> slow_guard(device_.slow);
  DeviceScope scope(device_.driver, device_.number);
  HotGuard hot(device_.hot);
  Heap& heap = Pools(device_).need(id);
  const std::string text = Pause(heap).text();
  if (!scope.status().ok()) heap.pool->paused.reset();
  device_.require(scope.status(), "to make its context current");
  PausedHeap& p = *heap.pool->paused;
  hot.unlock();
  const bool unmapped = Pause(heap).unmap_homes();
  // Puts everything back. Nobody has seen that anything was gone. If that is refused too, the pool
  // stays paused.
  const bool back = !unmapped && Pause(heap).map_homes().ok();
  hot.lock();
  if (back) {
    heap.pool->paused.reset();
    throw Error(GLAKE_DRIVER_ERROR, "the driver refused to unmap " + text +
                                        ", which is in use as "
                                        "before: " +
                                        device_.refusals.text());
  }
  p.saved = std::move(saved);
  p.state = PauseState::kPaused;
  Pause(heap).tell(true);
  Pause(heap).give_homes(hot);
  const Bytes held = p.held().bytes(), owed = device_.memory.owed_bytes();
  Pause(heap).drop_freed();
  Pools(device_).end_unused();
  if (held == 0 && owed == 0) return;
  throw Error(GLAKE_MEMORY_OWED, text + " is paused, but the driver refused to take back " +
                                     size_text(held + owed) + " of the device's memory. It said " +
                                     device_.refusals.text() +
                                     ". Nothing is lost: emptying the cache "
                                     "(torch.cuda.empty_cache(), glake_empty_cache()) tries again");
}

void Regions::cancel_pause(PoolId id) {
  HotGuard hot(device_.hot);
  Pools(device_).need(id).pool->paused.reset();
  device_.clock.note_unticketed();  // a copy that failed may still read
}

Regions::Resumed Regions::begin_resume(PoolId id) {
  return Neighbours::helped(device_, [&] { return map_again(id); });
}

Regions::Resumed Regions::map_again(PoolId id) {
  MappingTurn turn(device_);
  HotGuard hot(device_.hot);
  Heap& heap = Pools(device_).need(id);
  const std::string text = Pause(heap).text();
  if (heap.paused() == nullptr) Pause::refuse(text + " is not paused");
  if (heap.paused()->state != PauseState::kPaused) {
    Pause::refuse(text + " cannot be resumed: another thread is pausing or resuming it");
  }
  if (device_.clock.any_capturing()) {
    Pause::refuse(text +
                  " cannot be resumed while a stream is being captured; resume after its end");
  }
  device_.settle(hot);
  Pause(heap).end_if_empty();
  if (heap.paused() == nullptr) {
    Pools(device_).end_unused();
    return {};
  }
  if (heap.paused()->pending)
    device_.require(device_.synchronize(hot), "to be synchronised to resume a region");
  heap.paused()->pending = false;
  Pause(heap).map_again(hot);
  PausedHeap& p = *heap.paused();
  p.state = PauseState::kFilling;
  Resumed resumed{p.saved.get(), p.whole, {}};
  for (const auto& [ptr, b] : heap.pool->blocks) resumed.live.emplace_back(ptr, ptr + b->size);
  return resumed;
}

void Regions::end_resume(PoolId id) {
  std::unique_ptr<PausedHeap> over;
  HotGuard hot(device_.hot);
  Heap& heap = Pools(device_).need(id);
  Pause(heap).tell(false);
  over = std::move(heap.pool->paused);
  hot.unlock();  // the saved bytes are given up without the lock
}

void Regions::cancel_resume(PoolId id) {
  std::lock_guard<FairMutex> slow_guard(device_.slow);
  DeviceScope scope(device_.driver, device_.number);
  HotGuard hot(device_.hot);
  Heap& heap = Pools(device_).need(id);
  heap.paused()->state = PauseState::kPaused;
  heap.paused()->pending = true;
  if (!scope.status().ok() || !device_.synchronize(hot).ok()) return;
  heap.paused()->pending = false;
  Pause(heap).give_homes(hot);
}

void Regions::drop_freed() {
  if (!PausedHeap::any()) return;
  std::vector<SavedBytes::Place> unwanted;  // declared first, to end after the locks are released
  std::lock_guard<FairMutex> slow_guard(device_.slow);
  HotGuard hot(device_.hot);
  for (auto& [id, heap] : device_.heaps.pools()) {
    Pause(*heap).drop_freed();
    Pause(*heap).drop_saved(unwanted);
  }
}

std::vector<RegionInfo> Regions::list() {
  drop_freed();
  HotGuard hot(device_.hot);
  std::vector<RegionInfo> all;
  for (auto& [id, heap] : device_.heaps.pools()) {
    const PausedHeap* p = heap->paused();
    if (heap->pool->region == nullptr && p == nullptr) continue;
    RegionInfo info;
    info.pool = id;
    for (const auto& [ptr, b] : heap->pool->blocks) info.live += b->size;
    info.blocks = heap->pool->blocks.size();
    info.reserved = heap->granules.own().bytes();
    if (p != nullptr) {
      info.paused = p->missing.bytes();
      info.state = p->state == PauseState::kPaused ? 1 : 2;
      if (p->saved != nullptr) {
        info.to = p->saved->to();
        info.saved = p->saved->bytes();
      }
    }
    all.push_back(info);
  }
  return all;
}

Granules Regions::paused_granules() {
  Granules all{0};
  for (Heap* heap : device_.heaps.started()) {
    if (const PausedHeap* p = heap->paused()) all = all + p->missing;
  }
  return all;
}

}  // namespace glake
