// Allocates at given addresses of a heap, and restores the blocks that were live at a checkpoint.
// Callers hold both locks.
#pragma once

#include <vector>

#include "heap/availability.h"
#include "heap/checkpoint.h"

namespace glake {

class Checkpoints {
 public:
  explicit Checkpoints(Heap& heap) : heap_(heap), device_(heap.device), available_(heap) {}

  // True if the bytes at `ptr` are this heap's and free.
  bool free_at(Address ptr, Bytes size);
  // Takes the bytes at `ptr`, which are free. Unless `any_order`, it takes them only if r's stream
  // may use them now or after a wait.
  Found take_at(Address ptr, const Request& r, bool any_order);
  // Restores the blocks of `then`. If it throws Error, nothing has changed.
  RestoreLog restore(const Checkpoint& then);

 private:
  std::vector<Block*> lift_all();
  void put_back(const std::vector<Block*>& lifted);
  std::vector<Found> take_all(const Checkpoint& then);

  Heap& heap_;
  Device& device_;
  Availability available_;
};

}  // namespace glake
