// Runs stream work: a discrete-event simulation on the virtual clock gives the times, effects are
// applied lazily in a seeded order. Every method runs under the driver's mutex; those that take
// the lock may let go of it.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "foreseen.h"
#include "host.h"
#include "known.h"
#include "landings.h"
#include "links.h"
#include "memory.h"
#include "op.h"
#include "options.h"
#include "shared_links.h"
#include "stream.h"

namespace simcuda {

using Lock = std::unique_lock<std::mutex>;

class Scheduler {
 public:
  void start(const Options& options, std::mutex* mutex, Topology* topology, Memory* memory,
             const HostMemory* host, Streams* streams, std::unique_ptr<SharedLinks> shared);
  // Drops what is pending and ends the threads. The mutex must not be held.
  void stop();

  // Appends to the stream, after `also` too; legacy stream rules included.
  void enqueue(Stream* stream, const OpPtr& op, const OpPtr& also = nullptr);
  struct Ordered {  // one piece of a graph
    OpPtr op;
    const After* after = nullptr;  // places in the list, lower than its own
    OpPtr also;                    // work outside of the graph it waits for
  };
  // Appends a graph to the stream, after `also` too; its last piece, that follows all others.
  OpPtr enqueue_graph(Stream* stream, const std::vector<Ordered>& work, const OpPtr& also);
  // Blocks until the work is done and its effects are made; CUDA_ERROR_NOT_READY once the clock is
  // at `deadline_ns`.
  CUresult wait(Lock* lock, const OpPtr& op, uint64_t deadline_ns = UINT64_MAX);
  // Until one of them is: the caller asks which.
  CUresult wait_any(Lock* lock, const std::vector<OpPtr>& ops, uint64_t deadline_ns);
  CUresult wait_device(Lock* lock, int device);  // -1: all
  // For a driver's lock: until all work that is enqueued by now is over. No effect is made, as no
  // program may rely on that wait.
  void quiesce(Lock* lock);
  // Work of no stream, which is over when somebody says so.
  void await_end(Lock* lock, const OpPtr& op);
  void end(const OpPtr& op);
  void sleep(Lock* lock, uint64_t ns);
  bool polled() const { return polled_ && !threaded_; }
  bool paced() const { return shared_ != nullptr; }  // its clock and links are all processes'
  // CUDA_SUCCESS with effects made, or CUDA_ERROR_NOT_READY and time moves on: by the call's cost
  // where completion is polled, else to the next thing that happens.
  CUresult query(Lock* lock, const OpPtr& op);
  // Of a launch, which waits on a GPU as well where very many are queued: the older half is done,
  // as far as it can be without the host.
  void make_room(Lock* lock);

  // Takes a kernel's parts from its table as that is now. False, with a violation noted: the table
  // is not in pinned memory.
  bool read_table(Op* op);

  // Notes a violation if pending work touches the range.
  void check_idle(CUdeviceptr address, size_t bytes, const char* what);
  uint64_t now_ns() const;
  // What has ended the device's contexts; told as their calls tell it. CUDA_SUCCESS: nothing has.
  CUresult lost(int device) const;
  void recover(int device) { lost_[static_cast<size_t>(device)] = CUDA_SUCCESS; }
  size_t pending() const { return pending_.size(); }

  // Threads at work (waits.cpp): time waits for each of them.
  void register_thread(bool join);
  // A thread that was expected goes on in its turn, lowest rank first.
  void register_thread(Lock* lock, int rank);
  // The calling thread, if it is at work, waits outside the driver.
  void step_aside(bool away);
  void expect(int threads);  // about to register; negative: will not, after all

  Links links;
  void links_changed();
  Landings landings;
  Known known;        // of phantom memory
  Foreseen foreseen;  // the same, of all work enqueued

 private:
  void admit(Stream* stream, const OpPtr& op);

  // Timing.
  bool advance(Lock* lock);  // to the next thing that happens; false: nothing can
  bool start_ready();
  // The same where the clock goes on by itself (paced.cpp).
  bool tick(Lock* lock);
  void enter(const OpPtr& op);
  bool take_over(Op* op);
  std::chrono::nanoseconds rest();
  void keep_time();
  void begin(const OpPtr& op);
  void finish(const OpPtr& op);
  bool poll_waiters();
  bool run_prompt(Lock* lock);
  std::vector<Op*> flowing();  // past their latency, with bytes to move
  uint64_t next_moment(const std::vector<Op*>& flows, const std::vector<double>& rates) const;
  bool over(const Op& op) const;
  std::vector<OpPtr> take_done();

  // Waiting. `released`: what a registered thread waits for has happened; it goes on in its turn.
  struct Waiter {
    std::vector<OpPtr> ops;  // any of them
    uint64_t deadline_ns = UINT64_MAX;
    bool registered = false, released = false;
    std::condition_variable wake;
  };
  using Turn = std::pair<int64_t, uint64_t>;  // expected threads by rank, then the others in order
  bool registered_here() const;
  bool nobody_at_work() const;
  bool may_advance() const;
  bool may_leave(const Waiter& waiter);
  bool stalled();
  void busy(bool more);  // the calling thread is at work, or no more
  void stay(Lock* lock, Waiter* waiter);
  bool await(Lock* lock, const std::vector<OpPtr>& ops, uint64_t deadline_ns);
  void make_progress(Lock* lock, Waiter* waiter);
  void release(Waiter* waiter, int64_t rank);
  void hand_over();
  bool reach_deadlines();
  bool deadline_due() const;
  uint64_t next_deadline() const;
  bool over_for(const OpPtr& op) const { return op->timed || op->applied || stopping_; }
  CUresult query_in_turn(Lock* lock, const OpPtr& op);

  // Effects.
  CUresult apply(Lock* lock, const std::vector<OpPtr>& targets);
  void apply_timed(Lock* lock);
  void perform(const Op& op);
  void perform_phantom(const Op& op);
  int owner(uint64_t address, int otherwise);
  void copy_phantom(int device, const Op::Side& dst, const Op::Side& src, size_t bytes);
  void stage_phantom(int device, const Op::Part& part);
  void fill_phantom(const Op& op);
  bool legal(const Op& op);
  bool legal(const Op& op, const Op::Side& side, bool write);
  bool satisfied(const Op& op);
  void mark_applied(const OpPtr& op);
  // Before an op's effects: those of a lost context have none. After: one that failed loses it.
  void meet_lost(Op* op);
  void lose(const Op& op, CUresult error);
  void land(const Op& op);

  // Threaded mode.
  struct Worker {
    std::thread thread;
    std::list<OpPtr> queue;
  };
  void work(Worker* worker);
  void hold_up(Lock* lock, Op* op);
  CUresult wait_threaded(Lock* lock, const std::vector<OpPtr>& ops, uint64_t deadline_ns);

  Topology* topology_ = nullptr;
  Memory* memory_ = nullptr;
  const HostMemory* host_ = nullptr;
  Streams* streams_ = nullptr;
  // With sticky errors: what ended each device's contexts.
  bool sticky_ = false;
  std::array<CUresult, kMaxDevices> lost_{};
  bool phantom_ = false, threaded_ = false, polled_ = false, stopping_ = false;
  std::mutex* mutex_ = nullptr;
  std::unique_ptr<SharedLinks> shared_;
  std::thread timekeeper_;
  std::condition_variable work_;  // for it
  std::mt19937_64 random_;

  size_t room_ = 0;  // pending work at which to make room again
  uint64_t now_ns_ = 0, sequence_ = 0, marks_ = 0, epoch_ns_ = 0, life_ = 0;
  std::list<OpPtr> ready_;      // all they wait for is timed
  std::vector<OpPtr> running_;  // in their latency or moving bytes
  std::vector<OpPtr> value_waiters_;
  std::vector<OpPtr> prompt_;          // timed; time does not move before they are applied
  std::map<uint64_t, OpPtr> pending_;  // not applied, by sequence
  std::map<uint64_t, Op*> touching_;   // those with addresses
  bool applying_ = false;
  CUresult error_ = CUDA_SUCCESS;
  std::condition_variable changed_;
  std::map<uint64_t, std::unique_ptr<Worker>> workers_;
  // Threads at work, of them inside a wait, announced, and host functions under way.
  int registered_ = 0, inside_ = 0, expected_ = 0, functions_ = 0;
  std::vector<Waiter*> waiters_;
  std::map<Turn, Waiter*> turns_;  // released, not gone on yet
  uint64_t turn_count_ = 0;
  std::vector<int> busy_;  // system's numbers of the threads at work
  uint64_t stall_sequence_ = 0, stall_ns_ = 0, stall_turns_ = 0;
  std::chrono::steady_clock::time_point stall_since_;
};

// The injected fault among these copies, given once to a caller who waits for their stream;
// CUDA_SUCCESS: none. To one who asks about their event it is given as often as asked.
CUresult tell_faults(const std::vector<OpPtr>& copies, bool again);

// Set while this thread runs a host function: no call is allowed then.
extern thread_local bool in_host_function;

}  // namespace simcuda
