// glake's C interface, resolved at run time. The torch adapters are compiled on the user's machine
// against torch's headers, so they find libglake.so by the path they are given, not by a link.
#pragma once

#include <dlfcn.h>

#include <string>

#include "capi.h"

namespace glake::adapter {

struct Library {
  decltype(&glake_malloc) malloc = nullptr;
  decltype(&glake_free) free = nullptr;
  decltype(&glake_record_stream) record_stream = nullptr;
  decltype(&glake_empty_cache) empty_cache = nullptr;
  decltype(&glake_block_info) block_info = nullptr;
  decltype(&glake_configure) configure = nullptr;
  decltype(&glake_last_error) last_error = nullptr;

  // Opens the library at `path` and resolves every entry; it is never closed. Returns what is
  // missing, or "".
  std::string open(const char* path) {
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* reason = dlerror();
      return reason != nullptr ? reason : std::string("cannot open ") + path;
    }
    std::string missing;
    auto resolve = [&](auto& entry, const char* name) {
      entry = reinterpret_cast<std::remove_reference_t<decltype(entry)>>(dlsym(library, name));
      if (entry == nullptr) missing += std::string(missing.empty() ? "" : ", ") + name;
    };
    resolve(malloc, "glake_malloc");
    resolve(free, "glake_free");
    resolve(record_stream, "glake_record_stream");
    resolve(empty_cache, "glake_empty_cache");
    resolve(block_info, "glake_block_info");
    resolve(configure, "glake_configure");
    resolve(last_error, "glake_last_error");
    return missing.empty() ? "" : std::string(path) + " lacks " + missing;
  }

  // The calling thread's last error: its code; the sentence goes to `text`.
  int error(std::string* text) const {
    char buffer[4096] = "";
    int code = last_error(buffer, sizeof buffer);
    *text = buffer;
    return code;
  }
};

// What torch calls out of memory: also a size no device has, which glake calls invalid.
inline bool is_out_of_memory(int code, size_t bytes) {
  constexpr size_t kAnyDevice = size_t{1} << 44;
  return code == GLAKE_OUT_OF_MEMORY || (code == GLAKE_INVALID_ARGUMENT && bytes > kAnyDevice);
}

}  // namespace glake::adapter
