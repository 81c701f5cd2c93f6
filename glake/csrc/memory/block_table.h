// The blocks of a reserved range, by the cell in which they start. A cell has 512 B where small
// blocks live, and 1 MiB elsewhere. At most one block starts in almost every cell.
//
// Host memory for the cells is taken when needed, for one GiB of device addresses at a time. A
// table of the whole range could take more address space than a limited process may have (`ulimit
// -v`).
#pragma once

#include <atomic>
#include <cstddef>

#include "base/types.h"
#include "memory/block.h"
#include "memory/pointer_map.h"

namespace glake {

class BlockTable {
 public:
  BlockTable(Address base, Bytes size, Bytes cell, Heap* heap);
  BlockTable(const BlockTable&) = delete;
  BlockTable& operator=(const BlockTable&) = delete;

  Address base() const { return base_; }
  Bytes size() const { return size_; }
  Heap* heap() const { return heap_; }

  // Makes the cells of [begin, begin + bytes), before any block starts there. Throws Error. Only
  // one thread may do this at a time. It need not hold the device's lock.
  void prepare(Address begin, Bytes bytes);
  void insert(Block* block);  // under the device's lock
  void erase(Block* block);   // under the device's lock
  // The block that starts at `ptr`, if it is the first of its cell. Takes no lock. If it returns
  // null, there may still be such a block: ask find().
  inline Block* peek(Address ptr) const;
  Block* find(Address ptr) const;  // under the device's lock
  // The block that holds the byte at `ptr` and begins at `low` or later; null: there is none. It is
  // called under the device's lock, and takes time linear in the distance from the block's begin to
  // `ptr`.
  Block* around(Address ptr, Address low) const;

 private:
  friend class PointerMap;
  // Null if no cells have been made there.
  inline Cell* cell(Address ptr) const;
  // `memory` is the new table of the GiB at `begin`.
  void use_huge_pages(void* memory, Address begin);
  Bytes table_bytes() const { return (kRangeAlign >> shift_) * sizeof(Cell); }

  Address base_;
  Bytes size_;
  int shift_;
  Heap* heap_;
};

inline Cell* BlockTable::cell(Address ptr) const {
  Cell* cells = PointerMap::pages_[ptr / kRangeAlign].cells.load(std::memory_order_acquire);
  return cells != nullptr ? &cells[ptr % kRangeAlign >> shift_] : nullptr;
}

inline Block* BlockTable::peek(Address ptr) const {
  const Cell* head = cell(ptr);
  Block* b = head != nullptr ? head->load(std::memory_order_acquire) : nullptr;
  return b != nullptr && b->ptr.load(std::memory_order_relaxed) == ptr ? b : nullptr;
}

}  // namespace glake
