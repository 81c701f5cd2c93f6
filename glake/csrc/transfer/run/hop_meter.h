// How fast one hop of a run goes, and what goes over the same link beside it. Every method runs
// under the state's lock (run_state.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "base/transfer_tuning.h"
#include "base/types.h"
#include "plan/plan.h"

namespace glake::transfer {

// The copies under way between two places. All runs that have that hop share it.
struct LinkUse {
  LinkUse() = default;
  explicit LinkUse(std::map<int, double> on_limits) : loads(std::move(on_limits)) {}

  const std::map<int, double> loads;  // the load on each limit of the topology, per unit of rate
  uint64_t started = 0;               // when the last copy started
  unsigned under_way = 0;
  Rate planned = 0;   // of all those runs
  double chunks = 0;  // that were left to them when the plan was made
  // The other way, where the two fill a limit that counts both.
  const LinkUse* back = nullptr;
  uint64_t asked = 0;  // a copy has waited since then for one of the other way; 0: none does
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
  unsigned completed() const { return completed_; }  // since the plan
  void replan(Rate planned);
  // Whether chunks go one after the other, as the link is much faster than what is asked of it.
  bool alone() const { return alone_; }
  Rate link() const { return link_; }
  // `room`: what the hop could carry beside all other hops.
  void set_link(Rate link, Rate room, bool alone);

  // When a copy would be done whose bytes are there `at`, behind all of `claimed` that has not
  // passed yet. submit() counts one that is submitted now as under way.
  uint64_t finish(uint64_t now, uint64_t at, Bytes claimed, Bytes bytes, uint64_t copy_ns) const;
  uint64_t submit(uint64_t now, Bytes bytes, uint64_t copy_ns);
  void complete(uint64_t now, Bytes bytes, uint64_t copy_ns);
  void withdraw(Bytes bytes);  // a copy failed, or nobody waits for it any more
  // The runs that have this hop, from one submitter or several, share this.
  void share(const std::shared_ptr<LinkUse>& use, int worker) {
    use_ = use;
    worker_ = worker;
  }
  LinkUse* use() const { return use_.get(); }
  bool coupled() const { return use_->back != nullptr; }
  LinkUse::Worker& worker() const { return use_->of_worker[worker_]; }
  // Until when a copy should not be submitted, as another of this hop has just begun: one that was
  // submitted, or one that waited for a copy that is complete. Two that begin together end
  // together, and the link stands idle while the next two start, for ever.
  uint64_t earliest_start(uint64_t copy_ns) const;
  // When one that is ready should be: `now`, or later. Where limits count both ways, one copy
  // beside two of the other way has half of what it could: those of the two ways begin together.
  uint64_t moment(uint64_t now, uint64_t copy_ns);
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
  double bytes_ = 0, ns_ = 0;  // of late, older ones weighing less
};

}  // namespace glake::transfer
