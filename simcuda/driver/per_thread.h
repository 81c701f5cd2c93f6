// What belongs to a thread, and may be asked for until the process ends: exit handlers call the
// driver after the main thread's own destructors have run, PyTorch's do.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

namespace simcuda {

// The calling thread's T; `Tag` tells several of one type apart. The main thread's is never
// destroyed; another's, asked for after its end, is made anew.
template <class T, class Tag>
T& per_thread() {
  static thread_local T* mine = nullptr;  // without a destructor, so readable to the last
  struct Owner {
    ~Owner() {
      if (syscall(SYS_gettid) == getpid()) return;
      delete mine;
      mine = nullptr;
    }
  };
  if (mine == nullptr) {
    mine = new T;
    static thread_local const Owner owner;
    static_cast<void>(owner);
  }
  return *mine;
}

}  // namespace simcuda
