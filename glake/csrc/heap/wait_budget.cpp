#include "heap/wait_budget.h"

#include "base/tuning.h"

namespace glake {

bool WaitBudget::spent(const PastPlacements& history, uint64_t waits) {
  uint64_t period = history.period();
  bool step = period >= Tuning::kLeastStep && period <= Tuning::kMostStep;
  if (history.count() - begin_ >= (step ? period : Tuning::kWindow)) {
    begin_ = history.count();
    waits_ = waits;
  }
  return waits - waits_ >= (step ? Tuning::kWaitsPerStep : Tuning::kWaitsPerWindow);
}

}  // namespace glake
