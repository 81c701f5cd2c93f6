// Zeros for the host where phantom memory is read: it has no bytes.
#pragma once

#include <cstddef>

namespace simcuda {

// Of long ranges of anonymous memory the pages are given back rather than written, so that a job
// that copies more to the host than this machine has costs it nothing.
void blank(void* address, size_t bytes);

}  // namespace simcuda
