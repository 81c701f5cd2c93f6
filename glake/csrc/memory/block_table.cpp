#include "memory/block_table.h"

#include <sys/mman.h>

#include <algorithm>

namespace glake {

BlockTable::BlockTable(Address base, Bytes size, Bytes cell, Heap* heap)
    : base_(base), size_(size), shift_(__builtin_ctzll(cell)), heap_(heap) {}

void BlockTable::prepare(Address begin, Bytes bytes) {
  for (Address a = round_down(begin, kRangeAlign); a < begin + bytes; a += kRangeAlign) {
    std::atomic<Cell*>& cells = PointerMap::pages_[a / kRangeAlign].cells;
    if (cells.load(std::memory_order_relaxed) != nullptr) continue;
    // The kernel makes pages when they are touched, so the table of a mostly empty page costs
    // little.
    void* memory = mmap(nullptr, table_bytes(), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      throw Error(GLAKE_OUT_OF_MEMORY,
                  "no host memory for a pointer table of " + size_text(table_bytes()) +
                      ", which each GiB of device memory needs: raise the limit of address space "
                      "(ulimit -v), or free host memory");
    }
    use_huge_pages(memory, a);
    cells.store(static_cast<Cell*>(memory), std::memory_order_release);
  }
}

// Where many small blocks are live they begin all over a table of 512-byte cells, and with pages of
// 4 KiB almost every look-up would miss the processor's TLB. The start of a range stays in small
// pages, so that a pool of a few small blocks takes no huge page. Nothing depends on success.
void BlockTable::use_huge_pages(void* memory, Address begin) {
  constexpr Bytes kHugePage = 2 * kMiB;
  if (table_bytes() < kHugePage) return;
  const Bytes skipped = begin == base_ ? kHugePage : 0;
  madvise(static_cast<char*>(memory) + skipped, table_bytes() - skipped, MADV_HUGEPAGE);
}

void BlockTable::insert(Block* block) {
  Cell& head = *cell(block->ptr);
  block->cell_next = head.load(std::memory_order_relaxed);
  head.store(block, std::memory_order_release);
}

void BlockTable::erase(Block* block) {
  Cell& head = *cell(block->ptr);
  Block* b = head.load(std::memory_order_relaxed);
  if (b == block) {
    head.store(block->cell_next, std::memory_order_release);
    return;
  }
  while (b != nullptr && b->cell_next != block) b = b->cell_next;
  if (b != nullptr) b->cell_next = block->cell_next;
}

Block* BlockTable::find(Address ptr) const {
  const Cell* head = cell(ptr);
  Block* b = head != nullptr ? head->load(std::memory_order_acquire) : nullptr;
  while (b != nullptr && b->ptr != ptr) b = b->cell_next;
  return b;
}

Block* BlockTable::around(Address ptr, Address low) const {
  const Address least = std::max(low, base_) >> shift_;
  for (Address i = ptr >> shift_;; --i) {
    const Cell* head = cell(i << shift_);
    // Blocks do not overlap, so only the last block that begins before it may hold it.
    Block* last = nullptr;
    Block* b = head != nullptr ? head->load(std::memory_order_acquire) : nullptr;
    for (; b != nullptr; b = b->cell_next) {
      if (b->ptr <= ptr && (last == nullptr || b->ptr > last->ptr)) last = b;
    }
    if (last != nullptr) return ptr - last->ptr < last->size ? last : nullptr;
    if (i == least) return nullptr;
  }
}

}  // namespace glake
