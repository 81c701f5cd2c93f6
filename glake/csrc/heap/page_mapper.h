// Maps granules at the pages of one virtual range, and unmaps them. Callers hold both locks. Driver
// calls are made without the hot lock, so callers have claimed the pages.
#pragma once

#include <string>
#include <vector>

#include "heap/device.h"
#include "memory/virtual_range.h"

namespace glake {

// A claimed page that is being backed.
struct PageFill {
  uint64_t index = 0;
  Block* block = nullptr;
  Block* former = nullptr;  // what backed the page before
  bool mapped = false;      // its granule is mapped there
  bool owed = false;        // the driver refused to unmap it again
};
using PageFills = std::vector<PageFill>;

class PageMapper {
 public:
  PageMapper(Heap& heap, VirtualRange& range) : heap_(heap), device_(heap.device), range_(range) {}

  // Maps the fills' granules that are not mapped yet. Throws Error; then it has mapped none, or a
  // page that the driver refuses to unmap again is owed.
  void map(PageFills& fills, HotGuard& hot);
  // Maps a page's former granule, which was unmapped for another one that the driver then refused.
  // False if the driver refuses this, too.
  bool map_again(const PageFill& f, HotGuard& hot);
  // Unmaps pages once the work that used them is over. Throws Error.
  void clear(const std::vector<uint64_t>& pages, HotGuard& hot);
  // Unmaps pages [first, last), which no work uses.
  Status unmap(uint64_t first, uint64_t last, HotGuard& hot);

 private:
  void abandon(PageFills& fills, uint64_t mapped, HotGuard& hot);
  void unmap_later(uint64_t first, uint64_t last);
  void set_mapping(VirtualPage& page, const Block& block);
  void forget_mapping(VirtualPage& page);

  Heap& heap_;
  Device& device_;
  VirtualRange& range_;
};

// For messages.
std::string page_text(const VirtualRange& range, uint64_t index);

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

}  // namespace glake
