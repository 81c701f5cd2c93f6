// One rank of a communicator: takes operations from streams, and moves their bytes on a thread of
// its own. An operation's stream work says when it is reached and goes on when the thread says so,
// thus no stream, and no host function, ever blocks another.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "health.h"
#include "operation.h"
#include "performer.h"
#include "room.h"
#include "scales.h"
#include "seat.h"
#include "simcuda/driver/collective.h"
#include "splits.h"
#include "stage.h"

namespace nccl {

class Engine : public std::enable_shared_from_this<Engine> {
 public:
  Engine(std::shared_ptr<Room> room, int rank, int device, CUcontext context);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  Room& room() { return *seat_.room; }
  int rank() const { return seat_.rank; }
  int size() const { return seat_.size; }
  int device() const { return device_; }
  ncclResult error() const { return health_.error(); }
  Splits& splits() { return splits_; }
  Scales& scales() { return scales_; }

  // Starts the thread, once all ranks are there.
  void start();
  ncclResult enqueue(CUstream stream, const std::vector<Part>& parts);
  // What is enqueued has been done: ncclSuccess, or the error that prevents it.
  ncclResult flush();
  // Ends the thread; streams go on, whatever they waited for. Once.
  void stop(Presence how);

 private:
  void run();
  void reached(Operation* operation);
  ncclResult prepare(Operation* operation, const std::vector<Part>& parts);
  bool staged(const Part& part) const;
  bool somebody_waits() const;
  void let_go(Operation* operation);

  const Seat seat_;
  const int device_;
  const CUcontext context_;
  Health health_;
  Stage stage_;
  Performer performer_;
  Splits splits_;
  Scales scales_;
  simcuda_order* const order_;

  std::mutex mutex_;              // of the queue, and of its end
  std::deque<Operation*> queue_;  // reached, in order
  std::atomic<uint64_t> enqueued_{0}, done_{0};
  std::atomic<bool> captured_{false};  // a graph has work of it
  std::thread thread_;
};

}  // namespace nccl
