#include "heap/virtual_ranges.h"

#include <algorithm>

#include "heap/availability.h"
#include "heap/frees.h"
#include "heap/mapping_turn.h"
#include "heap/neighbours.h"
#include "heap/out_of_memory.h"
#include "heap/pieces.h"
#include "heap/slow_path.h"

namespace glake {

namespace {

// Calls visit(first, last) for each longest stretch [first, last) of pages, which are in order.
template <typename Visit>
void each_stretch(const std::vector<uint64_t>& pages, Visit visit) {
  for (size_t i = 0; i < pages.size();) {
    size_t end = i + 1;
    while (end < pages.size() && pages[end] == pages[end - 1] + 1) ++end;
    visit(pages[i], pages[end - 1] + 1);
    i = end;
  }
}

std::string page_text(const VirtualRange& range, uint64_t index) {
  return "the page at offset " + std::to_string(index * kGranule) + " of the virtual range at " +
         hex(range.base());
}

}  // namespace

Address VirtualRanges::reserve(Bytes bytes) {
  MappingTurn turn(device_);
  auto range = std::make_unique<VirtualRange>(device_.driver, &heap_, Granules::ceil(bytes));
  HotGuard hot(device_.hot);
  return book_.add(std::move(range)).base();
}

VirtualRange& VirtualRanges::need(Address base) const {
  VirtualRange* range = book_.find(base);
  if (range != nullptr && !range->ending) return *range;
  throw Error(GLAKE_INVALID_POINTER,
              hex(base) +
                  " is not the first address of a virtual range: freed already, or never "
                  "reserved (glake_virtual_reserve)");
}

// The pages that lie in [offset, offset + bytes) as a whole.
VirtualRanges::Part VirtualRanges::inside(Address base, Bytes offset, Bytes bytes) const {
  VirtualRange& range = need(base);
  const Bytes all = range.length().bytes();
  if (bytes == 0 || offset > all || bytes > all - offset) {
    throw Error(GLAKE_INVALID_ARGUMENT, std::to_string(bytes) + " bytes at offset " +
                                            std::to_string(offset) +
                                            ": a part of the virtual range at " + hex(base) +
                                            " has from 1 byte to all " + std::to_string(all));
  }
  const uint64_t first = Granules::ceil(offset).count;
  return {&range, first, std::max(first, Granules::floor(offset + bytes).count)};
}

// The pages that have a byte in [offset, offset + bytes).
VirtualRanges::Part VirtualRanges::touched(Address base, Bytes offset, Bytes bytes) const {
  const Part part = inside(base, offset, bytes);
  return {part.range, Granules::floor(offset).count, Granules::ceil(offset + bytes).count};
}

// True if the granule that is mapped at an idle page is free, and r's stream may have it, perhaps
// after a wait on the device.
bool VirtualRanges::free_again(const VirtualPage& page, const Request& r, Wait wait) {
  if (!page.idle() || !page.arena->whole().has(page.granule)) return false;
  const Address home = page.arena->granule_at(page.granule);
  const Span* from = page.arena->free_span_at(home);
  Availability available(heap_);
  if (available.range_ordered(from, home, kGranule, r.stream, nullptr)) return true;
  return wait == Wait::kAllowed && available.wait_for_range(from, home, r);
}

Block* VirtualRanges::take_again(const VirtualPage& page, const Request& r, StreamHandle stream) {
  Arena& arena = *page.arena;
  const Found found = Pieces(heap_).at_home(arena, arena.extent_at_prefix(page.granule),
                                            arena.granule_at(page.granule), r);
  return make_block(found.pieces, r, stream);
}

Block* VirtualRanges::make_block(Span* span, const Request& r, StreamHandle stream) {
  // Debug modes check no pages. So they must not expect what they wrote into freed blocks there.
  if (device_.debug != nullptr) device_.debug->forget(span->begin, kGranule);
  return heap_.make_block(r, {span, nullptr, span->begin}, stream);
}

// Backs the part by what is mapped there already, without a driver call. False: some page needs
// one, and nothing was done.
bool VirtualRanges::retake_all(const Part& part, const Request& r, StreamHandle stream,
                               const PageLog& log) {
  for (uint64_t i = part.first; i < part.last; ++i) {
    const VirtualPage* page = part.range->find(i);
    if (page == nullptr || page->claimed) return false;
    if (page->block == nullptr && !free_again(*page, r, Wait::kNo)) return false;
  }
  std::vector<VirtualPage*> taken;
  for (uint64_t i = part.first; i < part.last; ++i) {
    VirtualPage& page = part.range->page(i);
    if (page.block != nullptr) continue;
    // Pages that shared a granule may both be idle. Then it is the first one's now.
    if (!free_again(page, r, Wait::kNo)) {
      for (VirtualPage* back : taken) give(std::exchange(back->block, nullptr), nullptr);
      return false;
    }
    page.block = take_again(page, r, stream);
    taken.push_back(&page);
  }
  part.range->backed_pages += taken.size();
  for (const VirtualPage* page : taken) log.taken(*page->block);
  return true;
}

void VirtualRanges::back(Address base, Bytes offset, Bytes bytes, StreamHandle stream,
                         const PageLog& log) {
  const StreamLives::Named named(device_.driver.streams(), stream);
  {
    HotGuard hot(device_.hot);
    const Part part = touched(base, offset, bytes);
    if (retake_all(part, device_.request(kGranule, stream), stream, log)) return;
  }
  Neighbours::helped(device_, [&] { take(base, offset, bytes, stream, log); });
}

// Backs the part's pages that are not backed. Each needs a granule, or a mapping.
void VirtualRanges::take(Address base, Bytes offset, Bytes bytes, StreamHandle stream,
                         const PageLog& log) {
  MappingTurn turn(device_);
  HotGuard hot(device_.hot);
  device_.settle(hot);
  const Part part = touched(base, offset, bytes);
  const Request r{kGranule, kGranule, device_.clock.id_of(stream)};
  require_possible(part, r, hot);
  Fills fills = claim(part, false);
  try {
    take_granules(*part.range, fills, r, stream, hot);
    fill(*part.range, fills, hot);
  } catch (...) {
    undo(*part.range, fills, hot);
    throw;
  }
  for (const Fill& f : fills) log.taken(*f.block);
}

// Throws Error if the part has more pages without memory than the device may ever hold. Their books
// would take the host's memory, for nothing.
void VirtualRanges::require_possible(const Part& part, const Request& r, HotGuard& hot) {
  Granules missing{part.last - part.first};
  part.range->each(part.first, part.last, [&](uint64_t, const VirtualPage& page) {
    if (page.block != nullptr) missing = missing - Granules{1};
  });
  if (!(device_.memory.limit() < missing)) return;
  ++device_.stats.ooms;
  throw OutOfMemory(heap_).error({missing.bytes(), missing.bytes(), r.stream, true}, {}, hot);
}

// Claims the pages of the part that are not backed, so that no other thread backs them meanwhile.
// With `all`, backed ones too: these are then unbacked.
VirtualRanges::Fills VirtualRanges::claim(const Part& part, bool all) {
  Fills fills;
  for (uint64_t i = part.first; i < part.last; ++i) {
    const VirtualPage& page = part.range->page(i);
    if (page.claimed) {  // by a refused undo, as this thread has the slow lock
      throw Error(GLAKE_DRIVER_ERROR, "the driver still refuses to unmap " +
                                          page_text(*part.range, i) + " (" +
                                          device_.refusals.text() + "); try again");
    }
    if (page.block == nullptr || all) fills.push_back({i});
  }
  for (Fill& f : fills) {
    VirtualPage& page = part.range->page(f.index);
    page.claimed = true;
    f.former = std::exchange(page.block, nullptr);
    if (f.former != nullptr) --part.range->backed_pages;
  }
  return fills;
}

// Gives each page a granule: the one that is mapped there if it is free, or else any.
void VirtualRanges::take_granules(VirtualRange& range, Fills& fills, const Request& r,
                                  StreamHandle stream, HotGuard& hot) {
  Granules missing{0};
  for (Fill& f : fills) {
    const VirtualPage& page = range.page(f.index);
    f.mapped = free_again(page, r, Wait::kAllowed);
    if (f.mapped) {
      f.block = take_again(page, r, stream);
    } else {
      missing = missing + Granules{1};
    }
  }
  if (missing.count == 0) return;
  const Request rest{missing.bytes(), missing.bytes(), r.stream, true};
  Span* span = SlowPath(heap_).granules(rest, hot).pieces;
  for (Fill& f : fills) {
    if (f.block != nullptr) continue;
    Span* next = std::exchange(span->piece_next, nullptr);
    f.block = make_block(span, r, stream);
    span = next;
  }
}

// Maps the pages' granules, and ends the claims.
void VirtualRanges::fill(VirtualRange& range, Fills& fills, HotGuard& hot) {
  std::vector<uint64_t> outdated;
  for (const Fill& f : fills) {
    if (!f.mapped && range.page(f.index).mapped()) outdated.push_back(f.index);
  }
  clear(range, outdated, hot);
  map(range, fills, hot);
  for (const Fill& f : fills) {
    VirtualPage& page = range.page(f.index);
    page.block = f.block;
    page.claimed = false;
  }
  range.backed_pages += fills.size();
}

// Takes back what back() or alias() has done for the pages.
void VirtualRanges::undo(VirtualRange& range, const Fills& fills, HotGuard& hot) {
  for (const Fill& f : fills) {
    VirtualPage& page = range.page(f.index);
    if (f.block != nullptr) give(f.block, nullptr);
    bool owed = f.owed;
    if (f.former != nullptr && !owed && (page.mapped() || map_again(range, f, hot))) {
      page.block = f.former;
      ++range.backed_pages;
    } else if (f.former != nullptr) {
      give(f.former, nullptr);  // its bytes are lost with the mapping
      owed = page.mapped();     // what is mapped there could neither be used nor be unmapped
    }
    page.claimed = owed;
  }
}

// Maps a page's former granule, which was unmapped for another one that the driver then refused.
// False if the driver refuses this, too.
bool VirtualRanges::map_again(VirtualRange& range, const Fill& f, HotGuard& hot) {
  const Arena& arena = heap_.arena_of(f.former->ptr);
  const Handle handle = heap_.granules.handle(arena, arena.granule_of(f.former->ptr));
  const Address at = range.at(f.index);
  hot.unlock();
  Status s = device_.driver.map(at, handle);
  const bool mapped = s.ok();
  if (s.ok()) s = device_.driver.set_access(at, kGranule, device_.grants);
  hot.lock();
  if (mapped) set_mapping(range, range.page(f.index), *f.former);
  if (mapped && !s.ok()) {  // a mapping without access is worth nothing
    hot.unlock();
    unmap_later(range, f.index, f.index + 1);
    hot.lock();
  }
  return s.ok();
}

void VirtualRanges::map(VirtualRange& range, Fills& fills, HotGuard& hot) {
  std::vector<uint64_t> pages;
  std::vector<const Block*> blocks;
  std::vector<Handle> handles;
  for (const Fill& f : fills) {
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
    s = device_.driver.map(range.at(pages[mapped]), handles[mapped]);
    if (s.ok()) ++mapped;
  }
  each_stretch(pages, [&](uint64_t first, uint64_t last) {
    if (!s.ok()) return;
    s = device_.driver.set_access(range.at(first), Granules{last - first}.bytes(), device_.grants);
  });
  hot.lock();
  for (uint64_t i = 0; i < mapped; ++i) {
    set_mapping(range, range.page(pages[i]), *blocks[i]);
  }
  if (s.ok()) return;
  abandon(range, fills, mapped, hot);
  throw Error(s.out_of_memory() ? GLAKE_OUT_OF_MEMORY : GLAKE_DRIVER_ERROR,
              "the driver refused to map " + counted(pages.size(), "page") +
                  " of the virtual range at " + hex(range.base()) + " on " +
                  device_text(device_.number) + ": " + device_.driver.describe(s));
}

// Unmaps the first `mapped` of the pages that map() was to map. A page that the driver refuses to
// unmap stays claimed until that is done.
void VirtualRanges::abandon(VirtualRange& range, Fills& fills, uint64_t mapped, HotGuard& hot) {
  std::vector<uint64_t> pages;
  for (Fill& f : fills) {
    if (f.mapped || pages.size() == mapped) continue;
    f.owed = true;
    pages.push_back(f.index);
  }
  hot.unlock();
  each_stretch(pages, [&](uint64_t first, uint64_t last) { unmap_later(range, first, last); });
  hot.lock();
  for (Fill& f : fills) f.owed = f.owed && range.page(f.index).claimed;
}

// Unmaps claimed pages and ends the claims, now or once the driver allows it. Hot is not held.
void VirtualRanges::unmap_later(VirtualRange& range, uint64_t first, uint64_t last) {
  // This object may be gone when it settles. The range is not: it cannot end with claimed pages.
  auto settled = [&heap = heap_, &range, first, last] {
    HotGuard guard(heap.device.hot);
    for (uint64_t i = first; i < last; ++i) {
      VirtualRanges(heap).forget_mapping(range, range.page(i));
      range.page(i).claimed = false;
    }
  };
  device_.deferred.defer({range.at(first), Granules{last - first}.bytes(), {}, settled, {}});
}

// Unmaps pages that are claimed, once the work that used them is over.
void VirtualRanges::clear(VirtualRange& range, const std::vector<uint64_t>& pages, HotGuard& hot) {
  bool sync = false;
  for (uint64_t i : pages) {
    const VirtualPage& page = range.page(i);
    for (Ticket t : page.tickets) device_.clock.ask(t);
    sync = sync || page.tickets_full ||
           (!device_.clock.complete(page.tickets) && !device_.clock.wait_host(page.tickets));
  }
  if (sync && device_.clock.any_capturing()) {
    throw Error(GLAKE_INVALID_ARGUMENT,
                "pages of the virtual range at " + hex(range.base()) +
                    " cannot be mapped anew or freed while a stream is being captured, because "
                    "captured work may use them; do it after the capture");
  }
  if (sync) device_.require(device_.synchronize(hot), "to be synchronised to unmap pages");
  each_stretch(pages, [&](uint64_t first, uint64_t last) {
    const Status s = unmap(range, first, last, hot);
    if (s.ok()) return;
    throw Error(GLAKE_DRIVER_ERROR, "the driver refused to unmap " + page_text(range, first) +
                                        ": " + device_.driver.describe(s) +
                                        "; it is as before, try again");
  });
}

Status VirtualRanges::unmap(VirtualRange& range, uint64_t first, uint64_t last, HotGuard& hot) {
  const Granules n{last - first};
  hot.unlock();
  const Status s =
      device_.refusals.note("cuMemUnmap", device_.driver.unmap(range.at(first), n.bytes()));
  hot.lock();
  if (!s.ok()) {
    device_.refusals.keep(n);
    return s;
  }
  for (uint64_t i = first; i < last; ++i) forget_mapping(range, range.page(i));
  return s;
}

void VirtualRanges::set_mapping(VirtualRange& range, VirtualPage& page, const Block& block) {
  page.arena = &heap_.arena_of(block.ptr);
  page.granule = page.arena->granule_of(block.ptr);
  ++heap_.granules.aliases(*page.arena, page.granule);
  ++range.mapped_pages;
}

void VirtualRanges::forget_mapping(VirtualRange& range, VirtualPage& page) {
  --heap_.granules.aliases(*page.arena, page.granule);
  --range.mapped_pages;
  page.arena = nullptr;
  page.tickets.clear();
  page.tickets_full = false;
}

void VirtualRanges::unback(Address base, Bytes offset, Bytes bytes, StreamHandle stream,
                           const PageLog& log) {
  const StreamLives::Named named(device_.driver.streams(), stream);
  HotGuard hot(device_.hot);
  unback(inside(base, offset, bytes), stream, log);
}

void VirtualRanges::unback(const Part& part, StreamHandle stream, const PageLog& log) {
  const StreamId id = device_.clock.id_of(stream);
  part.range->each(part.first, part.last, [&](uint64_t, VirtualPage& page) {
    if (page.block == nullptr) return;
    Block* block = std::exchange(page.block, nullptr);
    --part.range->backed_pages;
    page.used_until(device_.clock.stamp(id));
    if (id != block->stream_id) block->recorded.add(id);
    give(block, &log);
  });
}

// Frees a page's granule if no other page has it.
void VirtualRanges::give(Block* block, const PageLog* log) {
  if (!book_.leave(block)) return;
  if (log != nullptr) log->given(*block);
  block->state.store(BlockState::kCached, std::memory_order_release);
  device_.stats.free(block->small_pool, block->size, block->requested);
  Frees(heap_).free(block);
}

void VirtualRanges::alias(Address base, Bytes offset, Address from, Bytes from_offset, Bytes bytes,
                          StreamHandle stream, const PageLog& log) {
  const StreamLives::Named named(device_.driver.streams(), stream);
  MappingTurn turn(device_);
  HotGuard hot(device_.hot);
  device_.settle(hot);
  const Part part = inside(base, offset, bytes), source = inside(from, from_offset, bytes);
  for (Bytes b : {offset, from_offset, bytes}) {
    if (b % kGranule == 0) continue;
    throw Error(GLAKE_INVALID_ARGUMENT,
                std::to_string(b) + " is no multiple of 2 MiB: only whole pages can be shared");
  }
  for (uint64_t i = source.first; i < source.last; ++i) {
    if (source.range->backed(i)) continue;
    throw Error(GLAKE_INVALID_ARGUMENT,
                page_text(*source.range, i) + " is not backed, so it has nothing to share");
  }
  std::vector<Block*> blocks;
  for (uint64_t i = source.first; i < source.last; ++i) {
    blocks.push_back(source.range->page(i).block);
  }
  VirtualRange& range = *part.range;
  Fills fills = claim(part, true);
  const StreamId id = device_.clock.id_of(stream);
  for (Fill& f : fills) {
    VirtualPage& page = range.page(f.index);
    f.block = blocks[f.index - part.first];
    book_.join(f.block);
    f.mapped = page.mapped() && page.arena->granule_at(page.granule) == f.block->ptr;
    if (f.former == nullptr) continue;
    page.used_until(device_.clock.stamp(id));
    if (id != f.former->stream_id) f.former->recorded.add(id);
  }
  try {
    fill(range, fills, hot);
  } catch (...) {
    undo(range, fills, hot);
    throw;
  }
  for (const Fill& f : fills) {
    if (f.former != nullptr) give(f.former, &log);
  }
}

void VirtualRanges::end(Address base, const PageLog& log) {
  MappingTurn turn(device_);
  HotGuard hot(device_.hot);
  device_.settle(hot);
  VirtualRange& range = need(base);
  require_endable(range);
  range.ending = true;
  try {
    // Work of any stream may use the pages, and would fault once they are unmapped.
    device_.require(device_.synchronize(hot), "to be synchronised to free a virtual range");
    std::vector<uint64_t> pages;
    range.each([&](uint64_t i, VirtualPage& page) {
      if (page.mapped()) pages.push_back(i);
      if (page.block == nullptr) return;
      --range.backed_pages;
      give(std::exchange(page.block, nullptr), &log);
    });
    clear(range, pages, hot);
    hot.unlock();
    const Status s = range.release();
    hot.lock();
    device_.require(s, "to take back a virtual range, which can be freed again");
  } catch (...) {
    range.ending = false;
    throw;
  }
  book_.remove(range);
}

void VirtualRanges::require_endable(VirtualRange& range) {
  const std::string text = "the virtual range at " + hex(range.base());
  if (device_.clock.any_capturing()) {
    throw Error(GLAKE_INVALID_ARGUMENT, text +
                                            " cannot be freed while a stream is being captured, "
                                            "because captured work may use it; do it after the "
                                            "capture");
  }
  bool owed = false;
  range.each([&](uint64_t, const VirtualPage& page) { owed = owed || page.claimed; });
  if (!owed) return;
  throw Error(GLAKE_DRIVER_ERROR, "the driver still refuses to unmap pages of " + text + " (" +
                                      device_.refusals.text() + "); free it again later");
}

VirtualInfo VirtualRanges::info(Address base, Bytes offset, Bytes bytes) {
  HotGuard hot(device_.hot);
  const Part part = touched(base, offset, bytes);
  VirtualInfo info;
  info.bytes = (part.last - part.first) * kGranule;
  part.range->each(part.first, part.last, [&](uint64_t, const VirtualPage& page) {
    if (!page.mapped()) return;
    info.mapped += kGranule;
    if (page.block == nullptr) return;
    info.backed += kGranule;
    if (book_.pages_of(page.block) != 1) info.shared += kGranule;
  });
  return info;
}

Bytes VirtualRanges::bytes(Address base) {
  HotGuard hot(device_.hot);
  return need(base).length().bytes();
}

bool VirtualRanges::backed_around(Address at, Address* begin, Bytes* bytes) {
  HotGuard hot(device_.hot);
  const VirtualRange* range = book_.around(at);
  if (range == nullptr) return false;
  uint64_t first = (at - range->base()) / kGranule, last = first;
  while (last < range->length().count && range->backed(last)) ++last;
  while (last != first && first != 0 && range->backed(first - 1)) --first;
  *begin = range->at(first);
  *bytes = (last - first) * kGranule;
  return true;
}

void VirtualRanges::drop_idle(bool synced, HotGuard& hot) {
  for (const auto& [base, owner] : book_.ranges()) {
    VirtualRange& range = *owner;
    if (range.mapped_pages == range.backed_pages) continue;
    std::vector<uint64_t> pages;
    range.each([&](uint64_t i, VirtualPage& page) {
      if (!page.idle() || page.claimed) return;
      if (synced) page.tickets_full = false;
      if (page.tickets_full || !device_.clock.complete(page.tickets)) return;
      page.claimed = true;  // unmap() lets go of hot
      pages.push_back(i);
    });
    each_stretch(pages, [&](uint64_t first, uint64_t last) { unmap(range, first, last, hot); });
    for (uint64_t i : pages) range.page(i).claimed = false;
  }
}

void VirtualRanges::mapped_ranges(std::vector<std::pair<Address, Bytes>>* ranges) const {
  for (const auto& [base, range] : book_.ranges()) {
    std::vector<uint64_t> pages;
    range->each([&](uint64_t i, const VirtualPage& page) {
      if (page.mapped()) pages.push_back(i);
    });
    each_stretch(pages, [&, &range = range](uint64_t first, uint64_t last) {
      ranges->emplace_back(range->at(first), (last - first) * kGranule);
    });
  }
}

}  // namespace glake
