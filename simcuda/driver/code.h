// Images of kernels' code. simcuda reads only the names in them.
#pragma once

#include <string>

namespace simcuda {

// All bytes of an image that cuModuleLoadData takes: PTX text, a cubin (an ELF file) or a fat
// binary. Empty: it is none of these.
std::string copy_of_code(const void* image);

// Whether the code may have a kernel of that name. PTX has it as .entry, a cubin as a symbol. A
// compressed part of a fat binary is assumed to have it.
bool has_kernel(const std::string& code, const std::string& name);

}  // namespace simcuda
