#include "ipc/ipc_thread.h"

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <system_error>

#include "base/types.h"

namespace glake {
namespace {

std::atomic<bool> exiting{false};

Error refused(const std::string& why) {
  return Error(GLAKE_INTERNAL, "the system refuses a thread for other processes: " + why);
}

}  // namespace

std::thread ipc_thread(const char* name, const std::function<void()>& run) {
  static const bool watched = std::atexit([] { exiting.store(true); }) == 0;
  if (!watched) throw refused("no function can be called at exit");
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread;
  std::string why;
  try {
    thread = std::thread(run);
  } catch (const std::system_error& e) {
    why = e.what();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!thread.joinable()) throw refused(why);
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

bool ipc_exiting() { return exiting.load(); }

}  // namespace glake
