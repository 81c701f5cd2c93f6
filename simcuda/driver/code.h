// Images of kernels' code. simcuda reads only the names in them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace simcuda {

// All bytes of an image that cuModuleLoadData takes: PTX text, a cubin (an ELF file) or a fat
// binary. Empty: it is none of these, or has more than `most` bytes (at least a header of 64).
std::string copy_of_code(const void* image, size_t most = SIZE_MAX);

// The same, of bytes that may be cut short.
std::string bounded_code(std::string bytes);

// The same, of a file. False if it cannot be read.
bool read_code(const char* path, std::string* code);

// Whether the code is PTX.
bool is_text(const std::string& code);

// Whether the code may have a kernel of that name. PTX has it as .entry, a cubin as a symbol. A
// compressed part of a fat binary is assumed to have it.
bool has_kernel(const std::string& code, const std::string& name);

}  // namespace simcuda
