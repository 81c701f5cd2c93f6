/* A library that is linked to the driver (-DLIBRARY), and a program that opens it for itself alone,
 * so that the driver is not in the global scope. Without a driver the program finds none. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

#ifdef LIBRARY
#include <cuda.h>
#include <string.h>

#define BYTES ((size_t)32 << 20)
#define CU(call)                               \
  do {                                         \
    CUresult got = (call);                     \
    if (got != CUDA_SUCCESS) {                 \
      printf("%s gave %d\n", #call, (int)got); \
      return 1;                                \
    }                                          \
  } while (0)

int there_and_back(void) {
  CUcontext context;
  CUdeviceptr a;
  void* host;
  CU(cuInit(0));
  CU(cuDevicePrimaryCtxRetain(&context, 0));
  CU(cuCtxSetCurrent(context));
  CU(cuMemHostAlloc(&host, BYTES, 0));
  CU(cuMemAlloc(&a, BYTES));
  memset(host, 7, BYTES);
  CU(cuMemcpyHtoD(a, host, BYTES));
  memset(host, 0, BYTES);
  CU(cuMemcpyDtoH(host, a, BYTES));
  for (size_t i = 0; i < BYTES; ++i) {
    if (((char*)host)[i] != 7) return 2;
  }
  CU(cuMemFree(a));
  CU(cuMemFreeHost(host));
  return 0;
}
#else
int main(int count, char** arguments) {
  void* found = dlsym(RTLD_DEFAULT, "cuMemFree_v2");
  printf("no driver yet: %d %d\n", found == NULL, dlerror() != NULL);
  void* library = count > 1 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  if (library == NULL) {
    puts(dlerror());
    return 3;
  }
  int (*there_and_back)(void) = (int (*)(void))dlsym(library, "there_and_back");
  const int result = there_and_back == NULL ? 4 : there_and_back();
  if (result == 0) puts("all right");
  return result;
}
#endif
