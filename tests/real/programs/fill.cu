// Kernels that NVRTC compiles: one by its name, one of a template.
extern "C" __global__ void fill(float *to, int count) {
  if (threadIdx.x < count) to[threadIdx.x] = 1;
}
template <class T>
__global__ void clear(T *to) {
  to[threadIdx.x] = T();
}
