// Modules and their functions. simcuda runs one kernel, glake_copy_blocks, whose code it takes as
// read; of any other module it says so.
#pragma once

#include <string>

#include "types.h"

namespace simcuda {

// A kernel nobody can run (runtime.h) was launched. The name lives as long as the process.
void count_launch(const char* name);

class Kernels {
 public:
  struct Function {
    uint64_t module = 0, context = 0;
  };

  CUresult load(uint64_t context, const char* image, uint64_t* module);
  CUresult unload(uint64_t module);
  CUresult function(uint64_t module, const std::string& name, uint64_t* function);
  const Function* find(CUfunction handle) {
    return functions_.find(reinterpret_cast<uint64_t>(handle));
  }
  void forget(uint64_t context);  // its modules end with it
  size_t modules() const { return modules_.live(); }

 private:
  struct Module {
    uint64_t context = 0, function = 0;
  };
  Slots<Module, 6> modules_;
  Slots<Function, 7> functions_;
};

}  // namespace simcuda
