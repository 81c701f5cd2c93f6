// One rank of a communicator: takes operations from streams, and moves their bytes on a thread of
// its own. An operation's stream work says when it is reached and goes on when the thread says so,
// thus no stream, and no host function, ever blocks another.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "operation.h"
#include "room.h"
#include "simcuda/driver/collective.h"
#include "stage.h"

namespace nccl {

class Engine : public std::enable_shared_from_this<Engine> {
 public:
  Engine(std::shared_ptr<Room> room, int rank, int device, CUcontext context);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  Room& room() { return *room_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  int device() const { return device_; }
  CUcontext context() const { return context_; }

  // Starts the thread, once all ranks are there.
  void start();
  ncclResult enqueue(CUstream stream, const std::vector<Part>& parts);
  // What is enqueued has been done: ncclSuccess, or the error that prevents it.
  ncclResult flush();
  // Ends the thread; streams go on, whatever they waited for. Once.
  void stop(Presence how);

  ncclResult error() const { return error_.load(); }
  std::string why() const;

  // Splits: what this rank wants of the next one, and everybody's wish.
  uint64_t publish_split(int color, int key);
  ncclResult read_split(uint64_t turn, std::vector<std::pair<int, int>>* colors_and_keys);

  // Reductions with a factor, by their handles.
  int add_scale(double value, const void* address, int type);
  bool drop_scale(int op);
  bool find_scale(int op, Part* part);

 private:
  void run();
  void reached(Operation* operation);
  ncclResult prepare(Operation* operation, const std::vector<Part>& parts);
  bool staged(const Part& part) const;
  bool somebody_waits() const;
  void let_go(Operation* operation);
  ncclResult broken(ncclResult code, const std::string& text);

  // An operation's parts (perform.cpp): true once all are done, false if it cannot be.
  bool perform(Operation* operation);
  bool show_known(Operation* operation);
  bool advance(Operation* operation);  // whether anything moved
  bool advance_collective(Operation* operation, Operation::Piece* piece);
  bool advance_send(const Operation& operation, Operation::Piece* piece);
  bool advance_recv(Operation::Piece* piece);
  void bring(const Operation& operation, Operation::Piece* piece);
  bool all_brought(uint64_t number) const;
  bool all_passed(uint64_t number) const;
  bool same(const Operation::Piece& piece);
  uint64_t known_of(const Operation::Piece& piece) const;
  uint64_t brought(const Operation::Piece& piece, int rank) const;
  bool find_known(Operation::Piece* piece) const;
  bool compute(const Operation& operation, Operation::Piece* piece);
  void fold(const Operation::Piece& piece, const std::vector<const char*>& inputs, uint64_t first);
  bool check_ranks(const Operation& operation);
  bool needs(const Operation::Piece& piece, int rank) const;
  bool ended() const { return stopping_.load() || error_.load() != ncclSuccess; }

  const std::shared_ptr<Room> room_;
  const int rank_, size_, device_;
  const CUcontext context_;
  const bool phantom_;
  Stage stage_;
  Others others_;
  simcuda_order* const order_;

  mutable std::mutex mutex_;
  std::deque<Operation*> queue_;  // reached, in order
  std::string why_;
  struct Scale {
    double value;
    const void* address;
    int type;
  };
  std::map<int, Scale> scales_;
  int next_scale_ = ncclNumOps;
  uint64_t splits_ = 0;
  std::atomic<uint64_t> enqueued_{0}, done_{0};
  std::atomic<bool> captured_{false};  // a graph has work of it
  std::atomic<bool> stopping_{false};
  std::atomic<ncclResult> error_{ncclSuccess};
  std::thread thread_;
};

}  // namespace nccl
