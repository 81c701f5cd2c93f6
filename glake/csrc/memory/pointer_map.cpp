#include "memory/pointer_map.h"

#include <sys/mman.h>

#include "memory/region.h"

namespace glake {

PointerMap::Page PointerMap::pages_[PointerMap::kPages];

void PointerMap::add(Region* region) {
  for (Address a = region->base(); a < region->base() + region->size(); a += kRegionAlign) {
    pages_[a / kRegionAlign].region.store(region, std::memory_order_release);
  }
}

void PointerMap::remove(Region* region) {
  for (Address a = region->base(); a < region->base() + region->size(); a += kRegionAlign) {
    Page& page = pages_[a / kRegionAlign];
    page.region.store(nullptr, std::memory_order_release);
    Slot* slots = page.slots.exchange(nullptr);
    if (slots != nullptr) munmap(slots, region->table_bytes());
  }
}

}  // namespace glake
