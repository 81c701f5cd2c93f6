#include "heap/pause.h"

#include <algorithm>

#include "heap/contiguous_blocks.h"
#include "heap/frees.h"
#include "heap/lending.h"
#include "heap/out_of_memory.h"
#include "heap/pieces.h"
#include "watch/watch.h"

namespace glake {

std::string Pause::text() const {
  return RegionBook::instance().text(heap_.pool->id) + " on " + device_text(device_.number);
}

void Pause::require_resumed() const {
  if (heap_.paused() == nullptr) return;
  throw Error(GLAKE_REGION_PAUSED,
              text() + (heap_.is_paused()
                            ? " is paused: " + RegionBook::instance().way_back(heap_.pool->id) +
                                  " first, or allocate outside it"
                            : " is being paused or resumed: allocate in it afterwards"));
}

void Pause::require_pausable() {
  const std::string text = this->text() + " cannot be paused: ";
  if (heap_.paused() != nullptr) {
    refuse(text + (heap_.is_paused() ? "it is paused already"
                                     : "another thread is pausing or resuming it"));
  }
  if (device_.clock.any_capturing()) {
    refuse(text +
           "a stream is being captured, and the device cannot be waited for; pause after "
           "the capture's end");
  }
  if (uint64_t pinned = heap_.pins.granules(); pinned != 0) {
    refuse(
        text + size_text(pinned * kGranule) +
        " of it are pinned where they are, for NCCL, a network card or another process; end that "
        "use and unpin them (glake.unpin, glake_unpin()) first");
  }
  for (const auto& [ptr, b] : heap_.pool->blocks) {
    if (b->share == 0) continue;
    refuse(text + "the block at " + hex(ptr) +
           " may be opened by other processes (glake_ipc_share); free it first");
  }
  if (heap_.pool->lent != 0) {
    refuse(text + counted(heap_.pool->lent, "block") +
           " of it have been lent to other pools (GLAKE_POOL_USE_ON_OOM); free them first");
  }
}

void Pause::list_homes() {
  PausedHeap& p = *heap_.pool->paused;
  for (Arena* arena : {heap_.small.get(), heap_.large.get()}) {
    for (uint64_t g = 0; g < arena->granule_count(); ++g) {
      if (heap_.granules.handle(*arena, g) == 0) continue;
      const bool next = !p.homes.empty() && p.homes.back().run.arena == arena &&
                        p.homes.back().run.granule + p.homes.back().run.count == g;
      if (!next) p.homes.push_back({{arena, g, 0, 0}});
      PausedHeap::Home& home = p.homes.back();
      home.held = home.mapped = ++home.run.count;
    }
  }
  for (View* view : heap_.views.recent_first()) {
    if (view->owed) {
      throw Error(
          GLAKE_MEMORY_OWED,
          text() +
              " cannot be paused: the driver refuses to undo an earlier "
              "mapping (" +
              device_.refusals.text() +
              "); emptying the cache (torch.cuda.empty_cache(), glake_empty_cache()) tries again");
    }
    p.views.push_back({view, view->length.count});
  }
}

// The live blocks, or all that is mapped if freed memory may still be read.
std::vector<SavedPart> Pause::bytes_to_save() {
  std::vector<SavedPart> parts;
  PausedHeap& p = *heap_.pool->paused;
  p.whole = heap_.rule.freed_may_be_read();
  for (const PausedHeap::Home& h : p.homes) {
    if (p.whole) parts.push_back({h.run.arena->granule_at(h.run.granule), h.run.count * kGranule});
  }
  if (p.whole) return parts;
  for (const auto& [ptr, b] : heap_.pool->blocks) {
    // Small neighbouring blocks, and the bytes between them, are one copy.
    parts.push_back({ptr, b->small() ? b->size : b->requested, 0, true});
  }
  return parts;
}

bool Pause::unmap_homes() {
  bool all = true;
  auto unmap = [&](Address at, uint64_t* mapped) {
    if (*mapped == 0) return;
    Status s = device_.refusals.note("cuMemUnmap", device_.driver.unmap(at, *mapped * kGranule));
    if (s.ok()) *mapped = 0;
    all = all && s.ok();
  };
  PausedHeap& p = *heap_.pool->paused;
  for (PausedHeap::Seen& seen : p.views) unmap(seen.view->base, &seen.mapped);
  for (PausedHeap::Home& h : p.homes) unmap(h.run.arena->granule_at(h.run.granule), &h.mapped);
  return all;
}

Status Pause::map_homes() {
  PausedHeap& p = *heap_.pool->paused;
  for (PausedHeap::Home& h : p.homes) {
    const Arena& arena = *h.run.arena;
    for (; h.held < h.run.count; ++h.held) {
      Status s = heap_.granules.create(arena, h.run.granule + h.held);
      if (!s.ok()) return s;
    }
    for (; h.mapped < h.run.count; ++h.mapped) {
      Status s = heap_.granules.map(arena, h.run.granule + h.mapped);
      if (!s.ok()) return s;
    }
    Status s = grant(arena.granule_at(h.run.granule), h.run.count);
    if (!s.ok()) return s;
  }
  for (PausedHeap::Seen& seen : p.views) {
    View& view = *seen.view;
    for (const GranuleRun& run : view.runs) {
      for (uint64_t i = 0; i < run.count; ++i) {
        if (run.at + i < seen.mapped) continue;
        Status s = device_.driver.map(view.base + seen.mapped * kGranule,
                                      heap_.granules.handle(*run.arena, run.granule + i));
        if (!s.ok()) return device_.refusals.note("cuMemMap", s);
        ++seen.mapped;
      }
    }
    Status s = grant(view.base, view.length.count);
    if (!s.ok()) return s;
  }
  return {};
}

Status Pause::grant(Address at, uint64_t granules) {
  if (granules == 0) return {};
  return device_.refusals.note("cuMemSetAccess",
                               device_.driver.set_access(at, granules * kGranule, device_.grants));
}

// A handle goes back to the driver once nothing maps it.
void Pause::give_homes(HotGuard& hot) {
  PausedHeap& p = *heap_.pool->paused;
  Granules given[2]{{0}, {0}};
  hot.unlock();
  unmap_homes();
  auto gone = [](const PausedHeap::Seen& seen) { return seen.mapped == 0; };
  const bool views_gone = std::all_of(p.views.begin(), p.views.end(), gone);
  for (PausedHeap::Home& h : p.homes) {
    if (!views_gone || h.mapped != 0 || h.held == 0) continue;
    heap_.granules.release(*h.run.arena, h.run.granule, Granules{h.held});
    Granules& sum = given[h.run.arena == heap_.small.get() ? 1 : 0];
    sum = sum + Granules{h.held};
    h.held = 0;
  }
  hot.lock();
  p.missing = p.granules() - p.held();
  for (int small : {0, 1}) {
    device_.stats.reserved_bytes.subtract(small == 1, static_cast<int64_t>(given[small].bytes()));
  }
  if ((given[0] + given[1]).count != 0) device_.shortage.forget(given[0] + given[1]);
}

void Pause::map_again(HotGuard& hot) {
  PausedHeap& p = *heap_.pool->paused;
  Granules before[2]{{0}, {0}}, after[2]{{0}, {0}};
  auto held = [&](Granules* sums) {
    for (const PausedHeap::Home& h : p.homes) {
      Granules& sum = sums[h.run.arena == heap_.small.get() ? 1 : 0];
      sum = sum + Granules{h.held};
    }
  };
  auto missing = [&] { return p.granules() - p.held(); };
  auto lacks = [&] {
    return device_.memory.room() < missing() ? missing() - device_.memory.room() : Granules{0};
  };
  auto reclaim = [&](Granules want) {
    Lending(heap_).reclaim_elsewhere({want.bytes(), want.bytes(), device_.clock.id_of(0)}, hot);
  };
  if (lacks().count != 0) ContiguousBlocks(device_).trim(hot);
  if (lacks().count != 0) reclaim(lacks());
  if (lacks().count != 0 && device_.synchronize(hot).ok()) reclaim(lacks());
  if (lacks().count != 0) throw cannot_resume("", missing(), lacks());
  held(before);
  Status s;
  for (int tries = 0; tries < 2; ++tries) {
    hot.unlock();
    s = map_homes();
    hot.lock();
    if (s.ok() || tries != 0) break;
    // The driver has less memory than the limit allows, or no room for another mapping. So idle
    // memory elsewhere is given back first: all of it for a mapping, since neighbouring granules
    // may share theirs.
    const Granules want = s.out_of_memory() ? missing() + Granules{1} : device_.memory.physical();
    ContiguousBlocks(device_).trim(hot);
    if (device_.synchronize(hot).ok()) reclaim(want);
  }
  held(after);
  for (int small : {0, 1}) {
    device_.stats.reserved_bytes.add(small == 1,
                                     static_cast<int64_t>((after[small] - before[small]).bytes()));
  }
  p.missing = p.granules() - p.held();
  if (s.ok()) return;
  const Granules had = missing();
  // The granules' books have no text of the driver's if the headroom was what refused.
  const bool by_headroom = device_.memory.headroom() != 0 && heap_.granules.refused().empty();
  give_homes(hot);
  if (s.out_of_memory()) {
    const Granules lacked = std::max(had, Granules{1});
    if (by_headroom) throw kept_by_headroom(missing(), lacked);
    throw cannot_resume(device_.driver.describe(s), missing(), lacked);
  }
  throw Error(GLAKE_DRIVER_ERROR, text() + " stays paused, as the driver refused to map it: " +
                                      device_.driver.describe(s));
}

Error Pause::cannot_resume(const std::string& said, Granules needs, Granules lacks) {
  return cannot_resume(said.empty() ? "" : ", which has no more: it said " + said,
                       said.empty() ? "raise GLAKE_LIMIT" : "end what else uses the GPU", needs,
                       lacks);
}

Error Pause::kept_by_headroom(Granules needs, Granules lacks) {
  Bytes free = 0, total = 0;
  if (!device_.driver.memory_info(&free, &total).ok()) free = 0;
  free += device_.deferred.idle() * kGranule;
  const std::string state = OutOfMemory::line(
      "the driver reports " + size_text(free) + " free, of which " +
      size_text(device_.memory.kept_of(free).bytes()) + " are headroom for others");
  const std::string way_out = free < needs.bytes()
                                  ? std::string("end what else uses the GPU")
                                  : "lower the headroom to " + size_text(free - needs.bytes()) +
                                        " (glake.headroom, GLAKE_HEADROOM)";
  return cannot_resume(state, way_out, needs, lacks);
}

// `state` follows what is held from the driver.
Error Pause::cannot_resume(const std::string& state, const std::string& way_out, Granules needs,
                           Granules lacks) {
  const auto line = &OutOfMemory::line;
  ++device_.stats.ooms;
  return Error(GLAKE_OUT_OF_MEMORY,
               "CUDA out of memory. Tried to resume " + text() + ", which needs " +
                   size_text(needs.bytes()) +
                   line("limit " + size_text(device_.memory.limit().bytes()) + " of " +
                        size_text(device_.memory.total()) + ", held from the driver " +
                        size_text(device_.memory.physical().bytes()) + state) +
                   line("The region stays paused, and what was saved of it is kept.") +
                   line("Free about " + size_text(lacks.bytes()) + ", or " + way_out +
                        ", and resume again.") +
                   OutOfMemory(heap_).pools_text(),
               device_.memory.room() < needs ? 0 : lacks.bytes());
}

void Pause::tell(bool paused) {
  auto stitched = [&] {
    device_.blocks.for_each([&](const Block& b) {
      if (b.heap == &heap_ && b.view != nullptr)
        Pieces(heap_).show_stitched(b.pieces, b.ptr, b.size, !paused);
    });
  };
  if (paused) stitched();
  for (const PausedHeap::Home& h : heap_.pool->paused->homes) {
    const Address at = h.run.arena->granule_at(h.run.granule);
    Watch::event(paused ? GLAKE_SEGMENT_UNMAP : GLAKE_SEGMENT_MAP, device_.number, at,
                 h.run.count * kGranule);
  }
  if (!paused) stitched();
}

void Pause::drop_freed() {
  PausedHeap* p = heap_.paused();
  if (!heap_.is_paused()) return;
  heap_.thaw();
  if (!heap_.rule.may_unmap() || (p->whole && heap_.live != 0)) return;
  Frees(heap_).drain_pending(Wait::kNo);
  Frees(heap_).drain_whole();
  auto idle = [&](const PausedHeap::Seen& seen) {
    View* view = seen.view;
    if (view->live != 0 || seen.mapped != 0) return false;
    Pieces(heap_).add_aliases(view->runs, -1);
    heap_.view_space->give(view->base, view->capacity);
    heap_.views.remove(view);
    return true;
  };
  p->views.erase(std::remove_if(p->views.begin(), p->views.end(), idle), p->views.end());
  std::vector<PausedHeap::Home> kept;
  for (const PausedHeap::Home& h : p->homes) {
    Arena& arena = *h.run.arena;
    const uint64_t end = h.run.granule + h.run.count;
    auto free = [&](uint64_t g) {
      return h.held == 0 && arena.whole().has(g) && heap_.granules.aliases(arena, g) == 0;
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
}

void Pause::drop_saved(std::vector<SavedBytes::Place>& places) {
  PausedHeap* p = heap_.paused();
  if (!heap_.is_paused() || p->whole || p->saved == nullptr) return;
  const auto& blocks = heap_.pool->blocks;
  p->saved->drop(places, [&](Address at) {
    auto after = blocks.upper_bound(at);
    if (after == blocks.begin()) return false;
    const auto& [ptr, block] = *std::prev(after);
    return at - ptr < block->size;
  });
}

void Pause::end_if_empty() {
  drop_freed();
  if (!heap_.is_paused() || !heap_.paused()->homes.empty() || !heap_.paused()->views.empty())
    return;
  heap_.pool->paused.reset();
}

void Pause::trim(bool synced, HotGuard& hot) {
  drop_freed();
  const bool waits = heap_.is_paused();
  if (!waits || heap_.paused()->held().count == 0 || (heap_.paused()->pending && !synced)) return;
  heap_.paused()->pending = false;
  give_homes(hot);
  drop_freed();
}

}  // namespace glake
