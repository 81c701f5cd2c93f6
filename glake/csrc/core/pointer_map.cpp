#include "core/pointer_map.h"

#include <sys/mman.h>

namespace glake {

std::atomic<Region*> PointerMap::pages_[PointerMap::kPages];

Region::Region(Address base, Bytes size, Bytes slot, DeviceAllocator* device)
    : base_(base), size_(size), shift_(__builtin_ctzll(slot)), device_(device) {
  // Zero pages appear as they are touched: a table of a mostly empty range costs nothing.
  mapped_ = (size >> shift_) * sizeof(std::atomic<Block*>);
  void* memory = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw Error(GLAKE_OUT_OF_MEMORY,
                "no host memory for a pointer table of " + std::to_string(mapped_ / kMiB) + " MiB");
  }
  slots_ = static_cast<std::atomic<Block*>*>(memory);
}

Region::~Region() { munmap(slots_, mapped_); }

void Region::insert(Block* block) {
  std::atomic<Block*>& head = slot(block->ptr);
  block->slot_next = head.load(std::memory_order_relaxed);
  head.store(block, std::memory_order_release);
}

void Region::erase(Block* block) {
  std::atomic<Block*>& head = slot(block->ptr);
  Block* b = head.load(std::memory_order_relaxed);
  if (b == block) {
    head.store(block->slot_next, std::memory_order_release);
    return;
  }
  while (b != nullptr && b->slot_next != block) b = b->slot_next;
  if (b != nullptr) b->slot_next = block->slot_next;
}

Block* Region::find(Address ptr) const {
  Block* b = slot(ptr).load(std::memory_order_acquire);
  while (b != nullptr && b->ptr != ptr) b = b->slot_next;
  return b;
}

Block* Region::around(Address ptr, Address low) const {
  const Address first = low > base_ ? (low - base_) >> shift_ : 0;
  for (Address i = (ptr - base_) >> shift_;; --i) {
    // Blocks do not overlap: of those that begin before it, only the last may hold it.
    Block* last = nullptr;
    for (Block* b = slots_[i].load(std::memory_order_acquire); b != nullptr; b = b->slot_next) {
      if (b->ptr <= ptr && (last == nullptr || b->ptr > last->ptr)) last = b;
    }
    if (last != nullptr) return ptr - last->ptr < last->size ? last : nullptr;
    if (i == first) return nullptr;
  }
}

void PointerMap::add(Region* region) {
  for (Address a = region->base(); a < region->base() + region->size(); a += kRegionAlign) {
    pages_[a / kRegionAlign].store(region, std::memory_order_release);
  }
}

void PointerMap::remove(Region* region) {
  for (Address a = region->base(); a < region->base() + region->size(); a += kRegionAlign) {
    pages_[a / kRegionAlign].store(nullptr, std::memory_order_release);
  }
}

}  // namespace glake
