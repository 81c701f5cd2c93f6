// Work in its latency, or that moves bytes over the links: at what rates, and when it ends.
#pragma once

#include <vector>

#include "clock.h"
#include "links.h"
#include "op.h"
#include "shared_links.h"

namespace simcuda {

class Flows {
 public:
  // `shared`: the links are all processes', and the clock goes on by itself; nullptr: neither.
  Flows(const Topology* topology, Links* links, Clock* clock, SharedLinks* shared)
      : topology_(topology), links_(links), clock_(clock), shared_(shared) {}

  void begin(const OpPtr& op);
  bool empty() const { return running_.empty(); }
  // Moves bytes, and the clock, to what happens next: an end, the deadline, or a change of a link's
  // speed. False: nothing will.
  bool move(uint64_t deadline_ns);
  // What has ended by the clock's moment.
  std::vector<OpPtr> take_done();
  // Of links that all processes share: when to look again.
  uint64_t next_look() const;

 private:
  void enter(Op* op);
  bool take_over(Op* op);
  bool over(const Op& op) const;
  std::vector<Op*> flowing();  // past their latency, with bytes to move
  uint64_t next_moment(uint64_t deadline_ns, const std::vector<Op*>& flows,
                       const std::vector<double>& rates) const;

  const Topology* const topology_;
  Links* const links_;
  Clock* const clock_;
  SharedLinks* const shared_;
  std::vector<OpPtr> running_;
};

}  // namespace simcuda
