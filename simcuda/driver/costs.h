// The cost tables: the published figures of symbols.h, and what hardware showed, in a data file.
#pragma once

#include <cuda.h>

#include <string>

#include "options.h"

namespace simcuda {

// Puts the table named by option `costs` in force ("": the file's own default), for every call
// whose cost option call_us has not set. `beside` is the file used when option cost_file names
// none.
CUresult apply_costs(const Options& options, const std::string& beside);

// What a kernel that copies blocks takes beyond a copy, until hardware says otherwise.
struct KernelCosts {
  double rate = 0.9;         // of the rate a copy engine reaches on the same links
  uint64_t start_ns = 2000;  // to read its table
};
// The file's "kernel_copies", where it has them.
CUresult read_kernel_costs(const Options& options, const std::string& beside, KernelCosts* costs);

}  // namespace simcuda
