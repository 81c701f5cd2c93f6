/* The CUDA driver, reached in one of the ways that programs have: linked (-DLINKED), by dlsym of
 * each function (-DBY_NAME), or by cuGetProcAddress alone, as NVIDIA's runtime does. */
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALLS(X)                                                      \
  X(cuInit, "cuInit", 2000)                                           \
  X(cuDeviceGet, "cuDeviceGet", 2000)                                 \
  X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000)       \
  X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", 11000) \
  X(cuDevicePrimaryCtxReset, "cuDevicePrimaryCtxReset_v2", 11000)     \
  X(cuDevicePrimaryCtxGetState, "cuDevicePrimaryCtxGetState", 7000)   \
  X(cuCtxSetCurrent, "cuCtxSetCurrent", 4000)                         \
  X(cuCtxSynchronize, "cuCtxSynchronize", 2000)                       \
  X(cuMemAlloc, "cuMemAlloc_v2", 3020)                                \
  X(cuMemFree, "cuMemFree_v2", 3020)                                  \
  X(cuMemAllocAsync, "cuMemAllocAsync", 11020)                        \
  X(cuMemFreeAsync, "cuMemFreeAsync", 11020)                          \
  X(cuMemAllocManaged, "cuMemAllocManaged", 6000)                     \
  X(cuMemHostAlloc, "cuMemHostAlloc", 2020)                           \
  X(cuMemFreeHost, "cuMemFreeHost", 2000)                             \
  X(cuMemHostRegister, "cuMemHostRegister_v2", 6050)                  \
  X(cuMemHostUnregister, "cuMemHostUnregister", 4000)                 \
  X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", 3020)                  \
  X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", 3020)                  \
  X(cuMemcpyAsync, "cuMemcpyAsync", 4000)                             \
  X(cuMemcpyHtoD, "cuMemcpyHtoD_v2", 3020)                            \
  X(cuMemcpyDtoH, "cuMemcpyDtoH_v2", 3020)                            \
  X(cuMemsetD8Async, "cuMemsetD8Async", 3020)                         \
  X(cuStreamCreate, "cuStreamCreate", 2000)                           \
  X(cuStreamDestroy, "cuStreamDestroy_v2", 4000)                      \
  X(cuStreamSynchronize, "cuStreamSynchronize", 2000)                 \
  X(cuStreamQuery, "cuStreamQuery", 2000)                             \
  X(cuStreamWaitEvent, "cuStreamWaitEvent", 3020)                     \
  X(cuEventCreate, "cuEventCreate", 2000)                             \
  X(cuEventRecord, "cuEventRecord", 2000)                             \
  X(cuEventQuery, "cuEventQuery", 2000)                               \
  X(cuEventSynchronize, "cuEventSynchronize", 2000)                   \
  X(cuStreamBeginCapture, "cuStreamBeginCapture_v2", 10010)           \
  X(cuStreamEndCapture, "cuStreamEndCapture", 10000)                  \
  X(cuGraphInstantiate, "cuGraphInstantiateWithFlags", 12000)         \
  X(cuGraphLaunch, "cuGraphLaunch", 10000)                            \
  X(cuCtxCreateOld, "cuCtxCreate_v2", 3020)                           \
  X(cuCtxDestroy, "cuCtxDestroy_v2", 4000)                            \
  X(cuIpcGetMemHandle, "cuIpcGetMemHandle", 4010)                     \
  X(cuIpcOpenMemHandle, "cuIpcOpenMemHandle_v2", 11000)               \
  X(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", 4010)                 \
  X(cuLibraryLoadFromFile, "cuLibraryLoadFromFile", 12000)            \
  X(cuLibraryUnload, "cuLibraryUnload", 12000)                        \
  X(cuLibraryGetKernel, "cuLibraryGetKernel", 12000)                  \
  X(cuLibraryGetModule, "cuLibraryGetModule", 12000)                  \
  X(cuKernelGetFunction, "cuKernelGetFunction", 12000)                \
  X(cuMemAddressReserve, "cuMemAddressReserve", 10020)                \
  X(cuMemCreate, "cuMemCreate", 10020)                                \
  X(cuMemMap, "cuMemMap", 10020)                                      \
  X(cuMemUnmap, "cuMemUnmap", 10020)                                  \
  X(cuMemSetAccess, "cuMemSetAccess", 10020)                          \
  X(cuStreamWriteValue32, "cuStreamWriteValue32_v2", 11070)           \
  X(cuStreamWaitValue32, "cuStreamWaitValue32_v2", 11070)

typedef CUresult (*old_create)(CUcontext*, unsigned, CUdevice);
static CUresult cuCtxCreateOld(CUcontext* c, unsigned f, CUdevice d);

static struct {
#define FIELD(name, symbol, version) __typeof__(&name) name;
  CALLS(FIELD)
#undef FIELD
} cu;

#ifdef LINKED
extern CUresult create_v2(CUcontext*, unsigned, CUdevice) __asm__("cuCtxCreate_v2");
static CUresult cuCtxCreateOld(CUcontext* c, unsigned f, CUdevice d) { return create_v2(c, f, d); }
static void find_driver(void) {
#define TAKE(name, symbol, version) cu.name = &name;
  CALLS(TAKE)
}
#else
static CUresult cuCtxCreateOld(CUcontext* c, unsigned f, CUdevice d) {
  (void)c, (void)f, (void)d;
  return CUDA_ERROR_NOT_SUPPORTED;
}
static void missing(const char* name) {
  fprintf(stderr, "the driver has no %s\n", name);
  exit(2);
}
static void find_driver(void) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) missing("libcuda.so.1");
#ifdef BY_NAME
#define TAKE(name, symbol, version)                      \
  cu.name = (__typeof__(cu.name))dlsym(library, symbol); \
  if (cu.name == NULL) missing(symbol);
#else
  CUresult (*get)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*) =
      (__typeof__(get))dlsym(library, "cuGetProcAddress_v2");
  if (get == NULL) missing("cuGetProcAddress_v2");
#define TAKE(name, symbol, version)                                              \
  {                                                                              \
    char base[64];                                                               \
    strcpy(base, symbol);                                                        \
    char* end = strstr(base, "_v2");                                             \
    if (end != NULL) *end = '\0';                                                \
    if (strcmp(base, "cuGraphInstantiateWithFlags") == 0) base[18] = '\0';       \
    void* function = NULL;                                                       \
    if (get(base, &function, version, 0, NULL) != CUDA_SUCCESS) missing(symbol); \
    cu.name = (__typeof__(cu.name))function;                                     \
  }
#endif
  CALLS(TAKE)
}
#endif
