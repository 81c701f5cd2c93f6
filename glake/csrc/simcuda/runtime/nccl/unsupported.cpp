// What PyTorch 2.14 and 2.15 ask NCCL for and nobody wrote: an error that names it.
#include "error.h"
#include "nccl.h"

namespace {

ncclResult unsupported(const char* function, const char* what) {
  return nccl::fail(ncclInvalidUsage, std::string(function) + ": the simulated NCCL has no " +
                                          what + " (docs/real.md says what it has)");
}

}  // namespace

// Whatever the arguments are, they are not looked at.
#define UNSUPPORTED(function, what) \
  NCCL_API ncclResult function() { return unsupported(#function, what); }

UNSUPPORTED(ncclCommGetUniqueId, "growing communicators")
UNSUPPORTED(ncclCommGrow, "growing communicators")
UNSUPPORTED(ncclCommShrink, "shrinking communicators")
UNSUPPORTED(ncclCommRevoke, "revoking of communicators")
UNSUPPORTED(ncclCommSuspend, "suspended communicators")
UNSUPPORTED(ncclCommResume, "suspended communicators")
UNSUPPORTED(ncclCommMemStats, "memory of its own to count")
UNSUPPORTED(ncclCommWindowRegister, "symmetric memory")
UNSUPPORTED(ncclCommWindowDeregister, "symmetric memory")
UNSUPPORTED(ncclWinGetUserPtr, "symmetric memory")
UNSUPPORTED(ncclGetLsaMultimemDevicePointer, "symmetric memory")
UNSUPPORTED(ncclGetPeerDevicePointer, "symmetric memory")
UNSUPPORTED(ncclDevCommCreate, "communication from kernels")
UNSUPPORTED(ncclDevCommDestroy, "communication from kernels")
UNSUPPORTED(ncclPutSignal, "one-sided communication")
UNSUPPORTED(ncclSignal, "one-sided communication")
UNSUPPORTED(ncclWaitSignal, "one-sided communication")
UNSUPPORTED(ncclGroupSimulateEnd, "estimates of time")
