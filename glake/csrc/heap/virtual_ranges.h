// Virtual ranges: addresses whose pages callers back with memory and unback, one by one
// (memory/virtual_range.h). The memory is the device's own heap's, granule by granule. So what a
// range does not use serves every other request, and the reverse.
//
// A driver call is made only where a page is mapped anew, where a range ends, and where idle
// granules go back to the driver. unback() makes none.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "heap/page_backing.h"
#include "memory/virtual_book.h"

namespace glake {

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
  VirtualRange& need(Address base) const;
  Part inside(Address base, Bytes offset, Bytes bytes) const;
  Part touched(Address base, Bytes offset, Bytes bytes) const;

  void take(Address base, Bytes offset, Bytes bytes, StreamHandle stream, const PageLog& log);
  void require_possible(const Part& part, const Request& r, HotGuard& hot);
  void unback(const Part& part, StreamHandle stream, const PageLog& log);
  void require_endable(VirtualRange& range);

  Heap& heap_;
  Device& device_;
  VirtualBook& book_;
};

}  // namespace glake
