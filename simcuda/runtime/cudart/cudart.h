// Shared by all parts of the runtime: how a call starts, fails and is exported.
#pragma once

#include "driver_calls.h"
#include "simcuda/driver/runtime.h"
#include "types.h"

namespace cudart {

// If it is an error, remembers it as the calling thread's last one. Returns it.
Error told(Error error);
inline Error told(CUresult result) { return told(static_cast<Error>(result)); }

// Starts the driver. The error is not remembered.
Error start();
// Starts the driver and makes a context current on this thread, if there is none: the primary one
// of the thread's device. "If no CUcontext is current to the calling thread when a CUDA Runtime API
// call which requires an active context is made, then the primary context for a device will be
// selected, made current to the calling thread, and initialized": CUDA Runtime API, Interactions
// with the CUDA Driver API. The driver itself refuses such threads.
Error ready();
int device_count();  // 0 where there is no driver
// "The current device for the calling host thread" (cudaGetDevice): that of the driver's current
// context, else that of the thread's last cudaSetDevice, else 0.
int current_device();
bool is_device(int device);
CUresult primary_context(int device, CUcontext* context);

// Says why the calling thread's last launch was not supported; nullptr if it was.
const char* refusal();

// A driver function that simcuda may not have. Then it is nullptr.
void* driver_function(const char* name);

inline CUdeviceptr address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

// Calls cuName(arguments...), whose signature follows from the arguments. If the driver has no such
// function, returns cudaErrorNotSupported and prints the name to stderr.
template <class... Arguments>
Error optional(const char* name, void* function, Arguments... arguments) {
  if (function == nullptr) {
    simcuda_missed("libcuda", name);
    return told(kNotSupported);
  }
  return told(reinterpret_cast<CUresult (*)(Arguments...)>(function)(arguments...));
}

}  // namespace cudart

#define CUDART_EXPORT extern "C" __attribute__((visibility("default")))
#define CUDART(name) CUDART_EXPORT ::cudart::Error name

#define CUDART_READY()                                               \
  do {                                                               \
    const ::cudart::Error ready_ = ::cudart::ready();                \
    if (ready_ != ::cudart::kSuccess) return ::cudart::told(ready_); \
  } while (0)

// Calls the driver's function if it has one: OPTIONAL(cuMemPoolTrimTo, pool, bytes).
#define OPTIONAL(function, ...)                                       \
  ([&] {                                                              \
    static void* const found_ = ::cudart::driver_function(#function); \
    return ::cudart::optional(#function, found_, __VA_ARGS__);        \
  }())
