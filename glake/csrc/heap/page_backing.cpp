#include "heap/page_backing.h"

#include <utility>

#include "heap/availability.h"
#include "heap/frees.h"
#include "heap/pieces.h"
#include "heap/slow_path.h"

namespace glake {

// True if the granule that is mapped at an idle page is free, and r's stream may have it, perhaps
// after a wait on the device.
bool PageBacking::free_again(const VirtualPage& page, const Request& r, Wait wait) {
  if (!page.idle() || !page.arena->whole().has(page.granule)) return false;
  const Address home = page.arena->granule_at(page.granule);
  const Span* from = page.arena->free_span_at(home);
  Availability available(heap_);
  if (available.range_ordered(from, home, kGranule, r.stream, nullptr)) return true;
  return wait == Wait::kAllowed && available.wait_for_range(from, home, r);
}

Block* PageBacking::take_again(const VirtualPage& page, const Request& r, StreamHandle stream) {
  Arena& arena = *page.arena;
  const Found found = Pieces(heap_).at_home(arena, arena.extent_at_prefix(page.granule),
                                            arena.granule_at(page.granule), r);
  return make_block(found.pieces, r, stream);
}

Block* PageBacking::make_block(Span* span, const Request& r, StreamHandle stream) {
  // Debug modes check no pages. So they must not expect what they wrote into freed blocks there.
  if (device_.debug != nullptr) device_.debug->forget(span->begin, kGranule);
  Block* block = heap_.make_block(r, {span, nullptr, span->begin}, stream);
  block->state.store(BlockState::kPage, std::memory_order_release);
  return block;
}

bool PageBacking::retake_all(uint64_t first, uint64_t last, const Request& r, StreamHandle stream,
                             const PageLog& log) {
  for (uint64_t i = first; i < last; ++i) {
    const VirtualPage* page = range_.find(i);
    if (page == nullptr || page->claimed) return false;
    if (page->block == nullptr && !free_again(*page, r, Wait::kNo)) return false;
  }
  std::vector<VirtualPage*> taken;
  for (uint64_t i = first; i < last; ++i) {
    VirtualPage& page = range_.page(i);
    if (page.block != nullptr) continue;
    // Pages that shared a granule may both be idle. Then it is the first one's now.
    if (!free_again(page, r, Wait::kNo)) {
      for (VirtualPage* back : taken) give(std::exchange(back->block, nullptr), nullptr);
      return false;
    }
    page.block = take_again(page, r, stream);
    taken.push_back(&page);
  }
  range_.backed_pages += taken.size();
  for (const VirtualPage* page : taken) log.taken(*page->block);
  return true;
}

PageFills PageBacking::claim(uint64_t first, uint64_t last, bool all) {
  PageFills fills;
  for (uint64_t i = first; i < last; ++i) {
    const VirtualPage& page = range_.page(i);
    if (page.claimed) {  // by a refused undo, as this thread has the slow lock
      throw Error(GLAKE_DRIVER_ERROR, "the driver still refuses to unmap " + page_text(range_, i) +
                                          " (" + device_.refusals.text() + "); try again");
    }
    if (page.block == nullptr || all) fills.push_back({i});
  }
  for (PageFill& f : fills) {
    VirtualPage& page = range_.page(f.index);
    page.claimed = true;
    f.former = std::exchange(page.block, nullptr);
    if (f.former != nullptr) --range_.backed_pages;
  }
  return fills;
}

void PageBacking::take_granules(PageFills& fills, const Request& r, StreamHandle stream,
                                HotGuard& hot) {
  Granules missing{0};
  for (PageFill& f : fills) {
    const VirtualPage& page = range_.page(f.index);
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
  for (PageFill& f : fills) {
    if (f.block != nullptr) continue;
    Span* next = std::exchange(span->piece_next, nullptr);
    f.block = make_block(span, r, stream);
    span = next;
  }
}

void PageBacking::fill(PageFills& fills, HotGuard& hot) {
  PageMapper mapper(heap_, range_);
  std::vector<uint64_t> outdated;
  for (const PageFill& f : fills) {
    if (!f.mapped && range_.page(f.index).mapped()) outdated.push_back(f.index);
  }
  mapper.clear(outdated, hot);
  mapper.map(fills, hot);
  for (const PageFill& f : fills) {
    VirtualPage& page = range_.page(f.index);
    page.block = f.block;
    page.claimed = false;
  }
  range_.backed_pages += fills.size();
}

void PageBacking::undo(const PageFills& fills, HotGuard& hot) {
  for (const PageFill& f : fills) {
    VirtualPage& page = range_.page(f.index);
    if (f.block != nullptr) give(f.block, nullptr);
    bool owed = f.owed;
    if (f.former != nullptr && !owed &&
        (page.mapped() || PageMapper(heap_, range_).map_again(f, hot))) {
      page.block = f.former;
      ++range_.backed_pages;
    } else if (f.former != nullptr) {
      give(f.former, nullptr);  // its bytes are lost with the mapping
      owed = page.mapped();     // what is mapped there could neither be used nor be unmapped
    }
    page.claimed = owed;
  }
}

void PageBacking::give(Block* block, const PageLog* log) {
  if (!heap_.virtuals.leave(block)) return;
  if (log != nullptr) log->given(*block);
  block->state.store(BlockState::kCached, std::memory_order_release);
  device_.stats.free(block->small_pool, block->size, block->requested);
  Frees(heap_).free(block);
}

}  // namespace glake
