// Calls the plug-in from C++, as torch does, because its exceptions cannot pass through ctypes.
#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <cstdio>
#include <functional>

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace {

template <class F>
const char* kind_of(F&& call, char* text, size_t capacity) {
  try {
    call();
    return "none";
  } catch (const c10::OutOfMemoryError& error) {
    std::snprintf(text, capacity, "%s", error.what_without_backtrace());
    return "OutOfMemoryError";
  } catch (const c10::NotImplementedError& error) {
    std::snprintf(text, capacity, "%s", error.what_without_backtrace());
    return "NotImplementedError";
  } catch (const c10::Error& error) {
    std::snprintf(text, capacity, "%s", error.what_without_backtrace());
    return "Error";
  }
}

}  // namespace

extern "C" const char* probe_alloc(void* (*alloc)(ssize_t, int, cudaStream_t), ssize_t bytes,
                                   int device, char* text, size_t capacity) {
  return kind_of([&] { alloc(bytes, device, nullptr); }, text, capacity);
}

extern "C" const char* probe_begin_pool(void (*begin)(int, c10::MempoolId_t,
                                                      std::function<bool(cudaStream_t)>),
                                        char* text, size_t capacity) {
  return kind_of([&] { begin(0, {1, 0}, [](cudaStream_t) { return true; }); }, text, capacity);
}
