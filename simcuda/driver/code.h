// Images of kernels' code, which nobody here reads further than for the names in it.
#pragma once

#include <string>

namespace simcuda {

// All bytes of what cuModuleLoadData takes: PTX text, a cubin (an ELF file) or a fat binary. Empty:
// none of these.
std::string copy_of_code(const void* image);

// Whether the code may have a kernel of that name: PTX has its .entry, a cubin its symbol. What is
// compressed in a fat binary is taken as read.
bool has_kernel(const std::string& code, const std::string& name);

}  // namespace simcuda
