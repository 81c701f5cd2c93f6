// A path of one transfer: what it has carried, how fast its hops go, and how much it may take next.
// Every method runs under the engine's lock.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/transfer_tuning.h"
#include "base/types.h"
#include "plan/estimate.h"
#include "transfer/run/health.h"

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

// How fast one hop of a run goes: bytes completed while at least one copy was under way.
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

struct PathRun {
  PathRun(const PlannedPath& path, PathHealth* path_health)
      : planned(path), health(path_health), hops(path.path.hops.size(), HopMeter(path.rate)) {}

  const std::string& name() const { return planned.path.name; }
  bool relayed() const { return planned.path.hops.size() > 1; }
  // The socket of the path's host end; kSpread where it has none.
  int node() const;
  // Chunks are not shorter: each copy costs `copy_ns`, during which another must fill the link.
  Bytes least(uint64_t copy_ns) const;
  // Nor longer than this, a power of two: what a chunk's way over a relay costs grows with it.
  Bytes most(uint64_t copy_ns) const;
  // Whether a chunk's copy goes behind the one before; a short one's start would leave gaps.
  bool alone(size_t hop, Bytes bytes, uint64_t copy_ns) const;
  Rate pace() const;  // the rate of its slowest hop
  // When a chunk that is taken now would arrive.
  uint64_t arrival(uint64_t now, Bytes bytes, uint64_t copy_ns) const;
  void replan(const PlannedPath& path);
  void start_watch(uint64_t now);
  // The hop that has kept the run well below its plan for a while; -1: there is none.
  int slow_hop(uint64_t now);

  PlannedPath planned;
  PathHealth* health;
  std::vector<HopMeter> hops;
  bool closed = false;  // it takes no more chunks; `why` says why
  bool paced = false;   // takes no more than its share (Transfer::ahead_of_share)
  // Its share is one of all the transfer's bytes, and not of its socket's memory alone: runs of
  // another socket's memory share a full link with it.
  bool across = false;
  bool withdrawn = false;  // closed by a new plan, which may open it again
  std::string why;
  Bytes claimed = 0, landed = 0;
  Bytes ramp = 0;  // the bytes of the next chunk
  uint64_t chunks = 0, resent = 0;
  unsigned in_flight = 0, in_first_hop = 0, failures = 0;
  // Since it was last looked at: when that was, and what it had carried by then.
  uint64_t since = 0, chunks_then = 0;
  Bytes landed_then = 0;
  unsigned slow = 0;  // how many looks in a row found it slow
};

}  // namespace glake::transfer
