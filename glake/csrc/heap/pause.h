// A heap's part in pausing: what is mapped goes to the driver and comes back to the same addresses,
// as far as the driver lets it. Needs slow.
#pragma once

#include <string>
#include <vector>

#include "heap/device.h"

namespace glake {

class Pause {
 public:
  explicit Pause(Heap& heap) : heap_(heap), device_(heap.device) {}

  // As texts name the heap.
  std::string text() const;
  [[noreturn]] static void refuse(const std::string& text) {
    throw Error(GLAKE_REGION_REFUSED, text);
  }
  // Throw Error: that it is paused; that it may not be.
  void require_resumed() const;
  void require_pausable();

  // All that the heap has mapped; and what of it is to be saved.
  void list_homes();
  std::vector<SavedPart> bytes_to_save();
  // Driver calls, hot not held: true if nothing is mapped any more; and mapping it again, which
  // goes on where the last refusal left it.
  bool unmap_homes();
  Status map_homes();
  // Gives back what a paused heap still has, as far as the driver takes it.
  void give_homes(HotGuard& hot);
  // Has the granules again, all mapped where they were, or throws and is paused as before.
  void map_again(HotGuard& hot);
  // To those who follow events: blocks leave their views, and memory its place; or both come back.
  void tell(bool paused);
  // What has been freed while its heap was paused is memory that need not come back. Under both
  // locks, as the books of the granules are without hot elsewhere.
  void drop_freed();
  // The same of the bytes that were saved; their places are the caller's. Under hot.
  void drop_saved(std::vector<SavedBytes::Place>& places);
  // Does the first, and a heap of which nothing is left is paused no more.
  void end_if_empty();
  // While a heap is paused, what Trim::all() does.
  void trim(bool synced, HotGuard& hot);

 private:
  Status grant(Address at, uint64_t granules);
  Error cannot_resume(const std::string& said, Granules needs, Granules lacks);

  Heap& heap_;
  Device& device_;
};

}  // namespace glake
