// libnccl: a version, and errors that name what is missing.
#include "standin.h"

#define STANDIN_LIBRARY "libnccl"

namespace {
enum Status : int { kSuccess = 0, kInternalError = 3, kInvalidArgument = 4 };
}
#define STANDIN_UNSUPPORTED kInternalError  // NCCL has no "not supported"

STANDIN_EXPORT int ncclGetVersion(int* version) {
  if (version == nullptr) return kInvalidArgument;
  *version = 23007;
  return kSuccess;
}

STANDIN_EXPORT const char* ncclGetErrorString(int status) {
  return status == kSuccess           ? "no error"
         : status == kInvalidArgument ? "invalid argument"
                                      : "glake's stand-in for NCCL has no such function";
}

STANDIN_EXPORT const char* ncclGetLastError(void*) {
  return "glake's stand-in for NCCL has no such function: see stderr for its name";
}

#include "kinds.h"
#include "lists/nccl.def"
