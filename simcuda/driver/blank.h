// Gives the host zeros where it reads phantom memory, which has no bytes.
#pragma once

#include <cstddef>

namespace simcuda {

// In long ranges of anonymous memory it gives the pages back and does not write them. So a job may
// copy more to the host than this machine has memory.
void blank(void* address, size_t bytes);

}  // namespace simcuda
