// Finds an address's block table and the cells of that table by two shifts and two loads, without a
// hash or a lock. There is one map for the process, with a page for each GiB. Reserved ranges are
// aligned to 1 GiB and a multiple of 1 GiB long.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/types.h"

namespace glake {

struct Block;
class BlockTable;
using Cell = std::atomic<Block*>;

class PointerMap {
 public:
  static void add(BlockTable* table);
  static void remove(BlockTable* table);
  static BlockTable* find(Address ptr) {
    uint64_t page = ptr / kRangeAlign;
    return page < kPages ? pages_[page].table.load(std::memory_order_acquire) : nullptr;
  }

 private:
  friend class BlockTable;
  // The two are side by side because a look-up needs both. Neither load depends on the other.
  struct Page {
    std::atomic<BlockTable*> table{nullptr};
    std::atomic<Cell*> cells{nullptr};
  };
  static constexpr uint64_t kPages = uint64_t{1} << 19;  // 49-bit addresses
  static Page pages_[kPages];
};

}  // namespace glake
