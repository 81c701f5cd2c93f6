// A virtual range: reserved addresses, any page of which can be backed by a granule. A page may
// share its granule with other pages.
//
// A page that is unbacked stays mapped: its granule is free memory for every request, as the
// granules of an idle view are. If the granule is still free when the page is backed again, no
// driver call is needed. Otherwise the page is mapped anew, which needs the work to be over that
// used the page before.
//
// This only keeps books. Callers hold the device's hot lock.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "memory/arena.h"
#include "memory/block.h"
#include "memory/reservation.h"

namespace glake {

struct VirtualPage {
  // Notes work that may use the page after it was unbacked.
  void used_until(Ticket t) { tickets_full |= !tickets.add(t); }
  bool mapped() const { return arena != nullptr; }
  bool idle() const { return mapped() && block == nullptr; }

  Block* block = nullptr;     // the granule behind it, as a block at home; null: not backed
  Arena* arena = nullptr;     // the home of the granule that is mapped here; null: none is
  uint64_t granule = 0;       // its index there
  Tickets tickets;            // work that used the page before it was last unbacked
  bool tickets_full = false;  // `tickets` lacks some of that work, because it was full
  bool claimed = false;       // the holder of the slow lock maps or unmaps it
};

class VirtualRange {
 public:
  // Throws Error when the driver refuses the addresses.
  VirtualRange(Driver& driver, Heap* heap, Granules length);

  Address base() const { return reservation_.base(); }
  Granules length() const { return length_; }
  Address at(uint64_t page) const { return base() + page * kGranule; }
  bool contains(Address a) const { return a - base() < length_.bytes(); }
  Status release() { return reservation_.release(); }

  // The page's books, which are made at the first call. find() returns null before that.
  VirtualPage& page(uint64_t index);
  const VirtualPage* find(uint64_t index) const;
  bool backed(uint64_t index) const {
    const VirtualPage* page = find(index);
    return page != nullptr && page->block != nullptr;
  }
  // Calls visit(index, page) for each page that has books, in order; of all pages, or of
  // [first, last).
  template <typename Visit>
  void each(Visit&& visit) {
    each(0, length_.count, visit);
  }
  template <typename Visit>
  void each(uint64_t first, uint64_t last, Visit&& visit) {
    for (uint64_t i = first; i < last;) {
      Chunk* chunk = chunks_[i / kChunk].get();
      const uint64_t end = std::min(last, (i / kChunk + 1) * kChunk);
      for (; chunk != nullptr && i < end; ++i) visit(i, (*chunk)[i % kChunk]);
      i = end;
    }
  }

  uint64_t backed_pages = 0;  // with a block
  uint64_t mapped_pages = 0;  // with a granule mapped, backed or not
  bool ending = false;        // a thread ends it

 private:
  // One GiB of addresses. Books of longer ranges are made where they are used.
  static constexpr size_t kChunk = kGiB / kGranule;
  using Chunk = std::array<VirtualPage, kChunk>;

  Reservation reservation_;
  Granules length_;
  std::vector<std::unique_ptr<Chunk>> chunks_;
};

}  // namespace glake
