// What may be done with a heap's memory, and which freed memory a stream may have again.
//
// The rule follows from three things, which only this class looks at. One is whether the heap is
// the device's own or a private pool's. Another is whether a CUDA graph may use its memory, in
// which case it is captured. The third is the pool's flags (GLAKE_POOL_*).
//
// From an open heap a stream may have memory whose past work is complete, is ordered before the
// stream's next work, or can be waited for. From a captured heap a stream may have only what it
// freed itself, because a graph may be replayed at any time, even if all past work is complete. A
// pool that splits nothing (GLAKE_POOL_NO_SPLIT) gives its freed blocks out whole.
#pragma once

#include "glake/glake.h"
#include "heap/request.h"
#include "memory/block.h"
#include "memory/stream_clock.h"

namespace glake {

class ReuseRule {
 public:
  // `own`: the heap is the device's own.
  ReuseRule(StreamClock& clock, bool own) : clock_(clock), own_(own) {}

  // True if the past work of freed memory is ordered before the stream's next work.
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
  // True if a stream may have memory that it must wait for.
  bool may_wait() const { return !captured_; }
  // What arenas ask before they merge freed neighbours.
  const Completion* completion() const { return captured_ ? nullptr : clock_.completion(); }
  // True if threads keep freed blocks for their own next requests.
  bool cached_by_threads() const { return own_; }
  // True if large requests are offered the places that their counterparts in the last step had.
  bool follows_steps() const { return own_; }
  // True if a checkpoint's blocks get their memory back only where the order of work allows it. A
  // graph has an order of its own.
  bool restores_in_order() const { return !captured_; }

  // True if the freed block, which other streams were recorded on, becomes free only after every
  // capture. Those streams use captured memory inside the graph, where no event can tell when they
  // are done.
  bool frees_after_capture(const Block& b) const { return captured_ && !b.recorded.empty(); }
  bool holds_recorded() const { return captured_ && clock_.any_capturing(); }
  // True if each request first looks which recorded blocks are free by now.
  bool frees_recorded_first() const { return captured_; }
  // True if a recorded block's own stream is made to wait for the other streams. This is so
  // wherever the caller may wait. In captured memory it is always so, because only that stream may
  // have the bytes.
  bool orders_recorded(Wait wait) const { return captured_ || wait == Wait::kAllowed; }

  // True if freed blocks are kept whole.
  bool whole_only() const { return (flags_ & GLAKE_POOL_NO_SPLIT) != 0; }
  // True if the heap splits such blocks before it runs out of memory.
  bool may_split_whole() const { return !captured_; }

  // True if memory may be unmapped, mapped elsewhere or given back to the driver. It may not while
  // a graph may use it where it is.
  bool may_unmap() const { return !captured_; }
  // True if a graph may read what was written into memory that has been freed since.
  bool freed_may_be_read() const { return captured_; }

  // True if other heaps may have this heap's free memory before they run out.
  bool lends() const { return !captured_ && (flags_ & GLAKE_POOL_USE_ON_OOM) != 0; }
  // True if this heap may have other heaps' free memory before it runs out. A captured heap may
  // not: the lender would get the bytes back while the graph may still be replayed.
  bool may_borrow() const { return !captured_; }

  // True if a graph may use the memory. Only texts need to know.
  bool captured() const { return captured_; }

  // Notes that a graph that uses the memory is being captured.
  void capture() {
    captured_ = true;
    note_use();
  }
  // Notes that graphs may have been replayed until now.
  void note_use() { used_until_ = clock_.syncs().begun; }
  // Ends the captured state once the last user has left and the device has been synchronised since,
  // because no graph uses the memory any more. True if this call has ended it.
  bool thaw(bool used) {
    if (!captured_ || used || clock_.syncs().ended <= used_until_) return false;
    captured_ = false;
    return true;
  }
  // GLAKE_POOL_*.
  void set_flags(unsigned flags) { flags_ = flags; }
  // Makes the heap open, without flags.
  void reset() {
    captured_ = false;
    used_until_ = 0;
    flags_ = 0;
  }

 private:
  StreamClock& clock_;
  const bool own_;
  bool captured_ = false;
  uint64_t used_until_ = 0;  // synchronisations that had begun at the last use
  unsigned flags_ = 0;
};

}  // namespace glake
