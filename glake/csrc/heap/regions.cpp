// Pausing and resuming a private pool: the books. The copies between (process_regions.cpp) are made
// with no lock held; while they are, the pool's state keeps everybody from its memory.
#include "heap/regions.h"

#include <algorithm>

#include "heap/device_allocator.h"
#include "watch/watch.h"

namespace glake {

RegionBook& RegionBook::instance() {
  static auto* const book = new RegionBook;
  return *book;
}

PoolId RegionBook::pool_of(const std::string& name) {
  std::lock_guard<std::mutex> guard(mutex_);
  for (size_t i = 0; i < names_.size(); ++i) {
    if (names_[i].name == name) return {kRegions, i + 1};
  }
  names_.emplace_back();
  names_.back().name = name;
  return {kRegions, names_.size()};
}

RegionName* RegionBook::find(PoolId id) {
  std::lock_guard<std::mutex> guard(mutex_);
  const bool ours = id.first == kRegions && id.second != 0 && id.second <= names_.size();
  return ours ? &names_[id.second - 1] : nullptr;
}

std::vector<PoolId> RegionBook::all() {
  std::lock_guard<std::mutex> guard(mutex_);
  std::vector<PoolId> ids;
  for (size_t i = 0; i < names_.size(); ++i) ids.emplace_back(kRegions, i + 1);
  return ids;
}

std::string RegionBook::text(PoolId id) {
  if (const RegionName* region = find(id)) return "region \"" + region->name + "\"";
  return "pool {" + std::to_string(id.first) + ", " + std::to_string(id.second) + "}";
}

namespace {

[[noreturn]] void refuse(const std::string& text) { throw Error(GLAKE_REGION_REFUSED, text); }

}  // namespace

std::string DeviceAllocator::region_text() const {
  return RegionBook::instance().text(pool_->id) + " on " + device_text(device_);
}

Granules DeviceAllocator::budget_room() const {
  const Bytes budget =
      pool_ != nullptr && pool_->region != nullptr ? pool_->region->budget.load() : 0;
  if (budget == 0) return Granules::floor(UINT64_MAX);
  const Granules most = Granules::floor(budget), own = granules_.own();
  return own < most ? most - own : Granules{0};
}

void DeviceAllocator::require_resumed() const {
  if (paused() == nullptr) return;
  throw Error(GLAKE_REGION_PAUSED,
              region_text() + " is paused" +
                  (paused()->state == PauseState::kPaused
                       ? ": resume it (glake_region_resume) first"
                       : ", or on its way to or from it: allocate afterwards"));
}

// Why the heap may not be paused; it throws.
void DeviceAllocator::require_pausable() {
  const std::string text = region_text() + " cannot be paused: ";
  if (paused() != nullptr) {
    refuse(text + (paused()->state == PauseState::kPaused
                       ? "it is paused already"
                       : "another thread is pausing or resuming it"));
  }
  if (clock_.any_capturing()) {
    refuse(text +
           "a stream is being captured, and the device cannot be waited for; pause after "
           "the capture's end");
  }
  if (uint64_t pinned = pins_.granules(); pinned != 0) {
    refuse(
        text + size_text(pinned * kGranule) +
        " of it are pinned where they are, for NCCL, a network card or another process; end that "
        "use and glake_unpin() first");
  }
  for (const auto& [ptr, b] : pool_->blocks) {
    if (b->share == 0) continue;
    refuse(text + "the block at " + hex(ptr) +
           " may be opened by other processes (glake_ipc_share); free it first");
  }
  if (pool_->lent != 0) {
    refuse(text + counted(pool_->lent, "block") +
           " of it have been lent to other pools (GLAKE_POOL_USE_ON_OOM); free them first");
  }
}

std::vector<SavedPart> DeviceAllocator::begin_pause(PoolId id) {
  std::lock_guard<FairMutex> slow(slow_);
  DeviceScope scope(driver_, device_);
  require(scope.status(), "to make its context current");
  HotGuard hot(hot_);
  DeviceAllocator& heap = need_pool(id);
  heap.require_pausable();
  heap.pool_->paused = std::make_unique<PausedHeap>();
  try {
    settle(hot);
    require(synchronize(hot), "to be synchronised to pause a region");
    if (heap.started_) {
      heap.trim_idle(true, hot);
      heap.list_homes();
    }
  } catch (...) {
    heap.pool_->paused.reset();
    throw;
  }
  return heap.bytes_to_save();
}

// All that the heap has mapped.
void DeviceAllocator::list_homes() {
  PausedHeap& p = *pool_->paused;
  for (Arena* arena : {small_.get(), large_.get()}) {
    for (uint64_t g = 0; g < arena->granule_count(); ++g) {
      if (granules_.handle(*arena, g) == 0) continue;
      const bool next = !p.homes.empty() && p.homes.back().run.arena == arena &&
                        p.homes.back().run.granule + p.homes.back().run.count == g;
      if (!next) p.homes.push_back({{arena, g, 0, 0}});
      PausedHeap::Home& home = p.homes.back();
      home.held = home.mapped = ++home.run.count;
    }
  }
  for (View* view : views_.recent_first()) {
    if (view->owed) {
      throw Error(GLAKE_MEMORY_OWED, region_text() +
                                         " cannot be paused: the driver refuses to undo an earlier "
                                         "mapping (" +
                                         shared_.refusals.text() +
                                         "); glake_empty_cache() tries again");
    }
    p.views.push_back({view, view->length.count});
  }
}

// Live blocks. A graph may read what was written into memory that has been freed since: of a
// captured pool, all.
std::vector<SavedPart> DeviceAllocator::bytes_to_save() {
  std::vector<SavedPart> parts;
  PausedHeap& p = *pool_->paused;
  p.whole = captured_;
  for (const PausedHeap::Home& h : p.homes) {
    if (p.whole) parts.push_back({h.run.arena->granule_at(h.run.granule), h.run.count * kGranule});
  }
  if (p.whole) return parts;
  for (const auto& [ptr, b] : pool_->blocks) {
    // Small neighbours, with what lies between them, are one copy.
    parts.push_back({ptr, b->small() ? b->size : b->requested, 0, true});
  }
  return parts;
}

void DeviceAllocator::cancel_pause(PoolId id) {
  HotGuard hot(hot_);
  need_pool(id).pool_->paused.reset();
  clock_.note_unticketed();  // a copy that failed may still read
}

// The bytes are saved: the granules go. After GLAKE_MEMORY_OWED it is paused, after other errors it
// is in use as before.
void DeviceAllocator::finish_pause(PoolId id, std::unique_ptr<SavedBytes> saved) {
  std::lock_guard<FairMutex> slow(slow_);
  DeviceScope scope(driver_, device_);
  HotGuard hot(hot_);
  DeviceAllocator& heap = need_pool(id);
  const std::string text = heap.region_text();
  if (!scope.status().ok()) heap.pool_->paused.reset();
  require(scope.status(), "to make its context current");
  PausedHeap& p = *heap.pool_->paused;
  hot.unlock();
  const bool unmapped = heap.unmap_homes();
  // Put back: nobody has seen that anything was gone. If that is refused too, it stays paused.
  const bool back = !unmapped && heap.map_homes().ok();
  hot.lock();
  if (back) {
    heap.pool_->paused.reset();
    throw Error(GLAKE_DRIVER_ERROR, "the driver refused to unmap " + text +
                                        ", which is in use as "
                                        "before: " +
                                        shared_.refusals.text());
  }
  p.saved = std::move(saved);
  p.state = PauseState::kPaused;
  heap.tell_paused(true);
  heap.give_homes(hot);
  const Bytes held = p.held().bytes(), owed = this->owed_bytes();
  heap.drop_freed();
  end_pools();
  if (held == 0 && owed == 0) return;
  throw Error(GLAKE_MEMORY_OWED, text + " is paused, but the driver refused to take back " +
                                     size_text(held + owed) + " of the device's memory. It said " +
                                     shared_.refusals.text() +
                                     ". Nothing is lost: glake_empty_cache() tries again");
}

// True if nothing is mapped any more. Driver calls: hot_ is not held here, nor in the next two.
bool DeviceAllocator::unmap_homes() {
  bool all = true;
  auto unmap = [&](Address at, uint64_t* mapped) {
    if (*mapped == 0) return;
    Status s = shared_.refusals.note("cuMemUnmap", driver_.unmap(at, *mapped * kGranule));
    if (s.ok()) *mapped = 0;
    all = all && s.ok();
  };
  PausedHeap& p = *pool_->paused;
  for (PausedHeap::Seen& seen : p.views) unmap(seen.view->base, &seen.mapped);
  for (PausedHeap::Home& h : p.homes) unmap(h.run.arena->granule_at(h.run.granule), &h.mapped);
  return all;
}

// Goes on where the last refusal left it.
Status DeviceAllocator::map_homes() {
  PausedHeap& p = *pool_->paused;
  for (PausedHeap::Home& h : p.homes) {
    const Arena& arena = *h.run.arena;
    for (; h.held < h.run.count; ++h.held) {
      Status s = granules_.create(arena, h.run.granule + h.held);
      if (!s.ok()) return s;
    }
    for (; h.mapped < h.run.count; ++h.mapped) {
      Status s = granules_.map(arena, h.run.granule + h.mapped);
      if (!s.ok()) return s;
    }
    Status s = grant(arena.granule_at(h.run.granule), h.run.count);
    if (!s.ok()) return s;
  }
  for (PausedHeap::Seen& seen : p.views) {
    View& view = *seen.view;
    for (const Run& run : view.runs) {
      for (uint64_t i = 0; i < run.count; ++i) {
        if (run.at + i < seen.mapped) continue;
        Status s = driver_.map(view.base + seen.mapped * kGranule,
                               granules_.handle(*run.arena, run.granule + i));
        if (!s.ok()) return shared_.refusals.note("cuMemMap", s);
        ++seen.mapped;
      }
    }
    Status s = grant(view.base, view.length.count);
    if (!s.ok()) return s;
  }
  return {};
}

Status DeviceAllocator::grant(Address at, uint64_t granules) {
  if (granules == 0) return {};
  return shared_.refusals.note("cuMemSetAccess",
                               driver_.set_access(at, granules * kGranule, granules_.grants()));
}

// Gives back what a paused heap still holds, as far as the driver takes it. A handle is given up
// once nothing maps it.
void DeviceAllocator::give_homes(HotGuard& hot) {
  PausedHeap& p = *pool_->paused;
  Granules given[2]{{0}, {0}};
  hot.unlock();
  unmap_homes();
  auto gone = [](const PausedHeap::Seen& seen) { return seen.mapped == 0; };
  const bool views_gone = std::all_of(p.views.begin(), p.views.end(), gone);
  for (PausedHeap::Home& h : p.homes) {
    if (!views_gone || h.mapped != 0 || h.held == 0) continue;
    granules_.release(*h.run.arena, h.run.granule, Granules{h.held});
    Granules& sum = given[h.run.arena == small_.get() ? 1 : 0];
    sum = sum + Granules{h.held};
    h.held = 0;
  }
  hot.lock();
  p.missing = p.granules() - p.held();
  for (int small : {0, 1}) {
    stats_.reserved_bytes.subtract(small == 1, static_cast<int64_t>(given[small].bytes()));
  }
  if ((given[0] + given[1]).count != 0) forget_refusals(given[0] + given[1]);
}

// To those who follow events: blocks leave their views, and memory its place; or both come back.
void DeviceAllocator::tell_paused(bool paused) {
  auto stitched = [&] {
    blocks_.for_each([&](const Block& b) {
      if (b.device == this && b.view != nullptr) show_stitched(b.pieces, b.ptr, b.size, !paused);
    });
  };
  if (paused) stitched();
  for (const PausedHeap::Home& h : pool_->paused->homes) {
    const Address at = h.run.arena->granule_at(h.run.granule);
    Watch::event(paused ? GLAKE_SEGMENT_UNMAP : GLAKE_SEGMENT_MAP, device_, at,
                 h.run.count * kGranule);
  }
  if (!paused) stitched();
}

// What has been freed while its heap was paused is memory that need not come back. Under both
// locks, as the books of the granules are without hot_ elsewhere.
void DeviceAllocator::drop_freed() {
  PausedHeap* p = paused();
  if (p == nullptr || p->state != PauseState::kPaused) return;
  thaw();
  if (captured_ || (p->whole && live_ != 0)) return;
  drain_pending(Wait::kNo);
  drain_whole();
  auto idle = [&](const PausedHeap::Seen& seen) {
    View* view = seen.view;
    if (view->live != 0 || seen.mapped != 0) return false;
    add_aliases(view->runs, -1);
    view_space_->give(view->base, view->capacity);
    views_.remove(view);
    return true;
  };
  p->views.erase(std::remove_if(p->views.begin(), p->views.end(), idle), p->views.end());
  std::vector<PausedHeap::Home> kept;
  for (const PausedHeap::Home& h : p->homes) {
    Arena& arena = *h.run.arena;
    const uint64_t end = h.run.granule + h.run.count;
    auto free = [&](uint64_t g) {
      return h.held == 0 && arena.whole_free(g) && granules_.aliases(arena, g) == 0;
    };
    for (uint64_t g = h.run.granule, n = 0; g < end; g += n) {
      const bool drops = free(g);
      for (n = 1; g + n < end && free(g + n) == drops; ++n) {
      }
      if (drops) {
        const Address at = arena.granule_at(g);
        arena.disclaim(arena.take(arena.extent_at_prefix(g), at, n * kGranule));
      } else {
        kept.push_back({{&arena, g, n, 0}, h.held, h.mapped});
      }
    }
  }
  p->homes.swap(kept);
  p->missing = p->granules() - p->held();
  if (p->homes.empty() && p->views.empty()) pool_->paused.reset();
}

// While a heap is paused, what trim_all() does.
void DeviceAllocator::trim_paused(bool synced, HotGuard& hot) {
  drop_freed();
  const bool waits = paused() != nullptr && paused()->state == PauseState::kPaused;
  if (!waits || paused()->held().count == 0 || (paused()->pending && !synced)) return;
  paused()->pending = false;
  give_homes(hot);
  drop_freed();
}

// Has the granules again, all mapped where they were, or throws and is paused as before.
DeviceAllocator::Resumed DeviceAllocator::begin_resume(PoolId id) {
  std::lock_guard<FairMutex> slow(slow_);
  DeviceScope scope(driver_, device_);
  require(scope.status(), "to make its context current");
  HotGuard hot(hot_);
  DeviceAllocator& heap = need_pool(id);
  const std::string text = heap.region_text();
  if (heap.paused() == nullptr) refuse(text + " is not paused");
  if (heap.paused()->state != PauseState::kPaused) {
    refuse(text + " cannot be resumed: another thread is pausing or resuming it");
  }
  if (clock_.any_capturing()) {
    refuse(text + " cannot be resumed while a stream is being captured; resume after its end");
  }
  settle(hot);
  heap.drop_freed();
  if (heap.paused() == nullptr) {
    end_pools();
    return {};
  }
  if (heap.paused()->pending) require(synchronize(hot), "to be synchronised to resume a region");
  heap.paused()->pending = false;
  heap.map_again(hot);
  PausedHeap& p = *heap.paused();
  p.state = PauseState::kFilling;
  Resumed resumed{p.saved.get(), p.whole, {}};
  for (const auto& [ptr, b] : heap.pool_->blocks) resumed.live.emplace_back(ptr, ptr + b->size);
  return resumed;
}

void DeviceAllocator::map_again(HotGuard& hot) {
  PausedHeap& p = *pool_->paused;
  Granules before[2]{{0}, {0}}, after[2]{{0}, {0}};
  auto held = [&](Granules* sums) {
    for (const PausedHeap::Home& h : p.homes) {
      Granules& sum = sums[h.run.arena == small_.get() ? 1 : 0];
      sum = sum + Granules{h.held};
    }
  };
  auto missing = [&] { return p.granules() - p.held(); };
  auto lacks = [&] { return device_room() < missing() ? missing() - device_room() : Granules{0}; };
  auto reclaim = [&](Granules want) {
    reclaim_elsewhere({want.bytes(), want.bytes(), clock_.id_of(0)}, hot);
  };
  if (lacks().count != 0) trim_contiguous(hot);
  if (lacks().count != 0) reclaim(lacks());
  if (lacks().count != 0 && synchronize(hot).ok()) reclaim(lacks());
  if (lacks().count != 0) throw cannot_resume("", missing(), lacks());
  held(before);
  Status s;
  for (int tries = 0; tries < 2; ++tries) {
    hot.unlock();
    s = map_homes();
    hot.lock();
    if (s.ok() || !s.out_of_memory() || tries != 0) break;
    // The driver has less than the limit allows: what is idle elsewhere goes first.
    trim_contiguous(hot);
    if (synchronize(hot).ok()) reclaim(missing() + Granules{1});
  }
  held(after);
  for (int small : {0, 1}) {
    stats_.reserved_bytes.add(small == 1,
                              static_cast<int64_t>((after[small] - before[small]).bytes()));
  }
  p.missing = p.granules() - p.held();
  if (s.ok()) return;
  const Granules had = missing();
  give_homes(hot);
  if (s.out_of_memory()) {
    throw cannot_resume(driver_.describe(s), missing(), std::max(had, Granules{1}));
  }
  throw Error(
      GLAKE_DRIVER_ERROR,
      region_text() + " stays paused, as the driver refused to map it: " + driver_.describe(s));
}

Error DeviceAllocator::cannot_resume(const std::string& said, Granules needs, Granules lacks) {
  ++stats_.ooms;
  return Error(GLAKE_OUT_OF_MEMORY,
               "CUDA out of memory. Tried to resume " + region_text() + ", which needs " +
                   size_text(needs.bytes()) + "; limit " + size_text(limit_.bytes()) + " of " +
                   size_text(total_memory_) + ", held from the driver " +
                   size_text(physical().bytes()) +
                   (said.empty() ? "" : ", which has no more: it said " + said) +
                   ". The region stays paused, and what was saved of it is kept. " + pools_text() +
                   "Free about " + size_text(lacks.bytes()) + ", or " +
                   (said.empty() ? "raise GLAKE_LIMIT" : "end what else uses the GPU") +
                   ", and resume again.");
}

void DeviceAllocator::end_resume(PoolId id) {
  std::unique_ptr<PausedHeap> over;
  HotGuard hot(hot_);
  DeviceAllocator& heap = need_pool(id);
  heap.tell_paused(false);
  over = std::move(heap.pool_->paused);
  hot.unlock();  // what was saved is given up without it
}

void DeviceAllocator::cancel_resume(PoolId id) {
  std::lock_guard<FairMutex> slow(slow_);
  DeviceScope scope(driver_, device_);
  HotGuard hot(hot_);
  DeviceAllocator& heap = need_pool(id);
  heap.paused()->state = PauseState::kPaused;
  heap.paused()->pending = true;
  if (!scope.status().ok() || !synchronize(hot).ok()) return;
  heap.paused()->pending = false;
  heap.give_homes(hot);
}

// This device's regions, and other pools that are paused.
std::vector<RegionInfo> DeviceAllocator::regions() {
  HotGuard hot(hot_);
  std::vector<RegionInfo> all;
  for (auto& [id, heap] : shared_.pools) {
    const PausedHeap* p = heap->paused();
    if (heap->pool_->region == nullptr && p == nullptr) continue;
    RegionInfo info;
    info.pool = id;
    for (const auto& [ptr, b] : heap->pool_->blocks) info.live += b->size;
    info.blocks = heap->pool_->blocks.size();
    info.reserved = heap->granules_.own().bytes();
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

Granules DeviceAllocator::paused_granules() {
  Granules all{0};
  for (DeviceAllocator* heap : heaps()) {
    if (const PausedHeap* p = heap->paused()) all = all + p->missing;
  }
  return all;
}

}  // namespace glake
