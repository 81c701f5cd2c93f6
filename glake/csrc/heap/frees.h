// What becomes of a freed block: its bytes are free at once, or after streams recorded on it, or it
// is kept whole. Under hot; no driver call but stream waits.
#pragma once

#include "heap/device.h"

namespace glake {

class Frees {
 public:
  explicit Frees(Heap& heap) : heap_(heap), device_(heap.device) {}

  void free(Block* block);
  // No other process may open the block from now on.
  void end_share(Block* block);
  // Frees the blocks of this heap that threads keep for themselves: large ones, or small ones too.
  void drain_caches(bool small_too);
  // Gives back the pending blocks whose recorded work is complete. Where waiting is allowed, also
  // those of which that work can be ordered before the next work of the block's own stream. Then
  // that stream's ticket stands for all of it.
  void drain_pending(Wait wait);
  // Gives back the blocks that are kept whole. After drain_pending(), which may add to them.
  void drain_whole();
  // The smallest block kept whole that is large enough for r, not split; null: there is none.
  Block* take_whole(const Request& r, StreamHandle stream);

 private:
  void keep_waiting(Block* block);
  void give_or_keep(Block* block, const Tickets& tickets);
  void give(Block* block, const Tickets& tickets);

  Heap& heap_;
  Device& device_;
};

}  // namespace glake
