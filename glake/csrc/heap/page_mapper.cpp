#include "heap/page_mapper.h"

#include "heap/out_of_memory.h"

namespace glake {

std::string page_text(const VirtualRange& range, uint64_t index) {
  return "the page at offset " + std::to_string(index * kGranule) + " of the virtual range at " +
         hex(range.base());
}

bool PageMapper::map_again(const PageFill& f, HotGuard& hot) {
  const Arena& arena = heap_.arena_of(f.former->ptr);
  const Handle handle = heap_.granules.handle(arena, arena.granule_of(f.former->ptr));
  const Address at = range_.at(f.index);
  hot.unlock();
  Status s = device_.driver.map(at, handle);
  const bool mapped = s.ok();
  if (s.ok()) s = device_.driver.set_access(at, kGranule, device_.grants);
  hot.lock();
  if (mapped) set_mapping(range_.page(f.index), *f.former);
  if (mapped && !s.ok()) {  // a mapping without access is worth nothing
    hot.unlock();
    unmap_later(f.index, f.index + 1);
    hot.lock();
  }
  return s.ok();
}

void PageMapper::map(PageFills& fills, HotGuard& hot) {
  std::vector<uint64_t> pages;
  std::vector<const Block*> blocks;
  std::vector<Handle> handles;
  for (const PageFill& f : fills) {
    if (f.mapped) continue;
    const Arena& arena = heap_.arena_of(f.block->ptr);
    pages.push_back(f.index);
    blocks.push_back(f.block);
    handles.push_back(heap_.granules.handle(arena, arena.granule_of(f.block->ptr)));
  }
  if (pages.empty()) return;
  hot.unlock();
  uint64_t mapped = 0;
  Status s;
  while (s.ok() && mapped < pages.size()) {
    s = device_.driver.map(range_.at(pages[mapped]), handles[mapped]);
    if (s.ok()) ++mapped;
  }
  each_stretch(pages, [&](uint64_t first, uint64_t last) {
    if (!s.ok()) return;
    s = device_.driver.set_access(range_.at(first), Granules{last - first}.bytes(), device_.grants);
  });
  hot.lock();
  for (uint64_t i = 0; i < mapped; ++i) {
    set_mapping(range_.page(pages[i]), *blocks[i]);
  }
  if (s.ok()) return;
  abandon(fills, mapped, hot);
  throw Error(s.out_of_memory() ? GLAKE_OUT_OF_MEMORY : GLAKE_DRIVER_ERROR,
              "the driver refused to map " + counted(pages.size(), "page") +
                  " of the virtual range at " + hex(range_.base()) + " on " +
                  device_text(device_.number) + ": " + device_.driver.describe(s));
}

// Unmaps the first `mapped` of the pages that map() was to map. A page that the driver refuses to
// unmap stays claimed until that is done.
void PageMapper::abandon(PageFills& fills, uint64_t mapped, HotGuard& hot) {
  std::vector<uint64_t> pages;
  for (PageFill& f : fills) {
    if (f.mapped || pages.size() == mapped) continue;
    f.owed = true;
    pages.push_back(f.index);
  }
  hot.unlock();
  each_stretch(pages, [&](uint64_t first, uint64_t last) { unmap_later(first, last); });
  hot.lock();
  for (PageFill& f : fills) f.owed = f.owed && range_.page(f.index).claimed;
}

// Unmaps claimed pages and ends the claims, now or once the driver allows it. Hot is not held.
void PageMapper::unmap_later(uint64_t first, uint64_t last) {
  // This object is gone when it settles. The range is not: it cannot end with claimed pages.
  auto settled = [&heap = heap_, &range = range_, first, last] {
    HotGuard guard(heap.device.hot);
    for (uint64_t i = first; i < last; ++i) {
      PageMapper(heap, range).forget_mapping(range.page(i));
      range.page(i).claimed = false;
    }
  };
  device_.deferred.defer({range_.at(first), Granules{last - first}.bytes(), {}, settled, {}});
}

void PageMapper::clear(const std::vector<uint64_t>& pages, HotGuard& hot) {
  bool sync = false;
  for (uint64_t i : pages) {
    const VirtualPage& page = range_.page(i);
    for (Ticket t : page.tickets) device_.clock.ask(t);
    sync = sync || page.tickets_full ||
           (!device_.clock.complete(page.tickets) && !device_.clock.wait_host(page.tickets));
  }
  if (sync && device_.clock.any_capturing()) {
    throw Error(GLAKE_INVALID_ARGUMENT,
                "pages of the virtual range at " + hex(range_.base()) +
                    " cannot be mapped anew or freed while a stream is being captured, because "
                    "captured work may use them; do it after the capture");
  }
  if (sync) device_.require(device_.synchronize(hot), "to be synchronised to unmap pages");
  each_stretch(pages, [&](uint64_t first, uint64_t last) {
    const Status s = unmap(first, last, hot);
    if (s.ok()) return;
    throw Error(GLAKE_DRIVER_ERROR, "the driver refused to unmap " + page_text(range_, first) +
                                        ": " + device_.driver.describe(s) +
                                        "; it is as before, try again");
  });
}

Status PageMapper::unmap(uint64_t first, uint64_t last, HotGuard& hot) {
  const Granules n{last - first};
  hot.unlock();
  const Status s =
      device_.refusals.note("cuMemUnmap", device_.driver.unmap(range_.at(first), n.bytes()));
  hot.lock();
  if (!s.ok()) {
    device_.refusals.keep(n);
    return s;
  }
  for (uint64_t i = first; i < last; ++i) forget_mapping(range_.page(i));
  return s;
}

void PageMapper::set_mapping(VirtualPage& page, const Block& block) {
  page.arena = &heap_.arena_of(block.ptr);
  page.granule = page.arena->granule_of(block.ptr);
  ++heap_.granules.aliases(*page.arena, page.granule);
  ++range_.mapped_pages;
}

void PageMapper::forget_mapping(VirtualPage& page) {
  --heap_.granules.aliases(*page.arena, page.granule);
  --range_.mapped_pages;
  page.arena = nullptr;
  page.tickets.clear();
  page.tickets_full = false;
}

}  // namespace glake
