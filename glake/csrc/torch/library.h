// glake's C interface, resolved at run time. The torch adapters are compiled on the user's machine
// against torch's headers. So they find libglake.so by the path that they are given, and not by a
// link.
#pragma once

#include <dlfcn.h>

#include <string>

#include "glake/glake.h"

// Every function that all adapters call, by its name without glake_.
#define GLAKE_ENTRIES(X) \
  X(malloc)              \
  X(free)                \
  X(record_stream)       \
  X(empty_cache)         \
  X(block_info)          \
  X(configure)           \
  X(last_error)

// The functions that only the CUDA allocator calls in addition.
#define GLAKE_CUDA_ENTRIES(X) \
  X(options)                  \
  X(enable_peer_access)       \
  X(reset_peak_stats)         \
  X(get_stats)                \
  X(reset_accumulated_stats)  \
  X(set_limit_fraction)       \
  X(limit_fraction)           \
  X(memory_info)              \
  X(largest_free)             \
  X(pool_retain)              \
  X(pool_release)             \
  X(pool_uses)                \
  X(pool_set_flags)           \
  X(pool_malloc)              \
  X(pool_malloc_at)           \
  X(pool_empty_cache)         \
  X(pool_checkpoint)          \
  X(checkpoint_free)          \
  X(pool_restore)             \
  X(claim_outside)            \
  X(ipc_share)                \
  X(ipc_open)                 \
  X(ipc_close)                \
  X(host_malloc)              \
  X(host_free)                \
  X(host_block_bytes)         \
  X(host_record_stream)       \
  X(stream_may_end)           \
  X(host_empty_cache)         \
  X(get_host_stats)           \
  X(set_context_hooks)        \
  X(history)                  \
  X(visit_history)            \
  X(observe)                  \
  X(visit_memory)             \
  X(visit_blocks)             \
  X(block_context)

namespace glake::adapter {

struct Library {
#define X(name) decltype(&glake_##name) name = nullptr;
  GLAKE_ENTRIES(X)
#undef X

  // Opens the library at `path` and resolves every entry. The library is never closed. Returns what
  // is missing, or "".
  std::string open(const char* path) {
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* reason = dlerror();
      return reason != nullptr ? reason : std::string("cannot open ") + path;
    }
    std::string missing;
#define X(name) resolve(library, name, "glake_" #name, &missing);
    GLAKE_ENTRIES(X)
#undef X
    resolve_more(library, &missing);
    return missing.empty() ? "" : std::string(path) + " lacks " + missing;
  }

  // Returns the code of the calling thread's last error, and puts its sentence into `text`.
  int error(std::string* text) const {
    char buffer[4096] = "";
    int code = last_error(buffer, sizeof buffer);
    *text = buffer;
    return code;
  }

  virtual ~Library() = default;

 protected:
  template <typename Entry>
  static void resolve(void* library, Entry& entry, const char* name, std::string* missing) {
    entry = reinterpret_cast<Entry>(dlsym(library, name));
    if (entry == nullptr) *missing += std::string(missing->empty() ? "" : ", ") + name;
  }
  virtual void resolve_more(void*, std::string*) {}
};

struct CudaLibrary final : Library {
#define X(name) decltype(&glake_##name) name = nullptr;
  GLAKE_CUDA_ENTRIES(X)
#undef X

 protected:
  void resolve_more(void* library, std::string* missing) override {
#define X(name) resolve(library, name, "glake_" #name, missing);
    GLAKE_CUDA_ENTRIES(X)
#undef X
  }
};

// What torch calls out of memory. This includes a size that no device has, which glake calls
// invalid.
inline bool is_out_of_memory(int code, size_t bytes) {
  constexpr size_t kAnyDevice = size_t{1} << 44;
  return code == GLAKE_OUT_OF_MEMORY || (code == GLAKE_INVALID_ARGUMENT && bytes > kAnyDevice);
}

}  // namespace glake::adapter
