// Measures how fast one hop of a run goes, and knows what else goes over the same link. Callers
// hold the state's lock (run_state.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "base/transfer_tuning.h"
#include "base/types.h"
#include "plan/plan.h"

namespace glake::transfer {

// The copies under way between two places. All runs with a hop between these places share it.
struct LinkUse {
  LinkUse() = default;
  explicit LinkUse(std::map<int, double> on_limits) : loads(std::move(on_limits)) {}

  const std::map<int, double> loads;  // the load on each limit of the topology, per unit of rate
  uint64_t started = 0;               // when the last copy started
  unsigned under_way = 0;
  Rate planned = 0;   // the planned rates of all those runs together
  double chunks = 0;  // the chunks that these runs had left when the plan was made
  // The use of the opposite direction, if a limit counts both directions; else null.
  const LinkUse* back = nullptr;
  uint64_t asked = 0;  // since when a copy waits for one of the opposite direction; 0: none waits
  struct Worker {
    unsigned under_way = 0;
    unsigned flows =
        TransferTuning::kLeastFlows;  // streams that take turns, and so copies that flow at once
  };
  std::map<int, Worker> of_worker;
};

// The rate of a hop: bytes completed while at least one copy was under way.
class HopMeter {
 public:
  explicit HopMeter(Rate planned) : rate_(planned) {}

  Rate rate() const { return rate_; }
  unsigned completed() const { return completed_; }  // since the last plan
  void replan(Rate planned);
  // Whether chunks go one after the other, because the link is much faster than the run needs.
  bool alone() const { return alone_; }
  Rate link() const { return link_; }
  // `room`: the rate that the hop could have beside all other hops.
  void set_link(Rate link, Rate room, bool alone);

  // When a copy of `bytes` would be done if the bytes reach the hop at time `at`. Those of the
  // run's `claimed` bytes that have not passed the hop yet go first.
  uint64_t finish(uint64_t now, uint64_t at, Bytes claimed, Bytes bytes, uint64_t copy_ns) const;
  // Counts a copy that is submitted now as under way. Returns when it should be done.
  uint64_t submit(uint64_t now, Bytes bytes, uint64_t copy_ns);
  void complete(uint64_t now, Bytes bytes, uint64_t copy_ns);
  void withdraw(Bytes bytes);  // a copy failed, or nobody waits for it any more
  // All runs that have this hop share `use`, whether one submitter or several work for them.
  void share(const std::shared_ptr<LinkUse>& use, int worker) {
    use_ = use;
    worker_ = worker;
  }
  LinkUse* use() const { return use_.get(); }
  bool coupled() const { return use_->back != nullptr; }
  LinkUse::Worker& worker() const { return use_->of_worker[worker_]; }
  // The earliest time at which the hop's next copy should be submitted: some time after the last
  // one began. (A copy begins when it is submitted, or when the copy before it in its stream is
  // complete.) Two copies that begin together also end together, and so do the next two. The link
  // would then stand idle while each pair starts.
  uint64_t earliest_start(uint64_t copy_ns) const;
  // When a copy that is ready should be submitted: `now`, or later. Where a limit counts both
  // directions, one copy beside two of the opposite direction gets half of the rate that it could
  // have. So copies of the two directions begin together.
  uint64_t moment(uint64_t now, uint64_t copy_ns);
  // Until when a copy that called moment() waits for a copy of the opposite direction; 0: none
  // waits.
  uint64_t asked_until(uint64_t copy_ns) const;

 private:
  std::shared_ptr<LinkUse> use_ = std::make_shared<LinkUse>();
  int worker_ = -1;
  Rate rate_, link_ = 1e9;  // no copy is faster than its link alone
  Bytes ahead_ = 0;         // bytes of the copies under way
  Bytes passed_ = 0;        // bytes of the complete copies
  uint64_t mark_ = 0;
  unsigned under_way_ = 0, completed_ = 0;
  bool alone_ = false;
  double bytes_ = 0, ns_ = 0;  // of recent copies; older ones weigh less
};

}  // namespace glake::transfer
