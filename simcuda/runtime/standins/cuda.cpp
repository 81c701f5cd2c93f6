// The libcuda.so.1 that makes simcuda stand in for CUDA's driver. It obeys CUDA_VISIBLE_DEVICES, as
// a driver does, and takes any module of kernels. GLAKE_DRIVER=sim loads simcuda without this
// library, because CUDA_VISIBLE_DEVICES may hide real GPUs there.
#include "simcuda/driver/runtime.h"

__attribute__((constructor)) static void stand_in() {
  simcuda_obey_visible_devices(1);
  simcuda_count_kernels(1);
}
