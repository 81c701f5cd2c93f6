// NVML (libnvidia-ml.so.1) over the simulated machine: what all parts of it share. The options
// describe the machine. The driver is not started, as with the real NVML.
#pragma once

#include <string>

#include "plan/topology.h"
#include "simcuda/driver/gpu_models.h"
#include "simcuda/driver/gpu_uuid.h"
#include "simcuda/driver/runtime.h"

namespace nvml {

enum Status : int {  // nvmlReturn_t
  kSuccess = 0,
  kUninitialized = 1,
  kInvalidArgument = 2,
  kNotSupported = 3,
  kNotFound = 6,
  kInsufficientSize = 7,
  kDriverNotLoaded = 9,
  kUnknown = 999,
};

struct Machine {
  simcuda_machine_facts facts{};
  glake::topology::Topology topology;
  const simcuda::GpuModel* model = nullptr;
};

// A device's handle is the address of its element of an array.
struct Device {
  int index = -1;
};

// nullptr before nvmlInit and after the last nvmlShutdown.
const Machine* machine();
// Whether NVML is initialised, and this is a device of the machine.
Status check(const Device* device);
Device* device(int index);
std::string bus_id(int index);  // "00000000:01:00.0", as for the driver's devices
std::string uuid(int index);    // "GPU-676c616b-..."
Status put_text(const std::string& text, char* out, unsigned capacity);

}  // namespace nvml

#define NVML_EXPORT extern "C" __attribute__((visibility("default")))
#define NVML(name) NVML_EXPORT ::nvml::Status name
