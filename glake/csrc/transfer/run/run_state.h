// Holds the transfers under way, their runs, what is known of links, and the health of paths. One
// lock guards all of this ("the state's lock"). Submitters see it through a ChunkBook.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/json_text.h"
#include "transfer/run/enqueued_transfer.h"
#include "transfer/run/health_book.h"
#include "transfer/run/link_shares.h"
#include "transfer/run/scheduler.h"
#include "transfer/run/transfer.h"

namespace glake::transfer {

class RunState {
 public:
  using Lock = std::unique_lock<std::mutex>;

  // `topology` may be null: nothing is known of the links.
  RunState(const topology::Topology* topology, uint64_t copy_ns) : shares_(topology, copy_ns) {}
  RunState(const RunState&) = delete;
  RunState& operator=(const RunState&) = delete;

  Lock lock() { return Lock(mutex_); }

  // Callers of all that follows hold the lock.

  // Gives the transfer an id, by which it is known from now on. No other transfer of the process
  // ever has this id, so a late handle of a closed engine names none of the next engine's.
  uint64_t enter(const TransferPtr& transfer);
  TransferPtr known(uint64_t id) const;  // null: it has been released, or there was none
  // The caller releases the transfer. If copies of it that were given up are not seen done yet,
  // forget_released() drops it later.
  void release(uint64_t id, Transfer* transfer);
  void forget_released();
  // The transfers that run, in the order in which they began.
  const std::vector<TransferPtr>& running() const { return running_; }
  void run(const TransferPtr& transfer);
  // Removes the transfer from those that run, and counts it.
  void finish(const Transfer* transfer);
  // All transfers that are known, then all that run. A transfer that is both is in the list twice.
  std::vector<TransferPtr> all() const;

  HealthBook& health() { return health_; }
  LinkShares& shares() { return shares_; }
  // What runs have shown of links, for the next plans.
  void note(const Lesson& lesson) { lessons_.push_back(lesson); }
  bool learnt() const { return !lessons_.empty(); }
  std::vector<Lesson> take_lessons() { return std::exchange(lessons_, {}); }

  // Counts a transfer that the driver has carried without the engine's threads.
  void count(const EnqueuedTransfer& transfer, uint64_t now);
  // Parts of the engine's statistics.
  void describe_counts(JsonText* out) const;
  void describe_paths(JsonText* out);

 private:
  std::mutex mutex_;
  std::map<uint64_t, TransferPtr> transfers_;
  std::vector<TransferPtr> running_;
  HealthBook health_;
  LinkShares shares_;
  std::vector<Lesson> lessons_;
  uint64_t finished_ = 0, failed_ = 0, bytes_ = 0, resent_ = 0;
  std::map<std::string, std::pair<uint64_t, Bytes>> carried_;  // by path: chunks, bytes
};

}  // namespace glake::transfer
