// How long a plan's copy takes, before anything is measured.
#pragma once

#include <cstdint>

#include "base/transfer_tuning.h"
#include "base/types.h"
#include "plan/plan.h"

namespace glake::transfer {

// An estimate in ns. A path of several hops gives its first byte when a first chunk has passed all
// but the last; each hop costs `copy_ns` once, later chunks' overlap with bytes in flight. There
// are no more paths than chunks.
double expected_ns(const TransferPlan& plan, uint64_t bytes, uint64_t copy_ns);
// The same of one plain copy.
double plain_ns(const TransferPlan& plan, uint64_t bytes, uint64_t copy_ns);
// Whether a copy of this size should take all of the plan's paths rather than go as one plain copy:
// filling the pipe costs a chunk's way over a relay, and what remains must still be a gain.
bool worth_splitting(const TransferPlan& plan, uint64_t bytes, uint64_t copy_ns);

}  // namespace glake::transfer
