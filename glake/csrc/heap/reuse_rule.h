// Which freed memory of a heap a stream may have again.
//
// An open heap's: what is complete or ordered before the stream's next work, else what it can wait
// for. A captured one's: what the stream itself freed and no other, whatever is complete, since a
// graph may be replayed at any time. A pool that splits nothing (GLAKE_POOL_NO_SPLIT) gives its
// freed blocks out whole.
#pragma once

#include "glake/glake.h"
#include "memory/block.h"
#include "memory/stream_clock.h"

namespace glake {

class ReuseRule {
 public:
  explicit ReuseRule(StreamClock& clock) : clock_(clock) {}

  bool ordered(StreamId s, Ticket t) const {
    return captured_ ? t.stream == s : clock_.ordered(s, t);
  }
  bool ordered(StreamId s, const Tickets& tickets) const {
    for (Ticket t : tickets) {
      if (!ordered(s, t)) return false;
    }
    return true;
  }
  // True if the stream can have what these tickets name: ordered, or after a wait.
  bool can_have(StreamId s, const Tickets& tickets) const {
    for (Ticket t : tickets) {
      if (!ordered(s, t) && (captured_ || !clock_.can_wait(s, t))) return false;
    }
    return true;
  }
  bool wait_for(StreamId s, const Tickets& pending) {
    return captured_ ? pending.empty() : clock_.wait(s, pending);
  }
  // Whether a stream may wait for others' work at all.
  bool waits() const { return !captured_; }
  // What arenas ask before they merge freed neighbours.
  const Completion* completion() const { return captured_ ? nullptr : clock_.completion(); }

  // A graph may use the memory: mappings stay as they are, and nothing is lent or given back.
  bool captured() const { return captured_; }
  // What other streams do with captured memory, they do in the graph: no event can say when, so
  // that a block recorded on them is not free before every capture is over.
  bool frees_after_capture(const Block& b) const { return captured_ && !b.recorded.empty(); }
  // A graph is being captured from the memory.
  void capture() {
    captured_ = true;
    note_use();
  }
  // Graphs may have been replayed until now.
  void note_use() { used_until_ = clock_.syncs_begun(); }
  // Once the last user has left and the device has been synchronised, no graph uses the memory.
  // True if that is so from now on.
  bool thaw(bool used) {
    if (!captured_ || used || clock_.synced() <= used_until_) return false;
    captured_ = false;
    return true;
  }

  // GLAKE_POOL_*.
  void set_flags(unsigned flags) { flags_ = flags; }
  bool whole_only() const { return (flags_ & GLAKE_POOL_NO_SPLIT) != 0; }
  // Rather than run out, other heaps may have its free memory.
  bool lends() const { return !captured_ && (flags_ & GLAKE_POOL_USE_ON_OOM) != 0; }
  // Open, and without flags.
  void reset() {
    captured_ = false;
    used_until_ = 0;
    flags_ = 0;
  }

 private:
  StreamClock& clock_;
  bool captured_ = false;
  uint64_t used_until_ = 0;  // synchronisations that had begun then
  unsigned flags_ = 0;
};

}  // namespace glake
