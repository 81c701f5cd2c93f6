// Computes how many bytes each flow has left as time passes. Each flow gets a max-min fair share of
// its links until it has carried all its bytes.
#pragma once

#include <optional>
#include <vector>

#include "base/transfer_tuning.h"
#include "plan/fair_rates.h"
#include "plan/plan.h"

namespace glake::transfer {

struct Flow {
  topology::Route route;  // the edges of all its hops
  Rate rate = 0;          // its rate where nothing is known of the links
  double copies = 1;      // how many of its copies flow at once
  double delay_ns = 0;    // ns without a flow: until its first byte flows, and from its last
                          // byte on the slowest link until that byte has landed
  double bytes = 0;
};

class FlowRace {
 public:
  // `topology` may be null: nothing is known of the links then. `parts`: as FairRates.
  FlowRace(const topology::Topology* topology, const std::vector<double>& parts);

  void add(const Flow& flow);  // flows are numbered from 0
  void set_bytes(size_t flow, double bytes) { bytes_[flow] = bytes; }
  void tell(size_t flow, Flow* to) const;
  // Whether one of the first `count` flows has bytes left.
  bool carries(size_t count) const;
  // The rate of each flow; 0 for one that carries nothing now. Valid until a call after carry().
  const std::vector<Rate>& rates();
  // After how many ns a flow begins or ends; infinite: none does.
  double next_change();
  void carry(double ns);

 private:
  std::optional<topology::FairRates> fair_;  // none without a topology
  // By flow:
  std::vector<double> delay_, bytes_;
  std::vector<Rate> own_;                    // the rate where no link bounds it
  std::vector<char> linked_, going_, open_;  // links bound it; it carries bytes now; both
  std::vector<Rate> rates_;                  // of the flows that carry bytes now
  bool known_ = false;                       // whether rates_ is up to date
};

}  // namespace glake::transfer
