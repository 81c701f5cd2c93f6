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

}  // namespace simcuda
