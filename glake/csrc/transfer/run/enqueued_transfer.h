// A transfer whose copies are all enqueued at the start. It begins when its stream comes to it. Its
// chunks go from hop to hop by stream order and events. The stream goes on after the last chunk. No
// thread has a part in it, so nothing else that a process asks of the driver can hold it up. The
// price is that nothing can be changed later.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "transfer/call/copy.h"
#include "transfer/run/division_trials.h"
#include "transfer/run/path_threads.h"
#include "transfer/run/pipelines.h"
#include "transfer/run/share_out.h"

namespace glake::transfer {

class EnqueuedTransfer {
 public:
  struct Tools {
    Driver& driver;
    Devices& devices;
    Slots& slots;
    CopyKernel& kernel;
    PipelinePool& pipelines;
    PathThreads& threads;
    uint64_t copy_ns;
  };
  struct Carried {
    const PlannedPath* path = nullptr;   // a path of the plan, or the direct one
    PipelinePtr line;                    // null: it is not open
    Pipeline::Use use;                   // what it takes of the line
    std::vector<Pipeline::Step> steps;   // its streams: the next transfer may give the line more
    size_t tried = 0;                    // chunks that were submitted, wholly or in part
    std::vector<KernelBuffers> kernels;  // what its kernel launches use
    Bytes bytes = 0;
    uint64_t chunks = 0;
    size_t planned = 0;  // the chunks it should carry
    bool closed = false;
    std::string why;          // why it is closed, or why a copy over it failed
    std::vector<Range> left;  // chunks it has not taken; the last one is next
    // Timers, of the pool: behind the last hop's copies in each stream, and before and behind one
    // copy of each hop.
    std::vector<EventId> ended;
    std::vector<std::array<EventId, 2>> around;
    bool ends = false;            // whether the first of `ended` is behind all of its copies
    bool unsure = false;          // a call for its copies was refused, and so was the wait for them
    std::string failed;           // what the driver said of a copy that failed
    uint64_t time_ns = 0;         // from the transfer's start until the path was done
    Bytes timed = 0;              // the bytes of the chunk that is timed; 0: none is
    std::vector<Rate> hop_rates;  // how fast each hop was at most; empty: not known
  };

  // `direct` is the plan with the direct path. That path takes the chunks that others refuse.
  EnqueuedTransfer(const Tools& tools, Request request, PlanPtr direct);
  EnqueuedTransfer(const EnqueuedTransfer&) = delete;
  EnqueuedTransfer& operator=(const EnqueuedTransfer&) = delete;
  ~EnqueuedTransfer();

  // The transfer that was enqueued last in the same stream, and is not done yet. This one may take
  // over its pipelines, because it begins when that one is done.
  struct Before {
    EventId ended = 0;  // 0: there is none
    std::vector<PipelinePtr> lines;
  };
  // Makes all that the transfer needs. `timed`: the speed of the hops is measured. Throws Error if
  // it cannot begin.
  void prepare(PlanPtr plan, const std::vector<PathShare>& shares, bool timed, Before before);
  // Enqueues prepared transfers, none of them in the stream of another. The chunks of all of them
  // take turns, so the calls for one do not hold up the others. error() tells of refusals.
  static void enqueue(const std::vector<EnqueuedTransfer*>& transfers);
  // What the next transfer in the stream may take over.
  Before for_next() const;
  // The event that is recorded on the caller's stream behind the transfer.
  EventId ended() const { return ended_; }
  // False: the driver refused to record it.
  bool marked() const { return !unmarked_; }
  // One thread at a time has the claim to end the transfer. Only that thread may call done(),
  // outcome() and finish().
  bool claim_end() { return !ending_.exchange(true); }
  void drop_claim() { ending_.store(false); }
  // Whether all copies are done. `answer` is the driver's, about ended().
  bool done(Status answer);
  // What the driver says of the copies once they are done.
  struct Outcome {
    std::vector<std::string> failures;  // why each path failed; "": it did not
    uint64_t time_ns = 0;
  };
  Outcome outcome();
  // Whether all of it went nearly as fast as planned. Then no link is slow.
  bool on_time(const Outcome& outcome) const;
  DivisionTimes times(const Outcome& outcome) const;
  // Gives the pipelines back.
  void finish(const Outcome& outcome);
  bool over() const { return over_.load(std::memory_order_acquire); }

  const std::string& error() const { return error_; }  // "": no error; fixed once over()
  const std::vector<std::unique_ptr<Carried>>& paths() const { return paths_; }
  Bytes landed() const;
  uint64_t time_ns() const { return time_ns_; }
  std::string json() const;
  std::vector<CarriedPath> carried_paths() const;

 private:
  Carried* add_path(const PlannedPath& path);
  void open_path(Carried* path, const Pipeline::Use& use);
  PipelinePtr line_for(const Path& path, const Pipeline::Use& use);
  Status make_timers(Carried* path);
  void keep_timers(Carried* path);
  void close_path(Carried* path, const std::string& why);
  struct Own {
    EnqueuedTransfer* transfer;
    Carried* path;
  };
  static void submit_here(const std::vector<Own>& paths);
  bool submit(Carried* path, Range range, ChunkCopier* copier);
  Status submit_hop(Carried* path, size_t hop, Range range, ChunkCopier* copier);
  void submit_left();
  void gather(Carried* path, ChunkCopier* copier);
  Status gather_ends(Carried* path);
  void join();
  template <class Visit>
  void each_stream(const Carried& path, Visit&& visit);
  Status ask(Carried* path, bool* idle);
  std::string failure_of(Carried* path);
  void time_hops(Carried* path);

 public:
  const Request request;

 private:
  const Tools tools_;
  const PlanPtr direct_;
  PlanPtr plan_;
  EventId begun_ = 0, ended_ = 0;
  std::vector<std::unique_ptr<Carried>> paths_;
  std::vector<PipelinePtr> spare_;  // taken over, and not used by any path
  std::string error_;
  bool unmarked_ = false;  // ended_ was not recorded, and the copies may go on
  std::atomic<bool> ending_{false}, over_{false};
  uint64_t time_ns_ = 0;
};

}  // namespace glake::transfer
