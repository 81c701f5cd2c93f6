// Finds memory for a request when nothing that is mapped fits, in the order of docs/design.md ("A
// request"). Callers hold the slow lock. Hot is let go around every mapping call.
#pragma once

#include "heap/device.h"

namespace glake {

class SlowPath {
 public:
  explicit SlowPath(Heap& heap) : heap_(heap), device_(heap.device) {}

  // Throws Error (GLAKE_OUT_OF_MEMORY, GLAKE_DRIVER_ERROR).
  Block* allocate(const Request& r, StreamHandle stream, HotGuard& hot);
  // The same for a request of granules: spans that no block has yet.
  Found granules(const Request& r, HotGuard& hot);
  // Tries the memory that caches and record_stream hold back, then granules joined at their edges.
  Found last_resort(const Request& r, HotGuard& hot);

 private:
  Found all(const Request& r, HotGuard& hot);
  bool grows_to_keep(const Request& r);
  Bytes most_held(const Request& r, uint64_t part);
  Found sized(const Request& r, HotGuard& hot);
  Found small(const Request& r, HotGuard& hot);
  bool caches_hoard() const;
  Found in_rest(const Request& r);
  Found large(const Request& r, HotGuard& hot);
  void ask_all(const Request& r);

  Heap& heap_;
  Device& device_;
};

}  // namespace glake
