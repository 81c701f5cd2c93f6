// CUDA arrays, textures, surfaces, and hints for managed memory, which simcuda does not have. A
// library that names such a function could not be loaded without it, as CuPy's modules are.
#include "cudart.h"

using namespace cudart;  // NOLINT: this file is nothing but C face

// Arguments are not read, so none are declared.
#define CUDART_ABSENT(name)             \
  CUDART(name)() {                      \
    CUDART_READY();                     \
    simcuda_missed("libcudart", #name); \
    return told(kNotSupported);         \
  }

CUDART_ABSENT(cudaCreateSurfaceObject)
CUDART_ABSENT(cudaCreateTextureObject)
CUDART_ABSENT(cudaDestroySurfaceObject)
CUDART_ABSENT(cudaDestroyTextureObject)
CUDART_ABSENT(cudaFreeArray)
CUDART_ABSENT(cudaGetChannelDesc)
CUDART_ABSENT(cudaGetTextureObjectResourceDesc)
CUDART_ABSENT(cudaGetTextureObjectTextureDesc)
CUDART_ABSENT(cudaMalloc3DArray)
CUDART_ABSENT(cudaMallocArray)
CUDART_ABSENT(cudaMemAdvise)
CUDART_ABSENT(cudaMemPrefetchAsync)
CUDART_ABSENT(cudaMemcpy2DFromArray)
CUDART_ABSENT(cudaMemcpy2DFromArrayAsync)
CUDART_ABSENT(cudaMemcpy2DToArray)
CUDART_ABSENT(cudaMemcpy2DToArrayAsync)
CUDART_ABSENT(cudaMemcpy3D)
CUDART_ABSENT(cudaMemcpy3DAsync)

// "Returns a channel descriptor with format f and number of bits of each component": a plain value,
// which the caller makes from what it has.
CUDART_EXPORT ChannelFormat cudaCreateChannelDesc(int x, int y, int z, int w, int kind) {
  return {x, y, z, w, kind};
}
