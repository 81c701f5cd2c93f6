// Transfers under way, the threads that carry them, and how each of them ends.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/json_text.h"
#include "transfer/call/live_ranges.h"
#include "transfer/run/enqueued_transfer.h"
#include "transfer/run/run_state.h"
#include "transfer/run/scheduler.h"
#include "transfer/run/submitter.h"

namespace glake::transfer {

class Runner final : private ChunkListener {
 public:
  using Lock = RunState::Lock;

  Runner(const SubmitterTools& tools, RunState& state, Scheduler& scheduler, LiveRanges& ranges)
      : tools_(tools), state_(state), scheduler_(scheduler), ranges_(ranges) {}
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  // Adds a transfer and returns its id. It begins now unless it waits for a stream.
  uint64_t add(const TransferPtr& transfer, Rate plain);
  // Begins a transfer whose stream has reached it.
  void begin(const TransferPtr& transfer);
  TransferPtr find(uint64_t id);   // throws Error
  TransferPtr known(uint64_t id);  // null: it has been released, or there was none
  void cancel(const TransferPtr& transfer);
  void fail(Lock* lock, const TransferPtr& transfer, int code, const std::string& text);
  void release(uint64_t id, const TransferPtr& transfer);
  // Whether the transfer is over, and no copy that it gave up may still read or write.
  bool settled(const TransferPtr& transfer);
  // Cancels the transfer and waits for its copies under way.
  void end(const TransferPtr& transfer);
  std::vector<TransferPtr> all();
  // Shares the node again among all transfers under way.
  void replan();
  std::vector<Demand> demands();
  DemandBoard::Demands shown_demands();
  void show_demands();  // to the relay service
  // Counts a transfer that the driver has carried without the engine's threads.
  void count(const EnqueuedTransfer& transfer);
  // Removes paths from the plan that have failed lately, unless none would be left.
  void avoid_failed(PlanPtr* plan);
  // Ends the threads. No transfer may be under way. Says in words what was not given back; "": all
  // was.
  std::string stop();
  void describe(JsonText* out);  // its part of the engine's statistics

 private:
  void chunk_ended(Lock* lock, const TransferPtr& transfer) override { conclude(lock, transfer); }
  void fell_behind(const PathRun& run, size_t hop) override;
  void given_up(const TransferPtr& transfer) override;

  std::vector<TransferPtr> plan_anew();
  void enlist(const TransferPtr& transfer);
  void reopen_runs(const TransferPtr& transfer);
  void conclude(Lock* lock, const TransferPtr& transfer);
  void finish(Transfer* transfer);
  void wake(uint64_t now);
  bool unfinished(Lock* lock, const Transfer& transfer);
  void look_for_lost(Lock* lock);
  DemandBoard::Demands demands_now();
  Submitter& submitter(int gpu);

  SubmitterTools tools_;
  RunState& state_;
  Scheduler& scheduler_;
  LiveRanges& ranges_;
  std::mutex replan_mutex_;  // held while plans are made; taken before the state's lock
  std::map<int, std::unique_ptr<Submitter>> submitters_;  // under the state's lock
};

}  // namespace glake::transfer
