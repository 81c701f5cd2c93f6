// Virtual ranges: addresses whose pages callers back with memory and unback, one by one
// (memory/virtual_range.h). The memory is the device's own heap's, granule by granule. So what a
// range does not use serves every other request, and the reverse.
//
// A driver call is made only where a page is mapped anew, where a range ends, and where idle
// granules go back to the driver. unback() makes none.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "heap/device.h"
#include "memory/virtual_book.h"

namespace glake {

// Tells those who record that a granule was taken or is given back. Called under the hot lock.
struct PageLog {
  std::function<void(const Block&)> taken, given;
};

struct VirtualInfo {
  Bytes bytes = 0;   // of addresses
  Bytes backed = 0;  // of backed pages
  Bytes shared = 0;  // of these, in pages that share their memory with others
  Bytes mapped = 0;  // of pages with a mapping, backed or not
};

class VirtualRanges {
 public:
  explicit VirtualRanges(Heap& heap) : heap_(heap), device_(heap.device), book_(heap.virtuals) {}

  // These take the locks, and throw Error. `base` is a range's first address. back() and unback()
  // are about the pages in [offset, offset + bytes): back() takes those that lie in it in part,
  // too, and does all or nothing. unback() leaves those out.
  Address reserve(Bytes bytes);
  void back(Address base, Bytes offset, Bytes bytes, StreamHandle stream, const PageLog& log);
  void unback(Address base, Bytes offset, Bytes bytes, StreamHandle stream, const PageLog& log);
  // Backs pages by the granules of pages of `from`, which is a range of this heap. What backed them
  // before is free after the stream's work.
  void alias(Address base, Bytes offset, Address from, Bytes from_offset, Bytes bytes,
             StreamHandle stream, const PageLog& log);
  // Ends a range. Waits for the device's work.
  void end(Address base, const PageLog& log);
  // Of the pages that have a byte in [offset, offset + bytes).
  VirtualInfo info(Address base, Bytes offset, Bytes bytes);
  Bytes bytes(Address base);  // of a range
  // The longest backed stretch around an address; false: the address is in no range.
  bool backed_around(Address at, Address* begin, Bytes* bytes);

  // Unmaps idle pages that no work can reach any more. Callers hold both locks.
  void drop_idle(bool synced, HotGuard& hot);
  // Appends the stretches that are mapped. Callers hold the hot lock.
  void mapped_ranges(std::vector<std::pair<Address, Bytes>>* ranges) const;

 private:
  struct Part {
    VirtualRange* range = nullptr;
    uint64_t first = 0, last = 0;  // pages [first, last)
  };
  // A page that is being backed.
  struct Fill {
    uint64_t index = 0;
    Block* block = nullptr;
    Block* former = nullptr;  // what backed the page before
    bool mapped = false;      // its granule is mapped there
    bool owed = false;        // the driver refused to unmap it again
  };
  using Fills = std::vector<Fill>;

  VirtualRange& need(Address base) const;
  Part inside(Address base, Bytes offset, Bytes bytes) const;
  Part touched(Address base, Bytes offset, Bytes bytes) const;

  bool free_again(const VirtualPage& page, const Request& r, Wait wait);
  Block* take_again(const VirtualPage& page, const Request& r, StreamHandle stream);
  bool retake_all(const Part& part, const Request& r, StreamHandle stream, const PageLog& log);
  Block* make_block(Span* span, const Request& r, StreamHandle stream);
  void take(Address base, Bytes offset, Bytes bytes, StreamHandle stream, const PageLog& log);
  void require_possible(const Part& part, const Request& r, HotGuard& hot);
  Fills claim(const Part& part, bool all);
  void take_granules(VirtualRange& range, Fills& fills, const Request& r, StreamHandle stream,
                     HotGuard& hot);
  void fill(VirtualRange& range, Fills& fills, HotGuard& hot);
  void undo(VirtualRange& range, const Fills& fills, HotGuard& hot);
  bool map_again(VirtualRange& range, const Fill& f, HotGuard& hot);
  void map(VirtualRange& range, Fills& fills, HotGuard& hot);
  void abandon(VirtualRange& range, Fills& fills, uint64_t mapped, HotGuard& hot);
  void unmap_later(VirtualRange& range, uint64_t first, uint64_t last);
  void clear(VirtualRange& range, const std::vector<uint64_t>& pages, HotGuard& hot);
  Status unmap(VirtualRange& range, uint64_t first, uint64_t last, HotGuard& hot);
  void set_mapping(VirtualRange& range, VirtualPage& page, const Block& block);
  void forget_mapping(VirtualRange& range, VirtualPage& page);
  void unback(const Part& part, StreamHandle stream, const PageLog& log);
  void require_endable(VirtualRange& range);
  void give(Block* block, const PageLog* log);

  Heap& heap_;
  Device& device_;
  VirtualBook& book_;
};

}  // namespace glake
