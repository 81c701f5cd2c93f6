/* A driver with several functions of one name (-DDRIVER), and a program that asks for each and
 * prints whose it was given: one whose signature or null stream is another must be left alone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#ifdef DRIVER
int cuMemcpyHtoDAsync_v2(void) { return 0; }
int cuMemcpyHtoDAsync(void) { return 1; }
int cuMemcpyHtoDAsync_v3(void) { return 3; }
int cuMemcpyHtoDAsync_v2_ptsz(void) { return 4; }
int cuMemFree_v2(void) { return 5; }

int cuGetProcAddress_v2(const char* name, void** function, int version, unsigned long long flags,
                        int* status) {
  (void)status;
  if (strcmp(name, "cuMemFree") == 0) {
    *function = (void*)cuMemFree_v2;
  } else if (strcmp(name, "cuGetProcAddress") == 0) {
    *function = (void*)cuGetProcAddress_v2;
  } else if (strcmp(name, "cuMemcpyHtoDAsync") == 0) {
    *function = version < 3020     ? (void*)cuMemcpyHtoDAsync
                : version >= 20000 ? (void*)cuMemcpyHtoDAsync_v3
                : (flags & 2) != 0 ? (void*)cuMemcpyHtoDAsync_v2_ptsz
                                   : (void*)cuMemcpyHtoDAsync_v2;
  } else {
    return 500;
  }
  return 0;
}
#else
typedef int (*get_function)(const char*, void**, int, unsigned long long, int*);

static const char* whose(void* function) {
  Dl_info info;
  if (dladdr(function, &info) == 0) return "nobody's";
  return strstr(info.dli_fname, "libglake_intercept") != NULL ? "glake's" : "the driver's";
}

int main(int count, char** arguments) {
  void* library = count > 1 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  if (library == NULL) return 2;
  get_function get = (get_function)dlsym(library, "cuGetProcAddress_v2");
  void* function = NULL;
  printf("get: %s\n", whose((void*)get));
  if (get("cuGetProcAddress", &function, 12000, 0, NULL) != 0) return 3;
  printf("get from get: %s\n", whose(function));
  if (get("cuMemcpyHtoDAsync", &function, 12080, 0, NULL) != 0) return 3;
  printf("copy: %s\n", whose(function));
  if (get("cuMemcpyHtoDAsync", &function, 2000, 0, NULL) != 0) return 3;
  printf("old copy: %s\n", whose(function));
  if (get("cuMemcpyHtoDAsync", &function, 20000, 0, NULL) != 0) return 3;
  printf("later copy: %s\n", whose(function));
  if (get("cuMemcpyHtoDAsync", &function, 12080, 2, NULL) != 0) return 3;
  printf("thread's copy: %s\n", whose(function));
  if (get("cuMemFree", &function, 12080, 2, NULL) != 0) return 3;
  printf("thread's free: %s\n", whose(function));
  printf("copy by name: %s\n", whose(dlsym(library, "cuMemcpyHtoDAsync_v2")));
  printf("other by name: %s\n", whose(dlsym(library, "cuMemcpyHtoDAsync_v3")));
  printf("none by name: %s\n", dlsym(library, "cuMemcpy") == NULL ? "none" : "some");
  printf("none by get: %d\n", get("cuMemcpy", &function, 12080, 0, NULL));
  return 0;
}
#endif
