// A pluggable allocator that counts its calls. It takes memory from the driver, whose functions it
// looks up itself.
#include <dlfcn.h>
#include <stddef.h>
#include <sys/types.h>

static int allocated, freed;

static void* find(const char* name) { return dlsym(dlopen("libcuda.so.1", RTLD_NOW), name); }

extern "C" void* foreign_alloc(ssize_t bytes, int, void*) {
  unsigned long long at = 0;
  auto call = (int (*)(unsigned long long*, size_t))find("cuMemAlloc_v2");
  if (call(&at, (size_t)bytes) != 0) return nullptr;
  ++allocated;
  return (void*)at;
}

extern "C" void foreign_free(void* at, ssize_t, int, void*) {
  auto call = (int (*)(unsigned long long))find("cuMemFree_v2");
  if (call((unsigned long long)at) == 0) ++freed;
}

extern "C" int foreign_allocated() { return allocated; }
extern "C" int foreign_freed() { return freed; }
