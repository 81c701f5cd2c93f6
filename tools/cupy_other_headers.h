// Each header that CuPy's build looks for beside those of the runtime (tools/cupy_build.py).
#pragma once

#include <cuda_runtime_api.h>

extern "C" cudaError_t cudaProfilerStart();
extern "C" cudaError_t cudaProfilerStop();
