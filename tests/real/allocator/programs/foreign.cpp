// A pluggable allocator: memory straight from the CUDA runtime.
#include <cstddef>

extern "C" {
int cudaMalloc(void**, size_t);
int cudaFree(void*);

void* foreign_malloc(size_t bytes, int, void*) {
  void* made = nullptr;
  return cudaMalloc(&made, bytes) == 0 ? made : nullptr;
}

void foreign_free(void* ptr, size_t, int, void*) { cudaFree(ptr); }
}
