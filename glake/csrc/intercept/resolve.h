// The ways by which a program finds a driver's functions: linking, dlsym and cuGetProcAddress. Each
// gives it glake's functions in place of those that are intercepted.
#pragma once

#include <mutex>

#include "intercept/names.h"

namespace glake::intercept {

// The driver's own function. It is the function that the program found first, or the one of the
// library that the program is linked to. nullptr: there is none.
void* real(Name name);

// The functions that the carrier itself needs of the program's driver. They are looked up once.
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
