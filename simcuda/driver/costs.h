// The cost tables: the published figures of symbols.h, and in a data file what hardware showed and
// what single sources published.
#pragma once

#include <cuda.h>

#include <string>
#include <vector>

#include "books.h"
#include "options.h"

namespace simcuda {

// What the table named by option `costs` ("": the file's own default) prices otherwise than
// symbols.h. `beside` is the file used when option cost_file names none.
CUresult read_costs(const Options& options, const std::string& beside,
                    std::vector<CallCost>* costs);
// Puts that table in force, for every call whose cost option call_us has not set.
CUresult apply_costs(const Options& options, const std::string& beside);

// What a kernel that copies blocks takes beyond a copy, until hardware says otherwise.
struct KernelCosts {
  double rate = 0.9;         // of the rate a copy engine reaches on the same links
  uint64_t start_ns = 2000;  // to read its table
};
// The file's "kernel_copies", where it has them.
CUresult read_kernel_costs(const Options& options, const std::string& beside, KernelCosts* costs);

}  // namespace simcuda
