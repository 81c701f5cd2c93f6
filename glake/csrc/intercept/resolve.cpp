#include "intercept/resolve.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "intercept/hooks.h"

namespace glake::intercept {
namespace {

using Dlsym = void* (*)(void*, const char*);
using GetProc = CUresult (*)(const char*, void**, int, cuuint64_t, void*);

struct Row {
  const char* symbol;
  const char* base;
  int version;
  void* hook;
};

const Row kRows[] = {
#define X(symbol, base, version, takes) \
  {#symbol, base, version, reinterpret_cast<void*>(&hook_##symbol)},
    INTERCEPT_ALL(X)
#undef X
};
constexpr int kCount = static_cast<int>(Name::kCount);

std::atomic<void*> found[kCount];

// glibc's own dlsym. It is looked up by version, because `dlsym` is this library's function.
Dlsym own_dlsym() {
  static std::atomic<Dlsym> known{nullptr};
  Dlsym own = known.load(std::memory_order_acquire);
  if (own != nullptr) return own;
  for (const char* version : {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"}) {
    own = reinterpret_cast<Dlsym>(dlvsym(RTLD_NEXT, "dlsym", version));
    if (own != nullptr) break;
  }
  if (own == nullptr) {
    std::fputs("glake: intercept: this C library has no dlsym that glake knows\n", stderr);
    std::abort();
  }
  known.store(own, std::memory_order_release);
  return own;
}

void* library_at(const void* function) {
  Dl_info info{};
  return dladdr(function, &info) != 0 ? info.dli_fbase : nullptr;
}

bool ours(const void* function) {
  return library_at(function) == library_at(reinterpret_cast<const void*>(&own_dlsym));
}

// Whether the caller is glake's engine, which needs the driver's own functions.
bool is_engine(const void* caller) {
  Dl_info info{};
  if (dladdr(caller, &info) == 0 || info.dli_fname == nullptr) return false;
  const char* slash = std::strrchr(info.dli_fname, '/');
  return std::strcmp(slash == nullptr ? info.dli_fname : slash + 1, "libglake.so") == 0;
}

// Keeps `function` as the driver's own function of this row. False: a function of another library
// is kept already. Then `function` gets no hook.
bool keep(int row, void* function) {
  void* before = nullptr;
  if (found[row].compare_exchange_strong(before, function)) return true;
  return before == function || library_at(before) == library_at(function);
}

// The hook for `function`, which a lookup of the row's symbol gave, or `function` itself.
void* hooked(int row, void* function) {
  if (function == nullptr || ours(function)) return function;
  return keep(row, function) ? kRows[row].hook : function;
}

// The hook for `function`, which cuGetProcAddress gave for a name and a version. It is the hook
// whose row names the same function by its own version. A function with a newer or older signature
// is left alone. A function for which a null stream is the thread's own is left alone too, because
// the driver gives another function when it is asked without flags.
void* hooked_by_name(GetProc get, const char* base, void* function) {
  for (int row = 0; row < kCount; ++row) {
    if (std::strcmp(kRows[row].base, base) != 0) continue;
    void* same = nullptr;
    const CUresult known =
        get(base, &same, kRows[row].version, CU_GET_PROC_ADDRESS_DEFAULT, nullptr);
    if (known == CUDA_SUCCESS && same == function) return hooked(row, function);
  }
  return function;
}

GetProc newest_get() { return reinterpret_cast<GetProc>(real(Name::k_cuGetProcAddress_v2)); }

// A handle of the library that has a driver's function.
void* handle_of(void* function) {
  Dl_info info{};
  if (function == nullptr || dladdr(function, &info) == 0 || info.dli_fname == nullptr) {
    return nullptr;
  }
  return dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
}

template <class F>
bool take(void* handle, const char* symbol, F* function) {
  *function = reinterpret_cast<F>(own_dlsym()(handle, symbol));
  return *function != nullptr;
}

DriverCalls look_up() {
  DriverCalls calls{};
  void* first = nullptr;
  for (int row = 0; row < kCount && first == nullptr; ++row) first = found[row].load();
  if (first == nullptr) first = real(Name::k_cuMemcpyHtoDAsync_v2);
  void* handle = handle_of(first);
  if (handle == nullptr) return calls;
  calls.library = library_at(first);
  calls.complete = take(handle, "cuCtxGetCurrent", &calls.ctx_get_current) &&
                   take(handle, "cuCtxGetDevice", &calls.ctx_get_device) &&
                   take(handle, "cuDevicePrimaryCtxGetState", &calls.primary_state) &&
                   take(handle, "cuDevicePrimaryCtxRetain", &calls.primary_retain) &&
                   take(handle, "cuDevicePrimaryCtxRelease_v2", &calls.primary_release) &&
                   take(handle, "cuStreamGetCtx", &calls.stream_context) &&
                   take(handle, "cuStreamIsCapturing", &calls.is_capturing) &&
                   take(handle, "cuThreadExchangeStreamCaptureMode", &calls.capture_mode) &&
                   take(handle, "cuPointerGetAttributes", &calls.pointer_attributes) &&
                   take(handle, "cuStreamCreate", &calls.stream_create) &&
                   take(handle, "cuStreamWaitEvent", &calls.stream_wait) &&
                   take(handle, "cuEventCreate", &calls.event_create) &&
                   take(handle, "cuEventRecord", &calls.event_record);
  take(handle, "cuStreamGetGreenCtx", &calls.stream_green);
  return calls;
}

// A function of the driver that other libraries of this process have loaded for themselves. A
// library that Python imports, or that is opened with RTLD_LOCAL, is bound to the hooks, but its
// libcuda is in no scope that RTLD_NEXT searches. The handle stays open, because the function does.
void* of_local_driver(const char* symbol) {
  void* handle = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  return handle == nullptr ? nullptr : own_dlsym()(handle, symbol);
}

}  // namespace

void* real(Name name) {
  const int row = static_cast<int>(name);
  void* known = found[row].load(std::memory_order_acquire);
  if (known != nullptr) return known;
  void* next = own_dlsym()(RTLD_NEXT, kRows[row].symbol);
  if (next == nullptr) next = of_local_driver(kRows[row].symbol);
  if (next != nullptr) keep(row, next);
  return next;
}

const DriverCalls& driver_calls() {
  static const DriverCalls calls = look_up();
  return calls;
}

bool is_programs_driver(const char* path) {
  void* handle = path == nullptr ? nullptr : dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr) return false;
  void* one = own_dlsym()(handle, "cuInit");
  return one != nullptr && library_at(one) == driver_calls().library;
}

CUresult hook_cuGetProcAddress_v2(const char* symbol, void** function, int version,
                                  cuuint64_t flags, void* status) {
  const GetProc get = newest_get();
  if (get == nullptr) return CUDA_ERROR_NOT_FOUND;
  const CUresult result = get(symbol, function, version, flags, status);
  if (result == CUDA_SUCCESS && function != nullptr && *function != nullptr) {
    *function = hooked_by_name(get, symbol, *function);
  }
  return result;
}

CUresult hook_cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t flags) {
  using Old = CUresult (*)(const char*, void**, int, cuuint64_t);
  const auto old = reinterpret_cast<Old>(real(Name::k_cuGetProcAddress));
  if (old == nullptr) return CUDA_ERROR_NOT_FOUND;
  const CUresult result = old(symbol, function, version, flags);
  const GetProc get = newest_get();
  if (result == CUDA_SUCCESS && get != nullptr && function != nullptr && *function != nullptr) {
    *function = hooked_by_name(get, symbol, *function);
  }
  return result;
}

// Sets what a lookup by dlsym gets: a hook, or nullptr where the process has no driver. False: the
// lookup is left to glibc.
bool looked_up(void* handle, const char* name, const void* caller, void** function) {
  if (handle == RTLD_NEXT || is_engine(caller)) return false;
  for (int row = 0; row < kCount; ++row) {
    if (std::strcmp(kRows[row].symbol, name) != 0) continue;
    *function = hooked(row, own_dlsym()(handle, name));
    // In the global scope this library's own functions are always found.
    if (*function != nullptr && ours(*function) && real(static_cast<Name>(row)) == nullptr) {
      *function = own_dlsym()(RTLD_NEXT, name);  // it sets the text of dlerror()
      return true;
    }
    return *function != nullptr;
  }
  return false;
}

}  // namespace glake::intercept

// If the name is not intercepted, this jumps to glibc's dlsym instead of calling it, because
// RTLD_NEXT and RTLD_DEFAULT depend on the caller.
extern "C" __attribute__((visibility("default"))) void* dlsym(void* handle, const char* name) {
  if (name[0] == 'c' && name[1] == 'u') {
    void* function = nullptr;
    if (glake::intercept::looked_up(handle, name, __builtin_return_address(0), &function)) {
      return function;
    }
  }
  return glake::intercept::own_dlsym()(handle, name);
}
