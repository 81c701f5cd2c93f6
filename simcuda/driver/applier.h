// Makes the effects of timed work (op.h), in a seeded order, before a program may learn that the
// work is done.
#pragma once

#include <condition_variable>
#include <random>
#include <vector>

#include "effects.h"
#include "op.h"
#include "pending.h"
#include "turns.h"

namespace simcuda {

class Applier {
 public:
  Applier(uint64_t seed, Turns* turns, PendingWork* pending, Effects* effects)
      : turns_(turns), pending_(pending), effects_(effects), random_(seed) {}

  // Applies the targets and all that must precede them. Each target must be timed. Returns the
  // error of this work, or of work applied earlier that nobody asked about. May release the lock.
  CUresult apply(Lock* lock, const std::vector<OpPtr>& targets);
  // The same for work that nobody has asked about. Its errors are kept for the call that asks.
  void apply_unasked(Lock* lock, const std::vector<OpPtr>& targets);
  void apply_timed(Lock* lock);  // applies all timed work
  bool applying() const { return applying_; }
  void stop();

 private:
  std::vector<OpPtr> close(const std::vector<OpPtr>& targets, uint64_t mark) const;
  OpPtr pick(std::vector<OpPtr>* ready);
  void run(Lock* lock, const OpPtr& op);

  Turns* const turns_;
  PendingWork* const pending_;
  Effects* const effects_;
  std::mt19937_64 random_;
  uint64_t marks_ = 0;
  bool applying_ = false, stopping_ = false;
  CUresult error_ = CUDA_SUCCESS;
  std::condition_variable over_;
};

}  // namespace simcuda
