// Keeps granules from other threads while a search for more has released the device's lock.
#pragma once

#include <utility>
#include <vector>

#include "heap/device.h"

namespace glake {

// Marks granules as busy in their arenas, so that no other thread takes them while the hot lock is
// not held. The end of the scope frees them again.
class TakenGranules {
 public:
  TakenGranules(Heap& heap, StreamId stream) : heap_(heap), stream_(stream) {}
  ~TakenGranules() { release(); }
  TakenGranules(const TakenGranules&) = delete;
  TakenGranules& operator=(const TakenGranules&) = delete;

  // The past work of the runs must be ordered before the stream's next work.
  void take(const std::vector<GranuleRun>& runs) {
    for (const GranuleRun& run : runs) {
      Span* head = run.arena->extent_at_prefix(run.granule);
      Span* s = run.arena->take(head, run.arena->granule_at(run.granule), run.count * kGranule);
      s->stream = stream_;
      used_.emplace_back(run.arena, s);
    }
  }
  // Keeps a span that was just backed. No work has used it.
  void adopt(Arena& arena, Span* s) { fresh_.emplace_back(&arena, s); }
  void release() {
    const Completion* completion = heap_.rule.completion();
    for (auto& [arena, s] : used_) {
      arena->give(s, Tickets(heap_.device.clock.stamp(stream_)), completion);
    }
    for (auto& [arena, s] : fresh_) arena->give(s, Tickets{}, completion);
    used_.clear();
    fresh_.clear();
  }

 private:
  Heap& heap_;
  StreamId stream_;
  std::vector<std::pair<Arena*, Span*>> used_, fresh_;
};

}  // namespace glake
