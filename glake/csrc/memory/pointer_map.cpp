#include "memory/pointer_map.h"

#include <sys/mman.h>

#include "memory/block_table.h"

namespace glake {

PointerMap::Page PointerMap::pages_[PointerMap::kPages];

void PointerMap::add(BlockTable* table) {
  for (Address a = table->base(); a < table->base() + table->size(); a += kRangeAlign) {
    pages_[a / kRangeAlign].table.store(table, std::memory_order_release);
  }
}

void PointerMap::remove(BlockTable* table) {
  for (Address a = table->base(); a < table->base() + table->size(); a += kRangeAlign) {
    Page& page = pages_[a / kRangeAlign];
    page.table.store(nullptr, std::memory_order_release);
    Cell* cells = page.cells.exchange(nullptr);
    if (cells != nullptr) munmap(cells, table->table_bytes());
  }
}

}  // namespace glake
