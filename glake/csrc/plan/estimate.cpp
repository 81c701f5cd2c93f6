#include "plan/estimate.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace glake::transfer {

double expected_ns(const TransferPlan& plan, uint64_t bytes, uint64_t copy_ns) {
  struct Start {
    double ns;
    Rate rate;
  };
  const auto size = static_cast<double>(bytes), copy = static_cast<double>(copy_ns);
  std::vector<Start> starts;
  for (const PlannedPath& planned : plan.paths) {
    const double chunk =
        std::max(planned.rate * copy, static_cast<double>(TransferTuning::kLeastChunk));
    const auto hops = static_cast<double>(planned.path.hops.size());
    // Two chunks share each hop at a time.
    starts.push_back({copy * hops + 2 * (hops - 1) * chunk / planned.rate, planned.rate});
  }
  std::sort(starts.begin(), starts.end(),
            [](const Start& a, const Start& b) { return a.ns < b.ns; });
  starts.resize(
      std::min<size_t>(starts.size(), std::max<uint64_t>(bytes / TransferTuning::kLeastChunk, 1)));
  // Adds the paths in the order of their starts, until those that have started carry all bytes
  // before the next one starts.
  double rate = 0, owed = size;
  for (size_t i = 0; i < starts.size(); ++i) {
    rate += starts[i].rate;
    owed += starts[i].rate * starts[i].ns;
    const double end = owed / rate;
    if (i + 1 == starts.size() || end <= starts[i + 1].ns) return end;
  }
  return std::numeric_limits<double>::infinity();
}

double plain_ns(const TransferPlan& plan, uint64_t bytes, uint64_t copy_ns) {
  return static_cast<double>(copy_ns) + static_cast<double>(bytes) / plan.plain;
}

bool worth_splitting(const TransferPlan& plan, uint64_t bytes, uint64_t copy_ns) {
  if (plan.plain <= 0) return true;
  const bool direct = plan.paths.size() == 1 && plan.paths[0].path.hops.size() == 1;
  if (plan.paths.empty() || direct) return false;
  // There must be at least half as many chunks as the paths have buffers. With fewer chunks the
  // estimate is not useful.
  size_t buffers = 0;
  for (const PlannedPath& planned : plan.paths) buffers += planned.path.hops.size() - 1;
  if (2 * bytes < buffers * TransferTuning::kLeastChunk) return false;
  const double many = TransferTuning::kHandOverNs + expected_ns(plan, bytes, copy_ns);
  return many * TransferTuning::kLeastGain < plain_ns(plan, bytes, copy_ns);
}

}  // namespace glake::transfer
