// A pluggable allocator that counts its calls in `made` and `freed`. `taken` or `managed`
// allocates, and `given` frees.
#include <cstddef>

extern "C" {
int cudaMalloc(void**, size_t);
int cudaMallocManaged(void**, size_t, unsigned);
int cudaFree(void*);

int made = 0, freed = 0;

void* taken(size_t bytes, int, void*) {
  void* ptr = nullptr;
  return cudaMalloc(&ptr, bytes) == 0 ? (++made, ptr) : nullptr;
}

void* managed(size_t bytes, int, void*) {
  void* ptr = nullptr;
  return cudaMallocManaged(&ptr, bytes, 1) == 0 ? (++made, ptr) : nullptr;
}

void given(void* ptr, size_t, int, void*) {
  ++freed;
  cudaFree(ptr);
}
}
