// How a program comes to a driver's functions: linked to it, by dlsym, by cuGetProcAddress. Each
// way gives it glake's functions in place of those that are intercepted.
#pragma once

#include <mutex>

#include "intercept/names.h"

namespace glake::intercept {

// The driver's own function, nullptr: nobody has one. It is the one that the program first came to,
// or that of the library it is linked to.
void* real(Name name);

// What the carrier itself needs of the driver that the program uses. It is looked up once.
struct DriverCalls {
  CUresult (*ctx_get_current)(CUcontext*);
  CUresult (*ctx_get_device)(CUdevice*);
  CUresult (*primary_state)(CUdevice, unsigned*, int*);
  CUresult (*primary_retain)(CUcontext*, CUdevice);
  CUresult (*primary_release)(CUdevice);
  CUresult (*stream_context)(CUstream, CUcontext*);
  CUresult (*stream_green)(CUstream, void**);  // nullptr in a driver without green contexts
  CUresult (*is_capturing)(CUstream, CUstreamCaptureStatus*);
  CUresult (*capture_mode)(CUstreamCaptureMode*);
  CUresult (*pointer_attributes)(unsigned, CUpointer_attribute*, void**, CUdeviceptr);
  CUresult (*stream_create)(CUstream*, unsigned);
  CUresult (*stream_wait)(CUstream, CUevent, unsigned);
  CUresult (*event_create)(CUevent*, unsigned);
  CUresult (*event_record)(CUevent, CUstream);
  bool complete = false;
  void* library = nullptr;  // where it is loaded
};
const DriverCalls& driver_calls();

// Whether the library at `path` is the driver that the program uses.
bool is_programs_driver(const char* path);

}  // namespace glake::intercept
