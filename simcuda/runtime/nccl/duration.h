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

// How long one rank's kernel for a group takes, from the group's parts. The model is a ring in the
// order of the ranks: each GPU sends to the next and receives from the one before, on the preset's
// own links. all_reduce sends 2(n-1)/n times the buffer, all_gather and reduce_scatter n-1 times a
// rank's share, broadcast and reduce the buffer once. These are the "bus bandwidth" factors of
// nccl-tests' PERFORMANCE.md. all_to_all, gather, scatter and messages go straight from rank to
// rank. A latency precedes the bytes, as in NCCL's own tuning model (src/graph/tuning.cc, ring,
// protocol "simple", the slowest of its three): 8.4 us and, for each step of the ring, 3.4 us by
// NVLink or 5.7 us by PCIe. The model leaves out trees, NVLS and the faster protocols of small
// messages, channels, and other nodes. It also leaves out that a rank waits for a later one: each
// process has a clock of its own.
Duration duration_of(const std::vector<Operation::Piece>& pieces, const Page& page, int rank);

}  // namespace nccl
