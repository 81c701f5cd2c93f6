// If libcuda.so.1 is this library, simcuda stands in for CUDA's driver. It reads the same
// variables, and takes any module of kernels.
// GLAKE_DRIVER=sim, beside GPUs that CUDA_VISIBLE_DEVICES hides, loads simcuda alone.
#include "simcuda/driver/runtime.h"

__attribute__((constructor)) static void stand_in() {
  simcuda_obey_visible_devices(1);
  simcuda_count_kernels(1);
}
