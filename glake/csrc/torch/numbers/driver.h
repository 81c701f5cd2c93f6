// simcuda's part in numbers mode. Its functions are found among the process's libraries, and
// nothing is linked.
#pragma once

#include <c10/core/Stream.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include "simcuda/compute.h"

namespace glake::numbers {

struct Driver {
  decltype(&simcuda_numbers) numbers;
  decltype(&simcuda_compute) compute;
  decltype(&simcuda_cover) cover;
  decltype(&simcuda_uncover) uncover;
  decltype(&simcuda_capturing) capturing;
  decltype(&simcuda_phantom) phantom;
  decltype(&simcuda_known_read) known_read;
  decltype(&simcuda_known_write) known_write;
  decltype(&simcuda_known_ahead) known_ahead;
  decltype(&simcuda_last_message) last_message;
};

template <class Function>
void find(const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
  TORCH_CHECK(*function != nullptr, "numbers need glake's stand-ins for CUDA's libraries, and ",
              name, " is not in this process: start it by glake dry-run --numbers, or with ",
              "glake.dryrun.libraries.environment()");
}

inline const Driver& driver() {
  static const Driver found = [] {
    Driver made;
    find("simcuda_numbers", &made.numbers);
    find("simcuda_compute", &made.compute);
    find("simcuda_cover", &made.cover);
    find("simcuda_uncover", &made.uncover);
    find("simcuda_capturing", &made.capturing);
    find("simcuda_phantom", &made.phantom);
    find("simcuda_known_read", &made.known_read);
    find("simcuda_known_write", &made.known_write);
    find("simcuda_known_ahead", &made.known_ahead);
    find("simcuda_last_message", &made.last_message);
    return made;
  }();
  return found;
}

inline std::string last_message() {
  char text[512] = "";
  driver().last_message(text, sizeof text);
  return text;
}

inline CUstream_st* handle_of(const c10::Stream& stream) {
  return static_cast<CUstream_st*>(stream.native_handle());
}

// While one lives, everything that this thread launches and copies is part of one op, which is
// computed as a whole.
class Cover {
 public:
  Cover() {
    driver().cover();
    ++depth();
  }
  ~Cover() { end(); }
  Cover(const Cover&) = delete;
  Cover& operator=(const Cover&) = delete;
  // The number of functions that the op asked for and no stand-in has.
  int end() {
    if (!open_) return 0;
    open_ = false;
    --depth();
    return driver().uncover();
  }
  static int& depth() {
    static thread_local int depth = 0;
    return depth;
  }

 private:
  bool open_ = true;
};

}  // namespace glake::numbers
