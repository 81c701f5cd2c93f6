// Functions of NCCL that PyTorch looks up and nobody wrote. Each returns an error that names it.
// Arguments are not read.
#include "error.h"
#include "nccl.h"
#include "simcuda/driver/runtime.h"

namespace {

ncclResult unsupported(const char* function) {
  simcuda_missed("libnccl", function);
  return nccl::fail(ncclInvalidUsage, std::string(function) +
                                          ": the simulated NCCL does not have it (docs/real.md "
                                          "says what it has)");
}

}  // namespace

#define WRITTEN(name)
#define UNSUPPORTED(name) \
  NCCL_API ncclResult name() { return unsupported(#name); }

#include "simcuda/runtime/standins/lists/nccl.def"
