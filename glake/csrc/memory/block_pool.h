// Records of blocks. They are reused and never returned to the system, so that a look-up of a stale
// pointer reads no freed memory.
#pragma once

#include <vector>

#include "memory/block.h"
#include "memory/slabs.h"

namespace glake {

class BlockPool {
 public:
  Block* make() {
    if (idle_.empty()) return store_.make();
    Block* b = idle_.back();
    idle_.pop_back();
    return b;
  }
  // Every block that holds memory: live, cached, or freed and held back.
  template <typename Visit>
  void for_each(Visit&& visit) const {
    store_.for_each([&](const Block& b) {
      if (b.pieces != nullptr) visit(b);
    });
  }
  void recycle(Block* b) {
    b->state.store(BlockState::kIdle, std::memory_order_release);
    b->pieces = nullptr;
    b->view = nullptr;
    b->allocation = nullptr;
    b->share = 0;
    b->recorded.clear();
    idle_.push_back(b);
  }

 private:
  Slabs<Block> store_;
  std::vector<Block*> idle_;
};

}  // namespace glake
