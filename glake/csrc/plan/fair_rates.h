// Computes how flows share the limits of a topology: max-min fair, by progressive filling. One
// object answers many questions about one set of flows. Each question names the flows that are
// open.
#pragma once

#include <vector>

#include "plan/topology.h"

namespace glake::topology {

class FairRates {
 public:
  // `parts`: the part of each limit that the flows may use; empty: all of every limit.
  FairRates(const Topology& topology, const std::vector<double>& parts);

  // Adds a flow, which stands for `copies` equal flows. Its rate is the sum of theirs.
  void add(const Route& route, double copies = 1);
  // The rate of each flow in bytes per nanosecond; 0 for a flow that is not `open`. Valid until the
  // next call.
  const std::vector<double>& rates(const std::vector<char>& open);

 private:
  struct Share {
    size_t limit, flow;
    double weight;
  };
  // A limit on some flow's route, with its shares in the flows' order.
  struct Row {
    double limit;
    size_t begin, end;
  };
  void arrange();
  double widest_step();
  void freeze(double step);

  const Topology& topology_;
  const std::vector<double>& parts_;
  std::vector<double> copies_;  // by flow
  std::vector<Share> shares_;   // in the order of add(); once arranged, by limit
  std::vector<Row> rows_;
  std::vector<size_t> last_;  // by limit: one behind its last share
  bool arranged_ = true;
  // For one call of rates():
  std::vector<double> rates_, room_;  // of each flow; how far each row lets its flows grow
  std::vector<char> growing_;         // by flow
  size_t left_ = 0;                   // how many flows still grow
};

}  // namespace glake::topology
