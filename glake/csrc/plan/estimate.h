// Estimates how long a plan's copy takes, before anything is measured.
#pragma once

#include <cstdint>

#include "base/transfer_tuning.h"
#include "base/types.h"
#include "plan/plan.h"

namespace glake::transfer {

// An estimate in ns. A path of several hops delivers its first byte when a first chunk has passed
// all hops but the last. Each hop costs `copy_ns` once, because the starts of later copies overlap
// with bytes in flight. The estimate counts no more paths than there are chunks.
double expected_ns(const TransferPlan& plan, uint64_t bytes, uint64_t copy_ns);
// The same estimate for one plain copy.
double plain_ns(const TransferPlan& plan, uint64_t bytes, uint64_t copy_ns);
// Whether a copy of this size should take all of the plan's paths rather than be one plain copy.
// The paths must gain more time than the first chunk loses on its way over a relay.
bool worth_splitting(const TransferPlan& plan, uint64_t bytes, uint64_t copy_ns);

}  // namespace glake::transfer
