// Work that is in its latency or moves bytes over the links: its rates, and when it ends.
#pragma once

#include <vector>

#include "clock.h"
#include "links.h"
#include "op.h"
#include "shared_links.h"

namespace simcuda {

class Flows {
 public:
  // `shared`: the links are common to all processes, and the clock moves by itself. nullptr: the
  // links are this process's own, and the clock moves with the work.
  Flows(const Topology* topology, Links* links, Clock* clock, SharedLinks* shared)
      : topology_(topology), links_(links), clock_(clock), shared_(shared) {}

  void begin(const OpPtr& op);
  bool empty() const { return running_.empty(); }
  // Moves bytes and the clock to the next event: an end, the deadline, or a change of a link's
  // speed. False: there is none.
  bool move(uint64_t deadline_ns);
  // Returns what has ended at the clock's moment.
  std::vector<OpPtr> take_done();
  // When to look again at links that all processes share.
  uint64_t next_look() const;

 private:
  void enter(Op* op);
  bool take_over(Op* op);
  bool over(const Op& op) const;
  std::vector<Op*> flowing();  // past their latency, with bytes left
  uint64_t next_moment(uint64_t deadline_ns, const std::vector<Op*>& flows,
                       const std::vector<double>& rates) const;

  const Topology* const topology_;
  Links* const links_;
  Clock* const clock_;
  SharedLinks* const shared_;
  std::vector<OpPtr> running_;
};

}  // namespace simcuda
