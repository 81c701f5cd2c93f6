// A transfer all of whose copies are the driver's from the start: it begins when its stream comes
// to it, its chunks go from hop to hop by stream order and events, and the stream goes on behind
// the last of them. No thread has a part in it, so that nothing else a process asks of the driver
// can hold it up; nor can anything be changed any more.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "transfer/call/copy.h"
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
    const PlannedPath* path = nullptr;  // of the plan, or the direct one
    Pipeline line;
    bool open = false;  // it has a pipeline
    Bytes bytes = 0;
    uint64_t chunks = 0;
    size_t planned = 0;  // chunks
    bool closed = false;
    std::string why;              // it is closed, or a copy over it failed
    std::vector<Range> left;      // chunks that it has not taken; the last is the next
    bool ends = false;            // an event of the pipeline stands behind all of its copies
    uint64_t time_ns = 0;         // from the transfer's begin until it was done
    Bytes timed = 0;              // of the chunk that is timed; 0: none is
    std::vector<Rate> hop_rates;  // of each hop, at most; empty: not known
  };

  // `direct`: by whose path that goes which others refuse to take.
  EnqueuedTransfer(const Tools& tools, Request request, PlanPtr direct);
  EnqueuedTransfer(const EnqueuedTransfer&) = delete;
  EnqueuedTransfer& operator=(const EnqueuedTransfer&) = delete;
  ~EnqueuedTransfer();

  // Enqueues all of it; `timed`: it is told how fast the hops are. Throws Error when nothing was;
  // later refusals are error().
  void enqueue(PlanPtr plan, const std::vector<PathShare>& shares, bool timed);
  // Recorded on the caller's stream behind it.
  EventId ended() const { return ended_; }
  // What the driver says of its copies, once ended() has happened. One thread asks: the one that
  // claims it.
  struct Outcome {
    std::vector<std::string> failures;  // of each path; "": none
    uint64_t time_ns = 0;
  };
  bool claim_end() { return !ending_.exchange(true); }
  Outcome outcome();
  // Gives its pipelines back.
  void finish(const Outcome& outcome);
  bool over() const { return over_.load(std::memory_order_acquire); }

  const std::string& error() const { return error_; }  // "": none; settled when it is over
  const std::vector<std::unique_ptr<Carried>>& paths() const { return paths_; }
  Bytes landed() const;
  uint64_t time_ns() const { return time_ns_; }
  std::string json() const;
  std::vector<CarriedPath> carried_paths() const;

 private:
  Carried* add_path(const PlannedPath& path);
  void open_path(Carried* path, size_t buffers, Bytes most);
  void close_path(Carried* path, const std::string& why);
  void submit_here(const std::vector<Carried*>& paths);
  bool submit(Carried* path, Range range, ChunkCopier* copier);
  Status submit_hop(Carried* path, size_t hop, Range range, ChunkCopier* copier);
  void submit_left();
  void gather(Carried* path, ChunkCopier* copier);
  Status gather_ends(Carried* path);
  void join();
  std::string failure_of(const Carried& path);
  void time_hops(Carried* path);

 public:
  const Request request;

 private:
  const Tools tools_;
  const PlanPtr direct_;
  PlanPtr plan_;
  EventId begun_ = 0, ended_ = 0;
  std::vector<std::unique_ptr<Carried>> paths_;
  std::string error_;
  std::atomic<bool> ending_{false}, over_{false};
  uint64_t time_ns_ = 0;
};

}  // namespace glake::transfer
