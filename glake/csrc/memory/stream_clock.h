// Which work is known to be complete, and which is ordered before which stream: one clock per
// device. Frees on a stream fall into epochs; an epoch is closed by recording one event (a mark)
// once somebody wants memory of it, never by a free. While each stream reuses its own memory, no
// call is made.
#pragma once

#include <unordered_map>
#include <vector>

#include "driver/driver.h"
#include "memory/completion.h"
#include "memory/stream_marks.h"
#include "memory/tickets.h"

namespace glake {

class StreamClock : public Completion {
 public:
  StreamClock(Driver& driver, int device) : driver_(driver), device_(device) {}

  StreamId id_of(StreamHandle handle);
  bool knows(StreamHandle handle) const { return ids_.find(handle) != ids_.end(); }
  size_t count() const { return streams_.size(); }
  // What arenas ask before they merge freed neighbours: null while one stream makes all tickets
  // alike.
  const Completion* completion() const { return streams_.size() > 1 ? this : nullptr; }

  // As seen by the thread that asks: another thread's own default stream cannot be asked about.
  bool capturing(StreamId id);
  // The stream ends, as that of a thread that ends: what is pending there is marked where it still
  // may be, else complete at the next device synchronisation.
  void forget(StreamHandle handle);

  // A free on this stream: its ticket.
  Ticket stamp(StreamId id);

  // True if work `ticket` names is complete, or ordered before `waiter`'s next work. No driver
  // call.
  bool ordered(StreamId waiter, Ticket ticket) const;
  bool ordered(StreamId waiter, const Tickets& tickets) const;
  bool complete(const Tickets& tickets) const override;

  // Called as an allocation starts on `id`; what has been asked may be asked again. Returns the
  // stream's id, a new one if its handle is found to name another stream now.
  StreamId turn(StreamId id);
  // Closes every epoch with frees in it, so that poll() can tell when they are complete.
  void mark_all();
  // Asks which streams but `waiter` have nothing left to do: what was freed there is complete, even
  // where no mark has closed its epoch. Of the others, epochs are closed.
  void ask_idle(StreamId waiter);
  // Asks the driver which marks have completed.
  void poll();
  // Asks the driver whether the ticket's work is complete. It asks about the mark behind that work.
  // If there is no mark, it asks whether the stream is idle, and records a mark if it is not. A
  // stream is asked once a turn, and Tuning::kPollsATurn streams at most: otherwise a request among
  // many streams whose work never ends would ask them all.
  void ask(Ticket t);
  // Orders the tickets' work before `waiter`'s next work, by cuStreamWaitEvent on marks; prefers
  // marks recorded earlier. False if the driver refuses (or a stream is being captured).
  bool wait(StreamId waiter, const Tickets& tickets);
  // True if wait() would do for this ticket: not where its stream is captured and has no mark
  // since, nor where the waiter is.
  bool can_wait(StreamId waiter, Ticket t);
  // Blocks the host until the tickets' work is complete.
  bool wait_host(const Tickets& tickets);
  // The events that cover every free so far on streams that may be asked, epochs closed: for who
  // waits for them with no lock held, the device's slow lock apart. poll() then tells.
  std::vector<EventId> last_marks();
  // True if any stream seen is being captured.
  bool any_capturing();
  // Around a device synchronisation: everything stamped before begin_sync() is complete at
  // end_sync().
  void begin_sync();
  void end_sync();
  // Work no ticket names may use any memory: nothing is complete until a device synchronisation
  // that begins later has ended.
  void note_unticketed() { unticketed_ = syncs_begun_ + 1; }
  // How many synchronisations have begun, and the number of the last that ended.
  uint64_t syncs_begun() const { return syncs_begun_; }
  uint64_t synced() const { return synced_; }
  // Handles found to name another stream than before.
  uint64_t replaced() const { return replaced_; }

  uint64_t waits() const { return waits_; }
  uint64_t marks() const { return marks_; }
  // Destroys every event (shutdown); a refusal stops it, to be tried again.
  Status close();

 private:
  struct Stream {
    // What the driver answered to a call about it.
    void told(Status s) { gone |= s.stream_gone(); }

    StreamHandle handle = 0;
    uint64_t open = 1;             // the epoch frees are stamped with now
    uint64_t completed = 0;        // every epoch up to this one is complete
    uint64_t syncing = 0;          // will be complete at end_sync()
    uint64_t polled = 0;           // the turn in which ask() last did
    uint64_t frees = 0;            // in the open epoch
    uint64_t number = 0;           // the driver's; 0: not known
    bool gone = false;             // destroyed: no mark will ever be recorded there
    bool capturing = false;        // when last asked
    StreamMarks marks;             // of closed epochs not known complete
    std::vector<uint64_t> waited;  // by source stream: the epoch ordered before this stream
  };

  // Not to be asked about here and now: another thread's own default stream, or one that may have
  // been destroyed (driver/stream_lives.h).
  bool foreign(const Stream& s) const;
  // False if nothing may be recorded or waited for there: captured, gone, or foreign.
  bool usable(StreamId id);
  bool same_stream(StreamId id);
  StreamId replace(StreamId id);
  StreamId revive(StreamId id, StreamHandle handle);
  StreamId renew(StreamId id);
  bool may_query(StreamId id);
  void close_epoch(StreamId id);
  bool mark(StreamId id);
  bool record(StreamId id);
  void completed_up_to(StreamId id, uint64_t epoch);

  Driver& driver_;
  int device_;
  std::vector<Stream> streams_;
  std::unordered_map<StreamHandle, StreamId> ids_;
  StreamId last_ = 0;
  uint64_t turns_ = 1;
  int polls_ = 0;  // in this turn, of single streams
  std::vector<EventId> spare_events_;
  uint64_t waits_ = 0;
  uint64_t marks_ = 0;
  uint64_t syncs_begun_ = 0, synced_ = 0;
  uint64_t unticketed_ = 0;  // the synchronisation that ends work no ticket names
  uint64_t replaced_ = 0;
};

}  // namespace glake
