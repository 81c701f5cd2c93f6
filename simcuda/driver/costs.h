// The cost tables: the published figures of symbols.h, and a data file with figures that were
// measured on hardware or published by a single source.
#pragma once

#include <cuda.h>

#include <string>
#include <vector>

#include "books.h"
#include "options.h"

namespace simcuda {

// Reads the prices that differ from symbols.h in the table of option `costs` ("": the file's own
// default). `beside` is the file if option cost_file names none.
CUresult read_costs(const Options& options, const std::string& beside,
                    std::vector<CallCost>* costs);
// Puts that table in force for every call whose cost option call_us has not set.
CUresult apply_costs(const Options& options, const std::string& beside);

// How a kernel that copies blocks differs from a copy. Both figures are assumed: no hardware was
// measured.
struct KernelCosts {
  double rate = 0.9;         // of the rate a copy engine reaches on the same links
  uint64_t start_ns = 2000;  // to read its table
};
// The file's "kernel_copies", if it has them.
CUresult read_kernel_costs(const Options& options, const std::string& beside, KernelCosts* costs);

}  // namespace simcuda
