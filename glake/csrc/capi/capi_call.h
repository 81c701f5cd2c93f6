// Shared by all functions of the C interface: exceptions become the thread's last error.
#pragma once

#include <algorithm>
#include <cstring>
#include <new>
#include <string>

#include "base/alone.h"
#include "base/types.h"
#include "driver/driver.h"
#include "process/process.h"

namespace glake::capi {

// Sets the calling thread's last error, and returns its code.
int fail(int code, const char* text) noexcept;

// Every call sets the code. So it is in the static TLS block, where access costs nothing.
extern __thread int last_code __attribute__((tls_model("initial-exec")));

// Runs `body`. What `body` throws becomes the thread's last error. The hot path calls this instead
// of api_call(), because Process::plain() has made the checks of api_call().
template <typename Body>
int caught(Body&& body) noexcept {
  try {
    body();
    last_code = GLAKE_OK;
    return GLAKE_OK;
  } catch (const Error& e) {
    return fail(e.code(), e.what());
  } catch (const std::bad_alloc&) {
    return fail(GLAKE_OUT_OF_MEMORY, "no host memory left for glake's books");
  } catch (const std::exception& e) {
    return fail(GLAKE_INTERNAL, e.what());
  }
}

// Sets GLAKE_REENTERED, without a call that a signal handler may not make.
int fail_reentered() noexcept;

// The same as caught(), but refused in a signal handler that interrupted glake. It must be the
// first thing in a function of the C interface, and nothing with a destructor may outlive it.
template <typename Body>
int api_call(Body&& body) noexcept {
  if (Alone::now()) return fail_reentered();
  Alone alone(Process::checked());
  return caught(body);
}

inline void require(bool ok, const char* text) {
  if (!ok) throw Error(GLAKE_INVALID_ARGUMENT, text);
}

// Converts a caller's struct, which may be shorter or longer than this library's. Members that a
// shorter struct lacks become 0. Members that only a longer struct has must be 0. `least` is the
// size of the struct's first version. Throws Error.
template <typename Struct>
Struct as_here(const Struct& given, const std::string& name, size_t least) {
  constexpr size_t kMost = 4096;
  if (given.size < least || given.size > kMost) {
    throw Error(GLAKE_INVALID_ARGUMENT, name + ".size is " + std::to_string(given.size) +
                                            ": it is sizeof(" + name + "), from " +
                                            std::to_string(least) + " to " + std::to_string(kMost));
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(&given);
  for (size_t i = sizeof given; i < given.size; ++i) {
    if (bytes[i] == 0) continue;
    throw Error(GLAKE_INVALID_ARGUMENT, name + " has a field at byte " + std::to_string(i) +
                                            " that this libglake, " + glake_version() +
                                            ", does not have");
  }
  Struct here{};
  std::memcpy(&here, bytes, std::min(given.size, sizeof here));
  here.size = sizeof here;
  return here;
}

// require_size() throws Error if no block can have this size.
[[noreturn]] void refuse_size(size_t bytes);
inline void require_size(size_t bytes) {
  if (bytes == 0 || bytes > kMaxRequest) refuse_size(bytes);
}

// Copies as much of the text as fits. Returns the text's whole length.
size_t copy_out(const std::string& text, char* out, size_t capacity);

}  // namespace glake::capi
