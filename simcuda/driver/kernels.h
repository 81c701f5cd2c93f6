// Modules and their functions. simcuda runs one kernel, glake_copy_blocks, by code of its own: it
// does not interpret the PTX. Others are refused, or counted where simcuda stands in for CUDA's
// driver.
#pragma once

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

class Kernels {
 public:
  struct Function {
    uint64_t module = 0, context = 0;
    // The kernel's name if nobody runs it; it lives as long as the process.
    const char* counted = nullptr;
  };

  CUresult load(uint64_t context, const void* image, uint64_t* module);
  CUresult unload(uint64_t module);
  CUresult function(uint64_t module, const std::string& name, uint64_t* function);
  const Function* find(CUfunction handle) {
    return functions_.find(reinterpret_cast<uint64_t>(handle));
  }
  void forget(uint64_t context);  // its modules end with it
  size_t modules() const { return modules_.live(); }

 private:
  struct Module {
    uint64_t context = 0;
    std::string code;  // empty: glake_copy_blocks
    std::map<std::string, uint64_t> functions;
  };
  Slots<Module, 6> modules_;
  Slots<Function, 7> functions_;
};

}  // namespace simcuda
