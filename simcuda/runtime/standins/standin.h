// Stand-ins for libraries of CUDA. None of their kernels runs. Each library has a list
// (lists/NAME.def) of the names that PyTorch asks for, each with its kind:
//
//   WRITTEN(name)            is written by hand in NAME.cpp
//   LAUNCH(name)             is work of a kernel. It is ordered and counted on the stream of the
//                            handle in its first argument, and succeeds
//   LAUNCH_TO_DEVICE(name)   the same if the result goes to device memory. It is unsupported if the
//                            result goes to the host, which would read what nobody computed
//   HARMLESS(name, reason)   does nothing, and succeeds. The reason says why that is right
//   UNSUPPORTED(name)        is not written. It returns the library's status for "not supported",
//                            and tells the name once on stderr and in simcuda_missing()
//   UNSUPPORTED_POINTER(name)  the same for a function that returns a pointer: it returns null
//
// A source that defines the library sets STANDIN_LIBRARY (its name), STANDIN_UNSUPPORTED (a value)
// and, if it has launches, STANDIN_LAUNCH. It ends with two includes: kinds.h, and then its own
// list of functions.
#pragma once

#include "simcuda/driver/runtime.h"

#define STANDIN_EXPORT extern "C" __attribute__((visibility("default")))

namespace standins {

// Every handle begins with these members. `stream` gets the work that is asked of the handle.
struct Handle {
  CUstream_st* stream = nullptr;
  bool to_host = true;  // scalar results go to host memory: cuBLAS's default pointer mode
};

}  // namespace standins
