// Runs stream work: a discrete-event simulation on the virtual clock gives the times, effects are
// applied lazily in a seeded order. Every method runs under the driver's mutex; those that take
// the lock may let go of it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "memory.h"
#include "op.h"
#include "options.h"
#include "stream.h"

namespace simcuda {

using Lock = std::unique_lock<std::mutex>;

class Scheduler {
 public:
  void start(const Options& options, std::mutex* mutex, Topology* topology, Memory* memory,
             Streams* streams);
  // Drops what is pending and ends the threads. The mutex must not be held.
  void stop();

  // Appends to the stream, after `also` too; legacy stream rules included.
  void enqueue(Stream* stream, const OpPtr& op, const OpPtr& also = nullptr);
  // Blocks until the work is done and its effects are made.
  CUresult wait(Lock* lock, const OpPtr& op);
  CUresult wait_device(Lock* lock, int device);  // -1: all
  // CUDA_SUCCESS with effects made, or CUDA_ERROR_NOT_READY and time moves on a little.
  CUresult query(Lock* lock, const OpPtr& op);

  // Notes a violation if pending work touches the range.
  void check_idle(CUdeviceptr address, size_t bytes, const char* what);
  uint64_t now_ns() const;
  size_t pending() const { return pending_.size(); }
  void register_thread(bool join);  // time then waits for this thread

 private:
  // Timing.
  bool advance();  // to the next completion; false: nothing can move
  bool start_ready();
  void begin(const OpPtr& op);
  void finish(const OpPtr& op);
  bool poll_waiters();
  bool registered_here() const;
  bool may_advance() const;
  bool stalled();
  bool wait_for_progress(Lock* lock);

  // Effects.
  CUresult apply(Lock* lock, const std::vector<OpPtr>& targets);
  void apply_timed(Lock* lock);
  void perform(const Op& op);
  bool legal(const Op& op);
  bool legal(const Op& op, const Op::Side& side, bool write);
  bool satisfied(const Op& op);
  void mark_applied(const OpPtr& op);

  // Threaded mode.
  struct Worker {
    std::thread thread;
    std::list<OpPtr> queue;
  };
  void work(Worker* worker);
  CUresult wait_threaded(Lock* lock, const OpPtr& op);

  Topology* topology_ = nullptr;
  Memory* memory_ = nullptr;
  Streams* streams_ = nullptr;
  bool phantom_ = false, threaded_ = false, stopping_ = false;
  std::mutex* mutex_ = nullptr;
  std::mt19937_64 random_;

  uint64_t now_ns_ = 0, sequence_ = 0, marks_ = 0, epoch_ns_ = 0, life_ = 0;
  std::list<OpPtr> ready_;      // all they wait for is timed
  std::vector<OpPtr> running_;  // in their latency or moving bytes
  std::vector<OpPtr> value_waiters_;
  std::map<uint64_t, OpPtr> pending_;  // not applied, by sequence
  std::map<uint64_t, Op*> touching_;   // those with addresses
  bool applying_ = false;
  CUresult error_ = CUDA_SUCCESS;
  std::condition_variable changed_;
  std::map<uint64_t, std::unique_ptr<Worker>> workers_;
  int registered_ = 0, waiting_ = 0;
  uint64_t stall_sequence_ = 0, stall_ns_ = 0;
  std::chrono::steady_clock::time_point stall_since_;
};

// Set while this thread runs a host function: no call is allowed then.
extern thread_local bool in_host_function;

}  // namespace simcuda
