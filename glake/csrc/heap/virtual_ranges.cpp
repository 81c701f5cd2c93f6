#include "heap/virtual_ranges.h"

#include <algorithm>

#include "heap/mapping_turn.h"
#include "heap/neighbours.h"
#include "heap/out_of_memory.h"

namespace glake {

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

void VirtualRanges::back(Address base, Bytes offset, Bytes bytes, StreamHandle stream,
                         const PageLog& log) {
  const StreamLives::Named named(device_.driver.streams(), stream);
  {
    HotGuard hot(device_.hot);
    const Part part = touched(base, offset, bytes);
    const Request r = device_.request(kGranule, stream);
    if (PageBacking(heap_, *part.range).retake_all(part.first, part.last, r, stream, log)) return;
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
  PageBacking backing(heap_, *part.range);
  PageFills fills = backing.claim(part.first, part.last, false);
  try {
    backing.take_granules(fills, r, stream, hot);
    backing.fill(fills, hot);
  } catch (...) {
    backing.undo(fills, hot);
    throw;
  }
  for (const PageFill& f : fills) log.taken(*f.block);
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

void VirtualRanges::unback(Address base, Bytes offset, Bytes bytes, StreamHandle stream,
                           const PageLog& log) {
  const StreamLives::Named named(device_.driver.streams(), stream);
  HotGuard hot(device_.hot);
  unback(inside(base, offset, bytes), stream, log);
}

void VirtualRanges::unback(const Part& part, StreamHandle stream, const PageLog& log) {
  const StreamId id = device_.clock.id_of(stream);
  PageBacking backing(heap_, *part.range);
  part.range->each(part.first, part.last, [&](uint64_t, VirtualPage& page) {
    if (page.block == nullptr) return;
    Block* block = std::exchange(page.block, nullptr);
    --part.range->backed_pages;
    page.used_until(device_.clock.stamp(id));
    if (id != block->stream_id) block->recorded.add(id);
    backing.give(block, &log);
  });
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
  PageBacking backing(heap_, range);
  PageFills fills = backing.claim(part.first, part.last, true);
  const StreamId id = device_.clock.id_of(stream);
  for (PageFill& f : fills) {
    VirtualPage& page = range.page(f.index);
    f.block = blocks[f.index - part.first];
    book_.join(f.block);
    f.mapped = page.mapped() && page.arena->granule_at(page.granule) == f.block->ptr;
    if (f.former == nullptr) continue;
    page.used_until(device_.clock.stamp(id));
    if (id != f.former->stream_id) f.former->recorded.add(id);
  }
  try {
    backing.fill(fills, hot);
  } catch (...) {
    backing.undo(fills, hot);
    throw;
  }
  for (const PageFill& f : fills) {
    if (f.former != nullptr) backing.give(f.former, &log);
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
      PageBacking(heap_, range).give(std::exchange(page.block, nullptr), &log);
    });
    PageMapper(heap_, range).clear(pages, hot);
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
    PageMapper mapper(heap_, range);
    each_stretch(pages, [&](uint64_t first, uint64_t last) { mapper.unmap(first, last, hot); });
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
