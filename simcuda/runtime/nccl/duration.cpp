#include "duration.h"

#include <algorithm>

#include "reduce.h"

namespace nccl {
namespace {

constexpr uint64_t kBaseNs = 8400, kNvlinkStepNs = 3400, kPcieStepNs = 5700;

class Plan {
 public:
  Plan(const Page& page, int rank) : page_(page), rank_(rank), size_(page.size) {}

  // Adds bytes from this rank to another, or back. If each process has a machine of its own, their
  // devices may have the same number. Then the ranks' devices count as neighbours.
  void flow(int other, uint64_t bytes, bool out) {
    if (bytes == 0) return;
    const int gpus = simcuda_collective_gpus();
    const int mine = page_.rank[rank_].device;
    int theirs = page_.rank[other].device;
    if (page_.rank[other].machine != page_.rank[rank_].machine) {
      theirs = (mine + (other - rank_ + size_) % size_) % gpus;
    }
    if (mine != theirs && simcuda_collective_linked(mine, theirs) == 0) step_ns_ = kPcieStepNs;
    made_.flows.push_back({out ? mine : theirs, out ? theirs : mine, bytes});
  }

  void ring(uint64_t bytes, int steps) {
    flow((rank_ + 1) % size_, bytes, true);
    flow((rank_ + size_ - 1) % size_, bytes, false);
    take_steps(steps);
  }

  // root < 0: to and from all.
  void straight(uint64_t out, uint64_t in, int root) {
    for (int other = 0; other < size_; ++other) {
      if (other == rank_ || (root >= 0 && rank_ != root && other != root)) continue;
      flow(other, out, true);
      flow(other, in, false);
    }
    take_steps(1);
  }

  void take_steps(int steps) { steps_ = std::max(steps_, steps); }

  void add(const Part& part);
  Duration done() {
    made_.latency_ns = kBaseNs + static_cast<uint64_t>(steps_) * step_ns_;
    return std::move(made_);
  }

 private:
  const Page& page_;
  const int rank_, size_;
  int steps_ = 0;
  uint64_t step_ns_ = kNvlinkStepNs;
  Duration made_;
};

void Plan::add(const Part& part) {
  const uint64_t bytes = part.count * width_of(part.type);
  const auto ranks = static_cast<uint64_t>(size_);
  const bool root = part.root == rank_;
  if (size_ == 1) return flow(rank_, bytes, true);  // it is a copy
  switch (part.kind) {
    case Kind::kAllReduce:
      return ring(2 * (ranks - 1) * bytes / ranks, 2 * (size_ - 1));
    case Kind::kAllGather:
    case Kind::kReduceScatter:
      return ring((ranks - 1) * bytes, size_ - 1);
    case Kind::kReduce:
    case Kind::kBroadcast:
      return ring(bytes, size_ - 1);
    case Kind::kAllToAll:
      return straight(bytes, bytes, -1);
    case Kind::kGather:
      return straight(root ? 0 : bytes, root ? bytes : 0, part.root);
    case Kind::kScatter:
      return straight(root ? bytes : 0, root ? 0 : bytes, part.root);
    case Kind::kSend:
    case Kind::kRecv:
      flow(part.root, bytes, part.kind == Kind::kSend);
      return take_steps(1);
  }
}

}  // namespace

Duration duration_of(const std::vector<Operation::Piece>& pieces, const Page& page, int rank) {
  Plan plan(page, rank);
  for (const Operation::Piece& piece : pieces) plan.add(piece.part);
  return plan.done();
}

}  // namespace nccl
