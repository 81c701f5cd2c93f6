// Libraries: code that belongs to no context. "Library Management" of the CUDA Driver API. In each
// context that uses a kernel of a library, the library's code becomes a module at the first use.
#pragma once

#include <map>
#include <string>

#include "kernels.h"
#include "types.h"

namespace simcuda {

class Libraries {
 public:
  explicit Libraries(Kernels* kernels) : kernels_(kernels) {}

  struct Kernel {
    uint64_t library = 0;
    std::string name;
  };

  // Keeps accepted code (Kernels::accept).
  uint64_t load(std::string code);
  CUresult unload(uint64_t library);
  CUresult kernel(uint64_t library, const std::string& name, uint64_t* kernel);
  const Kernel* find(CUkernel handle) { return handles_.find(reinterpret_cast<uint64_t>(handle)); }

  // False: it is no kernel of a library. Needs no lock.
  static bool may_be_kernel(CUfunction handle) {
    return Slots<Kernel, 13>::is_kind(reinterpret_cast<uint64_t>(handle));
  }

  // Whether it is a library whose code is not in the context yet.
  bool is_new(uint64_t library, uint64_t context);
  // The library's module in a context. Loads it at the first use.
  CUresult module(uint64_t library, uint64_t context, uint64_t* module);
  // The kernel as a function of a context.
  CUresult function(const Kernel& kernel, uint64_t context, uint64_t* function);
  void forget(uint64_t context);  // its modules end with it
  size_t live() const { return libraries_.live(); }

 private:
  struct Library {
    std::string code;
    std::map<std::string, uint64_t> kernels;  // by name
    std::map<uint64_t, uint64_t> modules;     // by context
  };

  Kernels* const kernels_;
  Slots<Library, 12> libraries_;
  Slots<Kernel, 13> handles_;
};

// A caller names a function, or casts a kernel of a library to one. In a kernel's place it puts the
// kernel's function in a context: the stream's, or the current one where `stream` is null. At the
// first use there the code is loaded, as by cuModuleLoadData.
CUresult resolve_kernel(CUfunction* function, const CUstream* stream = nullptr);

}  // namespace simcuda
