// What may be done with a heap's memory, and which freed memory a stream may have again.
//
// The rule follows from three things, which nobody else asks about: whether the heap is the
// device's own or a private pool's, whether a CUDA graph may use its memory (then it is captured),
// and the pool's flags (GLAKE_POOL_*).
//
// Of an open heap a stream may have what is complete or ordered before its next work, else what it
// can wait for. Of a captured one it may have what it freed itself and nothing else, whatever is
// complete, since a graph may be replayed at any time. A pool that splits nothing
// (GLAKE_POOL_NO_SPLIT) gives its freed blocks out whole.
#pragma once

#include "glake/glake.h"
#include "heap/request.h"
#include "memory/block.h"
#include "memory/stream_clock.h"

namespace glake {

class ReuseRule {
 public:
  // `own`: of the device's own heap.
  ReuseRule(StreamClock& clock, bool own) : clock_(clock), own_(own) {}

  // Freed memory.
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
  // A stream may have memory that it must wait for.
  bool may_wait() const { return !captured_; }
  // What arenas ask before they merge freed neighbours.
  const Completion* completion() const { return captured_ ? nullptr : clock_.completion(); }
  // Threads keep freed blocks for their own next requests.
  bool cached_by_threads() const { return own_; }
  // Large requests are offered the places that their counterparts in the last step had.
  bool follows_steps() const { return own_; }
  // A checkpoint's blocks get their memory back only where the order of work allows it. A graph has
  // an order of its own.
  bool restores_in_order() const { return !captured_; }

  // Freed blocks that other streams were recorded on. What those do with captured memory, they do
  // in the graph: no event can say when, so such a block is not free before every capture is over.
  bool frees_after_capture(const Block& b) const { return captured_ && !b.recorded.empty(); }
  bool holds_recorded() const { return captured_ && clock_.any_capturing(); }
  // Each request looks whether they are free by now.
  bool frees_recorded_first() const { return captured_; }
  // Their own stream is made to wait for the others: wherever the caller may wait, and in captured
  // memory always, where that stream alone may have the bytes.
  bool orders_recorded(Wait wait) const { return captured_ || wait == Wait::kAllowed; }

  // Freed blocks that are kept whole.
  bool whole_only() const { return (flags_ & GLAKE_POOL_NO_SPLIT) != 0; }
  // Rather than run out, the heap splits them.
  bool may_split_whole() const { return !captured_; }

  // Mappings. Memory may be unmapped, mapped elsewhere and given back to the driver: not while a
  // graph may use it where it is.
  bool may_unmap() const { return !captured_; }
  // A graph may read what was written into memory that has been freed since.
  bool freed_may_be_read() const { return captured_; }

  // Other heaps. Rather than run out, they may have its free memory.
  bool lends() const { return !captured_ && (flags_ & GLAKE_POOL_USE_ON_OOM) != 0; }
  // Rather than run out, it may have theirs. Not for a graph: the lender would have the bytes again
  // while the graph may still be replayed.
  bool may_borrow() const { return !captured_; }

  // For texts: a graph may use the memory.
  bool captured() const { return captured_; }

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
  // Open, and without flags.
  void reset() {
    captured_ = false;
    used_until_ = 0;
    flags_ = 0;
  }

 private:
  StreamClock& clock_;
  const bool own_;
  bool captured_ = false;
  uint64_t used_until_ = 0;  // synchronisations that had begun then
  unsigned flags_ = 0;
};

}  // namespace glake
