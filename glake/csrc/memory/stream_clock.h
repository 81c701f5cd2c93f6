// One clock for each device. It knows which work is complete, and which work is ordered before a
// stream's next work. Frees on a stream fall into epochs. An epoch is closed by recording one event
// (a mark) once somebody wants memory of it, and never by a free. While each stream reuses its own
// memory, no call is made.
#pragma once

#include <unordered_map>
#include <vector>

#include "driver/driver.h"
#include "memory/completion.h"
#include "memory/ended_streams.h"
#include "memory/stream_marks.h"
#include "memory/tickets.h"

namespace glake {

class StreamClock : public Completion {
 public:
  StreamClock(Driver& driver, int device) : driver_(driver), device_(device) {}

  StreamId id_of(StreamHandle handle);
  bool knows(StreamHandle handle) const { return ids_.find(handle) != ids_.end(); }
  size_t count() const { return streams_.size(); }
  // For arenas, which ask before they merge freed neighbours. Null while only one stream makes
  // tickets.
  const Completion* completion() const { return streams_.size() > 1 ? this : nullptr; }

  // Whether the stream is being captured. About another thread's own default stream the calling
  // thread cannot ask, so it gets the last answer. `answered`: whether the driver has answered now.
  bool capturing(StreamId id, bool* answered = nullptr);
  // The stream ends, for example with its thread. If the stream may still be asked, its pending
  // work is marked; an idle stream has none. If not, that work counts as complete after the next
  // device synchronisation.
  void forget(StreamHandle handle);

  // Returns the ticket of a free on this stream.
  Ticket stamp(StreamId id);

  // True if the work that the ticket names is complete, or ordered before `waiter`'s next work. No
  // driver call.
  bool ordered(StreamId waiter, Ticket ticket) const;
  bool ordered(StreamId waiter, const Tickets& tickets) const;
  bool complete(const Tickets& tickets) const override;

  // Called as an allocation starts on `id`. Afterwards the driver may be asked again about each
  // stream. Returns the stream's id. It is a new one if the handle now names another stream.
  StreamId turn(StreamId id);
  // Closes every epoch with frees in it, so that poll() can tell when they are complete.
  void mark_all();
  // Asks which streams other than `waiter` are idle. What was freed on an idle stream is complete,
  // even if no mark has closed its epoch. The epochs of the other streams are closed.
  void ask_idle(StreamId waiter);
  // Asks the driver which marks have completed.
  void poll();
  // Asks the driver whether the ticket's work is complete. It asks about the mark behind that work.
  // If there is no mark, it asks whether the stream is idle, and records a mark if it is not. In
  // one turn a stream is asked about once, and at most Tuning::kPollsATurn streams are asked about.
  // Otherwise a request among many streams with endless work would ask about all of them.
  void ask(Ticket t);
  // Orders the tickets' work before `waiter`'s next work, by cuStreamWaitEvent on marks. It prefers
  // marks that were recorded earlier. False if the driver refuses or a stream is being captured.
  bool wait(StreamId waiter, const Tickets& tickets);
  // True if wait() would succeed for this ticket. It would not if the waiter is captured, or if the
  // ticket's stream is captured and has no later mark.
  bool can_wait(StreamId waiter, Ticket t);
  // Blocks the host until the tickets' work is complete.
  bool wait_host(const Tickets& tickets);
  // Closes the epochs, and returns the events that cover every free so far on streams that may be
  // asked about. The caller waits for them with no lock but the device's slow lock. poll() then
  // knows the result.
  std::vector<EventId> last_marks();
  // True if any known stream is being captured.
  bool any_capturing();
  // Called before and after a device synchronisation. What was stamped before begin_sync() is
  // complete at end_sync(). The contexts that it returns must be synchronised as well: streams of
  // other GPUs use this device's memory, too.
  std::vector<void*> begin_sync();
  void end_sync();
  // Work that no ticket names may use any memory. So nothing is complete until a device
  // synchronisation that begins later has ended.
  void note_unticketed() { unticketed_ = syncs_.begun + 1; }
  // How many synchronisations have begun, and the number of the last one that has ended.
  struct Syncs {
    uint64_t begun = 0, ended = 0;
  };
  const Syncs& syncs() const { return syncs_; }
  const EndedStreams& ended() const { return ended_; }
  // Gives ids of ended streams to later streams, except for those that blocks name.
  void reuse(const std::vector<bool>& named);
  // How often a handle was found to name another stream than before.
  uint64_t replaced() const { return replaced_; }

  uint64_t waits() const { return waits_; }
  uint64_t marks() const { return marks_; }
  // Destroys every event, for a shutdown. A refusal stops it, and the caller may try again.
  Status close();

 private:
  struct Stream {
    // The record is for this stream from now on. Epochs go on where an earlier stream's ended.
    void begin(StreamHandle stream, void* context);
    // Takes note of the driver's answer to a call about the stream.
    void told(Status s) { gone |= s.stream_gone(); }
    // The source's last epoch that is ordered before this stream's next work. 0: there is none.
    uint64_t waited_for(StreamId source) const;
    void note_wait(StreamId source, uint64_t epoch, const std::vector<Stream>& streams);

    StreamHandle handle = 0;
    uint64_t open = 1;          // the epoch that frees are stamped with now
    uint64_t completed = 0;     // every epoch up to this one is complete
    uint64_t syncing = 0;       // the epoch that will be complete at end_sync()
    uint64_t polled = 0;        // the turn in which ask() last asked about it
    uint64_t frees = 0;         // in the open epoch
    uint64_t number = 0;        // the driver's number of the stream; 0: not known
    void* elsewhere = nullptr;  // its context, if that is not this device's primary one
    bool gone = false;          // destroyed, so no mark will ever be recorded there
    bool capturing = false;     // the last answer
    StreamMarks marks;          // of closed epochs that are not known to be complete
    // One for each stream that it has waited for and whose work may be under way, which are few. A
    // table of all streams by all streams would be gigabytes in programs that make a stream for
    // each piece of work.
    std::vector<Ticket> waited;
  };

  // True if the stream must not be asked about by this thread now: it is another thread's own
  // default stream, or may have been destroyed (driver/stream_lives.h).
  bool foreign(const Stream& s) const;
  // False if nothing may be recorded or waited for on the stream: it is captured, gone, or foreign.
  bool usable(StreamId id);
  bool same_stream(StreamId id);
  // The id names no stream from now on. Returns its handle. kMarked: all work of the stream lies in
  // closed epochs. kPerhaps: the driver refused a call as if the stream had ended.
  enum class End { kMarked, kUnmarked, kPerhaps };
  StreamHandle end(StreamId id, End how);
  StreamId renew(StreamId id);
  bool may_query(StreamId id);
  // False if the driver refuses.
  bool close_epoch(StreamId id);
  bool mark(StreamId id);
  bool record(StreamId id);
  void completed_up_to(StreamId id, uint64_t epoch);

  Driver& driver_;
  int device_;
  std::vector<Stream> streams_;
  std::unordered_map<StreamHandle, StreamId> ids_;
  StreamId last_ = 0;
  uint64_t turns_ = 1;
  int polls_ = 0;  // how often single streams were asked about in this turn
  std::vector<EventId> spare_events_;
  uint64_t waits_ = 0;
  uint64_t marks_ = 0;
  Syncs syncs_;
  EndedStreams ended_;
  uint64_t unticketed_ = 0;  // the synchronisation that ends the work that no ticket names
  uint64_t replaced_ = 0;
};

}  // namespace glake
