// Modules and their functions. simcuda runs one kernel, by code of its own: it does not interpret
// the PTX. glake_copy_blocks(table, count) copies the blocks {dst, src, bytes} of a table. Other
// kernels are refused. Where simcuda stands in for CUDA's driver, they (NVRTC's, Triton's) are
// counted and ordered like those that nvcc compiled.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "types.h"

namespace simcuda {

// Counts a launch of a kernel that nobody can run (runtime.h). The name must live as long as the
// process.
void count_launch(const char* name);

struct Driver;
struct Stream;
// Does the work of simcuda_launch (runtime.h).
CUresult launch_uncomputed(Driver* driver, Stream* stream, const char* name);
// Why this thread's last kernel was refused, for cuGetErrorString; null if it was not.
const char* refused_kernel();

constexpr unsigned kMostThreadsOfABlock = 1024;  // on every GPU so far

// The errors for a file of code that cannot be read, and for an image that is no code.
CUresult no_code(const char* path);
CUresult bad_image();
// Sets `code` to what `read` gives, if code can be loaded now, and this code can be taken.
CUresult take_code(Driver* driver, const std::function<CUresult(std::string*)>& read,
                   std::string* code);
CUresult known_attribute(CUfunction_attribute attribute);
// An attribute of any kernel. Registers and static shared memory are not known, so they are 0. The
// answer for threads is the most that a block may have.
CUresult function_attribute(int* value, CUfunction_attribute attribute);

class Kernels {
 public:
  struct Function {
    uint64_t module = 0, context = 0;
    // The kernel's name if nobody runs it; it lives as long as the process.
    const char* counted = nullptr;
  };

  // Checks whether code can be taken, and drops what is not needed of it.
  static CUresult accept(std::string* code);
  // Loads accepted code. `library`: to which the module belongs; 0: to none.
  uint64_t load(uint64_t context, std::string code, uint64_t library = 0);
  CUresult unload(uint64_t module);
  bool of_library(uint64_t module);
  // Whether accepted code has a kernel of this name.
  static bool has(const std::string& code, const std::string& name);
  CUresult function(uint64_t module, const std::string& name, uint64_t* function);
  const Function* find(CUfunction handle) {
    return functions_.find(reinterpret_cast<uint64_t>(handle));
  }
  void forget(uint64_t context);  // its modules end with it
  size_t modules() const { return modules_.live(); }

 private:
  struct Module {
    uint64_t context = 0, library = 0;
    std::string code;  // empty: glake_copy_blocks
    std::map<std::string, uint64_t> functions;
  };
  Slots<Module, 6> modules_;
  Slots<Function, 7> functions_;
};

}  // namespace simcuda
