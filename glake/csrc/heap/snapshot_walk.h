// The walk over everything that a device holds. Home memory is shown as runs of neighbouring bytes
// with granules behind them. The bytes under a stitched block are cut out of these runs and shown
// at the block's own address, so that every physical byte appears once.
#pragma once

#include <unordered_map>

#include "heap/device.h"
#include "heap/snapshot.h"

namespace glake {

class SnapshotWalk {
 public:
  explicit SnapshotWalk(Device& device) : device_(device) {}

  // All memory that is held and all blocks, at one moment. Takes the locks.
  Snapshot take();

 private:
  using SpanOwners = std::unordered_map<const Span*, const Block*>;
  static void walk(const Heap& heap, const SpanOwners& owners, Snapshot* all);
  void walk_contiguous(Snapshot* all) const;
  static BlockShot shot_of(const Block& b, bool waits);

  Device& device_;
};

}  // namespace glake
