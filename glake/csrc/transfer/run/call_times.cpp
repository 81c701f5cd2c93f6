#include "transfer/run/call_times.h"

#include <algorithm>

#include "base/transfer_tuning.h"
#include "transfer/run/chunk_copier.h"

namespace glake::transfer {
namespace {

// Each chunk is one copy. It waits until its buffer was filled, and a chunk that is not among the
// first also waits until its buffer was emptied. Each of these waits has an event that is recorded.
// So a hop has one call more for each neighbour with streams of its own, or two.
double hop_calls_ns(const Path& path, size_t hop, double chunks, size_t buffers, bool joined) {
  const bool before = hop > (joined ? 1U : 0U);
  const bool behind = hop + 1 < path.hops.size() && !(joined && hop == 0);
  const double sides = (before ? 1 : 0) + (behind ? 1 : 0);
  const double again = std::max(chunks - static_cast<double>(buffers), 0.0);
  return TransferTuning::kCallNs * chunks + sides * TransferTuning::kEventNs * (chunks + again);
}

}  // namespace

double chunk_calls_ns(const Path& path, double chunks, size_t buffers, bool joined) {
  double ns = 0;
  for (size_t hop = 0; hop < path.hops.size(); ++hop) {
    ns += hop_calls_ns(path, hop, chunks, buffers, joined);
  }
  return ns;
}

void CallTimes::add(const Path& path, double chunks, size_t buffers, bool joined) {
  for (size_t hop = 0; hop < path.hops.size(); ++hop) {
    const double ns = hop_calls_ns(path, hop, chunks, buffers, joined);
    of_thread_[path.worker] += ns;
    of_context_[ChunkHop::device_of(path.hops[hop])] += ns;
  }
}

double CallTimes::longest_ns() const {
  double most = 0;
  for (const auto* times : {&of_thread_, &of_context_}) {
    for (const auto& [gpu, ns] : *times) most = std::max(most, ns);
  }
  return most;
}

double CallTimes::longest_beside(const Path& path) const {
  double most = of_thread_.at(path.worker);
  for (const Hop& hop : path.hops) {
    most = std::max(most, of_context_.at(ChunkHop::device_of(hop)));
  }
  return most;
}

std::vector<double> crowds(const TransferPlan& plan) {
  CallTimes all;
  for (const PlannedPath& planned : plan.paths) all.add(planned.path, 1, 0, false);
  std::vector<double> found;
  for (const PlannedPath& planned : plan.paths) {
    found.push_back(all.longest_beside(planned.path) / chunk_calls_ns(planned.path, 1, 0, false));
  }
  return found;
}

}  // namespace glake::transfer
