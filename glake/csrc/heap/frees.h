// Handles freed blocks. A block's bytes become free at once, or when the streams recorded on it are
// done, or the block is kept whole. Callers hold the hot lock. The only driver calls are stream
// waits.
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
  // Gives back the pending blocks whose recorded work is complete. Where waiting is allowed, it
  // also gives back blocks whose own stream can be made to wait for that work. Then a ticket of the
  // block's own stream stands for the work of all recorded streams.
  void drain_pending(Wait wait);
  // Gives back the blocks that are kept whole. Call it after drain_pending(), which may add to
  // them.
  void drain_whole();
  // Takes the smallest of the blocks kept whole that is large enough for r, and does not split it.
  // Null if there is none.
  Block* take_whole(const Request& r, StreamHandle stream);

 private:
  void keep_waiting(Block* block);
  void give_or_keep(Block* block, const Tickets& tickets);
  void give(Block* block, const Tickets& tickets);

  Heap& heap_;
  Device& device_;
};

}  // namespace glake
