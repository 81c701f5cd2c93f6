// Work that is enqueued and whose effects are not made yet.
#pragma once

#include <map>
#include <vector>

#include "clock.h"
#include "op.h"

namespace simcuda {

class PendingWork {
 public:
  explicit PendingWork(const Clock* clock) : clock_(clock) {}

  void add(const OpPtr& op);  // numbers it
  // Its effects are made: what waits for it waits no more.
  void remove(const OpPtr& op);
  size_t size() const { return pending_.size(); }
  uint64_t enqueued() const { return sequence_; }  // ever

  // In the order it was enqueued in. Of one device, or of all (-1).
  std::vector<OpPtr> all(int device = -1) const;
  // What is timed, up to a number.
  std::vector<OpPtr> timed(uint64_t last = UINT64_MAX) const;
  // Half of the work was enqueued before it.
  OpPtr middle() const;
  // What is timed and writes into the word.
  std::vector<OpPtr> writers(const Op& word) const;
  // Notes a violation if work touches the range.
  void check_idle(uint64_t address, size_t bytes, const char* what) const;
  // For the end: a long chain must not be destroyed recursively.
  void unlink();

 private:
  const Clock* const clock_;
  uint64_t sequence_ = 0;
  std::map<uint64_t, OpPtr> pending_;  // by sequence
  std::map<uint64_t, Op*> touching_;   // those with addresses
};

}  // namespace simcuda
