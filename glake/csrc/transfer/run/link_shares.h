// Computes how fast the copies of each hop can be under the current plans. A link divides its rate
// among the copies that flow over it, whatever their plans say. Every method runs under the state's
// lock (run_state.h).
#pragma once

#include <array>
#include <map>
#include <memory>
#include <vector>

#include "transfer/run/transfer.h"

namespace glake::transfer {

class LinkShares {
 public:
  // `topology` may be null: nothing is known of the links then.
  LinkShares(const topology::Topology* topology, uint64_t copy_ns)
      : topology_(topology), copy_ns_(copy_ns) {}

  // Joins the hops of the run with the hops of other runs between the same two places. They share
  // what is known of the link.
  void join(PathRun* run);
  // Computes the rate of each hop of the runs, once alone and once beside the other hops.
  void measure(const std::vector<TransferPtr>& running);

 private:
  std::map<int, double> loads_of(const topology::Route& route) const;
  bool coupled(const LinkUse& one, const LinkUse& other, const std::vector<double>& taken) const;
  void share(Transfer* transfer, bool alone, const std::vector<double>& taken) const;
  std::vector<int> full_limits(const PathRun& run, const std::vector<double>& taken) const;

  const topology::Topology* topology_;
  const uint64_t copy_ns_;
  std::map<std::array<int, 4>, std::shared_ptr<LinkUse>> uses_;  // by places of hops
};

}  // namespace glake::transfer
