// A heap's part in pausing. Its granules go back to the driver, as far as the driver takes them.
// Later, granules are mapped at the same addresses again. Callers hold the slow lock.
#pragma once

#include <string>
#include <vector>

#include "heap/device.h"

namespace glake {

class Pause {
 public:
  explicit Pause(Heap& heap) : heap_(heap), device_(heap.device) {}

  // The heap's name in texts.
  std::string text() const;
  [[noreturn]] static void refuse(const std::string& text) {
    throw Error(GLAKE_REGION_REFUSED, text);
  }
  // Throws Error if the heap is paused.
  void require_resumed() const;
  // Throws Error if the heap may not be paused now.
  void require_pausable();

  // Notes all that the heap has mapped.
  void list_homes();
  // The part of all that is mapped whose bytes must be saved.
  std::vector<SavedPart> bytes_to_save();
  // Driver calls, with hot not held. True if nothing is mapped any more.
  bool unmap_homes();
  // Maps all of it again, and begins where the last refusal stopped it. Driver calls, with hot not
  // held.
  Status map_homes();
  // Gives back what a paused heap still has, as far as the driver takes it.
  void give_homes(HotGuard& hot);
  // Maps all granules where they were. Throws if the driver refuses; the heap is then paused as
  // before.
  void map_again(HotGuard& hot);
  // Tells those who follow events that memory is unmapped, blocks in views included, or that it is
  // mapped again.
  void tell(bool paused);
  // Forgets memory that was freed while the heap was paused, because it need not come back. Callers
  // hold both locks, because other users of the granules' books do not hold hot.
  void drop_freed();
  // Adds to `places` the saved bytes of memory that was freed while the heap was paused. The caller
  // forgets them. Callers hold the hot lock.
  void drop_saved(std::vector<SavedBytes::Place>& places);
  // Calls drop_freed(). If nothing of the heap is left, it is no longer paused.
  void end_if_empty();
  // Does for a paused heap what Trim::all() does for others.
  void trim(bool synced, HotGuard& hot);

 private:
  Status grant(Address at, uint64_t granules);
  // `said`: what the driver said; empty: the limit is what refuses.
  Error cannot_resume(const std::string& said, Granules needs, Granules lacks);
  Error kept_by_headroom(Granules needs, Granules lacks);
  Error cannot_resume(const std::string& state, const std::string& way_out, Granules needs,
                      Granules lacks);

  Heap& heap_;
  Device& device_;
};

}  // namespace glake
