// Backs pages of one virtual range by granules of its heap. A granule that backs pages is a block,
// which several pages may have. Callers hold the hot lock, and for claimed pages the slow lock.
#pragma once

#include <functional>

#include "heap/page_mapper.h"
#include "heap/request.h"

namespace glake {

// Tells those who record that a granule was taken or is given back. Called under the hot lock.
struct PageLog {
  std::function<void(const Block&)> taken, given;
};

class PageBacking {
 public:
  PageBacking(Heap& heap, VirtualRange& range) : heap_(heap), device_(heap.device), range_(range) {}

  // Backs pages [first, last) by what is mapped there already, without a driver call. False: some
  // page needs one, and nothing was done.
  bool retake_all(uint64_t first, uint64_t last, const Request& r, StreamHandle stream,
                  const PageLog& log);

  // Claims those of the pages that are not backed, so that no other thread backs them meanwhile.
  // With `all`, backed ones too: these are then unbacked. Throws Error. fill() or undo() must
  // follow.
  PageFills claim(uint64_t first, uint64_t last, bool all);
  // Gives each page a granule: the one that is mapped there if it is free, or else any. Throws
  // Error.
  void take_granules(PageFills& fills, const Request& r, StreamHandle stream, HotGuard& hot);
  // Maps the pages' granules, and ends the claims. Throws Error.
  void fill(PageFills& fills, HotGuard& hot);
  // Takes back what the functions above have done for the pages.
  void undo(const PageFills& fills, HotGuard& hot);

  // Frees a page's granule if no other page has it.
  void give(Block* block, const PageLog* log);

 private:
  bool free_again(const VirtualPage& page, const Request& r, Wait wait);
  Block* take_again(const VirtualPage& page, const Request& r, StreamHandle stream);
  Block* make_block(Span* span, const Request& r, StreamHandle stream);

  Heap& heap_;
  Device& device_;
  VirtualRange& range_;
};

}  // namespace glake
