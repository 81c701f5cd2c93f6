// Libraries of CUDA that no kernel of theirs runs in. Each has a list (lists/NAME.def) of the names
// that PyTorch asks for, each with its kind:
//
//   WRITTEN(name)            written by hand in NAME.cpp
//   LAUNCH(name)             work of a kernel: ordered and counted on the stream of the handle that
//                            is its first argument; success
//   LAUNCH_TO_DEVICE(name)   the same where the result goes to device memory; unsupported where it
//                            would go to the host, which would read what nobody computed
//   HARMLESS(name, reason)   does nothing here, and the reason says why that is right; success
//   UNSUPPORTED(name)        not written: returns the library's status for "not supported", and
//                            tells the name once on stderr and in simcuda_missing()
//   UNSUPPORTED_POINTER(name)  the same for a function that returns a pointer: it returns null
//
// A source that defines the library says STANDIN_LIBRARY (its name), STANDIN_UNSUPPORTED (a value)
// and, where it has launches, STANDIN_LAUNCH, then includes its list between kinds.h and no more.
#pragma once

#include "simcuda/driver/runtime.h"

#define STANDIN_EXPORT extern "C" __attribute__((visibility("default")))

namespace standins {

// What every handle begins with: the stream its work goes to.
struct Handle {
  CUstream_st* stream = nullptr;
  bool to_host = true;  // scalar results go to host memory: cuBLAS's default pointer mode
};

}  // namespace standins
