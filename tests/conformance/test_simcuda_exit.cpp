// Exit handlers call the driver after the main thread's own destructors have run, as PyTorch's do.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "sim_harness.h"

namespace {

CUcontext expected = nullptr;

void at_exit() {
  CUcontext current = nullptr;
  if (cuCtxGetCurrent(&current) != CUDA_SUCCESS || current != expected) _exit(2);
  if (cuCtxPopCurrent(&current) != CUDA_SUCCESS || current != expected) _exit(3);
  if (cuCtxPopCurrent(&current) != CUDA_ERROR_INVALID_CONTEXT) _exit(4);
  char text[256] = "";
  simcuda_last_message(text, sizeof text);
  if (text[0] == 0) _exit(5);
}

int child() {
  atexit(at_exit);
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&expected, 0));
  OK(cuCtxSetCurrent(expected));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuInit(1));  // a message of this thread's
  exit(0);
}

void the_context_stays_current() {
  const pid_t pid = fork();
  if (pid == 0) _exit(child());
  int status = 0;
  waitpid(pid, &status, 0);
  TRUE(WIFEXITED(status));
  expect(WEXITSTATUS(status), 0, "the exit handler", __LINE__);
}

}  // namespace

int main(int argc, char** argv) {
  return run_checks(argc, argv, {{"the context stays current", the_context_stays_current}});
}
