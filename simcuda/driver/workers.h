// The threaded mode. One thread for each stream does its work in real time, and no clock is
// virtual. A thread serves another stream after its own was destroyed.
#pragma once

#include <condition_variable>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "clock.h"
#include "effects.h"
#include "links.h"
#include "op.h"
#include "pending.h"

namespace simcuda {

class Workers {
 public:
  Workers(std::mutex* mutex, const Clock* clock, Links* links, PendingWork* pending,
          Effects* effects)
      : mutex_(mutex), clock_(clock), links_(links), pending_(pending), effects_(effects) {}

  void enqueue(uint64_t stream, const OpPtr& op);
  // The stream is destroyed. What is enqueued there still runs.
  void forget(uint64_t stream);
  // Waits until one of them is applied. CUDA_ERROR_NOT_READY: the clock has reached `deadline_ns`
  // first.
  CUresult wait(Lock* lock, const std::vector<OpPtr>& ops, uint64_t deadline_ns);
  // Waits until the work is over. Its effects need not be made.
  void await_end(Lock* lock, const OpPtr& op);
  void notify() { changed_.notify_all(); }  // wakes the workers and waiting threads
  // Ends the threads. The mutex must not be held.
  void stop();

 private:
  struct Worker {
    std::thread thread;
    std::list<OpPtr> queue;
    bool busy = false;  // with work that it took from the queue
  };
  using WorkerPtr = std::unique_ptr<Worker>;

  WorkerPtr idle_or_new();
  void work(Worker* worker);
  void run(Lock* lock, Op* op);
  void hold_up(Lock* lock, Op* op);

  std::mutex* const mutex_;
  const Clock* const clock_;
  Links* const links_;
  PendingWork* const pending_;
  Effects* const effects_;
  bool stopping_ = false;
  CUresult error_ = CUDA_SUCCESS;
  std::condition_variable changed_;
  std::map<uint64_t, WorkerPtr> workers_;  // by stream
  std::vector<WorkerPtr> streamless_;      // their streams are destroyed; they may still have work
};

}  // namespace simcuda
