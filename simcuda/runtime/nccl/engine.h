// One rank of a communicator. It takes operations from streams, and moves their bytes on a thread
// of its own. An operation's stream work says when the stream reaches it, and goes on when the
// thread says so. So no stream and no host function ever blocks another.
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

  // Starts the thread, once all ranks have joined.
  void start();
  ncclResult enqueue(CUstream stream, const std::vector<Part>& parts);
  // Waits until enqueued operations are done. Returns ncclSuccess, or the error that prevents it.
  ncclResult flush();
  // Ends the thread. Streams go on, whatever they waited for. Called once.
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

  std::mutex mutex_;              // guards the queue, and its end
  std::deque<Operation*> queue_;  // those that streams have reached, in order
  std::atomic<uint64_t> enqueued_{0}, done_{0};
  std::atomic<bool> captured_{false};  // a graph contains work of it
  std::thread thread_;
};

}  // namespace nccl
