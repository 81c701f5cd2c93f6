// How long a collective takes on the platform's links.
#pragma once

#include <vector>

#include "operation.h"
#include "simcuda/driver/collective.h"

namespace nccl {

struct Duration {
  uint64_t latency_ns = 0;
  std::vector<simcuda_flow> flows;
};

// Of a group's parts, as one kernel, for one rank. Modelled is a ring in the order of the ranks:
// each GPU sends to the next and receives from the one before, on the preset's own links,
// all_reduce 2(n-1)/n times the buffer, all_gather and reduce_scatter n-1 times a rank's share,
// broadcast and reduce once the buffer: the "bus bandwidth" factors of nccl-tests' PERFORMANCE.md.
// all_to_all, gather, scatter and messages go straight from rank to rank. Before the bytes comes
// the latency of NCCL's own tuning model (src/graph/tuning.cc, ring, protocol "simple", the slowest
// of its three): 8.4 us and, for each step of the ring, 3.4 us by NVLink or 5.7 us by PCIe. Not
// modelled: trees, NVLS and the faster protocols of small messages, channels, other nodes, and that
// ranks are late for each other in modelled time: each process has a clock of its own.
Duration duration_of(const std::vector<Operation::Piece>& pieces, const Page& page, int rank);

}  // namespace nccl
