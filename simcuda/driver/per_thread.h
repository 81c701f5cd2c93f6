// Objects of one thread that may be asked for until the process ends. Exit handlers, for example
// PyTorch's, call the driver after the main thread's own destructors have run.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

namespace simcuda {

// The calling thread's T. `Tag` tells several objects of one type apart. The main thread's object
// is never destroyed. Another thread's object is made again if it is asked for after its end.
template <class T, class Tag>
T& per_thread() {
  static thread_local T* mine = nullptr;  // without a destructor, so it can be read to the end
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
