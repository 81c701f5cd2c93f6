// Enqueued work whose effects are not made yet.
#pragma once

#include <map>
#include <vector>

#include "clock.h"
#include "op.h"

namespace simcuda {

class PendingWork {
 public:
  explicit PendingWork(const Clock* clock) : clock_(clock) {}

  void add(const OpPtr& op);  // gives it a number
  // The effects are made. What waits for it waits no longer.
  void remove(const OpPtr& op);
  size_t size() const { return pending_.size(); }
  uint64_t enqueued() const { return sequence_; }  // in total

  // In the order of enqueueing, for one device or for all (-1).
  std::vector<OpPtr> all(int device = -1) const;
  // The work that is timed, up to a sequence number.
  std::vector<OpPtr> timed(uint64_t last = UINT64_MAX) const;
  // The piece of work in the middle. Half of the work was enqueued before it.
  OpPtr middle() const;
  // The work that is timed and writes into the word.
  std::vector<OpPtr> writers(const Op& word) const;
  // Notes a violation if work touches the range.
  void check_idle(uint64_t address, size_t bytes, const char* what) const;
  // Called at the end, because a long chain must not be destroyed recursively.
  void unlink();

 private:
  const Clock* const clock_;
  uint64_t sequence_ = 0;
  std::map<uint64_t, OpPtr> pending_;  // by sequence number
  std::map<uint64_t, Op*> touching_;   // those with addresses
};

}  // namespace simcuda
