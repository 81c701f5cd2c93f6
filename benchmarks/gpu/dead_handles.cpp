// What a driver does with the handle of a stream or an event that was destroyed, or whose context
// was released. It is not documented, and no program may depend on it.
//
//   dead_handles [LIBRARY]     (default libsimcuda.so)
//
// Prints JSON: {"rows": [{call, case, outcome}]}. The outcome is the CUresult's name, "signal N" if
// the process died, or "no end" if it took longer than ten seconds. Each row has a process of its
// own.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>

#include "measure.h"

using namespace measure;

namespace {

struct Handles2 {
  CUstream stream = nullptr, other = nullptr;
  CUevent event = nullptr, spare = nullptr;
};

using Ask = std::function<CUresult(const Handles2&)>;

decltype(&::cuStreamIsCapturing) is_capturing = nullptr;
decltype(&::cuStreamQuery) stream_query = nullptr;
decltype(&::cuStreamGetId) stream_id = nullptr;

template <class F>
void find(const char* library, const char* name, F* to) {
  *to = reinterpret_cast<F>(dlsym(dlopen(library, RTLD_NOW | RTLD_LOCAL), name));
}

// The child's work: opens the driver, lets the handles die as `how` says, and asks.
void ask_dead(const char* library, const std::string& how, const Ask& ask, int to) {
  alarm(10);
  measure::open(library);
  find(library, "cuStreamIsCapturing", &is_capturing);
  find(library, "cuStreamQuery", &stream_query);
  find(library, "cuStreamGetId", &stream_id);
  Handles2 it;
  CUdeviceptr memory = 0;
  OK(cu.cuStreamCreate(&it.stream, CU_STREAM_NON_BLOCKING));
  OK(cu.cuStreamCreate(&it.other, CU_STREAM_NON_BLOCKING));
  OK(cu.cuEventCreate(&it.event, CU_EVENT_DISABLE_TIMING));
  OK(cu.cuEventCreate(&it.spare, CU_EVENT_DISABLE_TIMING));
  OK(cu.cuMemAlloc(&memory, 4096));
  OK(cu.cuMemsetD32Async(memory, 1, 16, it.stream));
  OK(cu.cuEventRecord(it.event, it.stream));
  OK(cu.cuCtxSynchronize());
  if (how == "context released") {
    OK(cu.cuDevicePrimaryCtxRelease(0));
  } else {
    OK(cu.cuEventDestroy(it.event));
    OK(cu.cuStreamDestroy(it.stream));
    if (how == "and others made since") {
      for (int i = 0; i < 8; ++i) {
        CUstream stream = nullptr;
        CUevent event = nullptr;
        OK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        OK(cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
      }
    }
  }
  const int code = ask(it);
  if (write(to, &code, sizeof code) != sizeof code) _exit(3);
  _exit(0);
}

std::string outcome(const char* library, const std::string& how, const Ask& ask) {
  int ends[2];
  if (pipe(ends) != 0) give_up("pipe failed");
  const pid_t child = fork();
  if (child == 0) ask_dead(library, how, ask, ends[1]);
  close(ends[1]);
  int code = -1, status = 0;
  const bool told = read(ends[0], &code, sizeof code) == sizeof code;
  close(ends[0]);
  waitpid(child, &status, 0);
  if (told) {
    const char* name = nullptr;
    if (cu.cuGetErrorName(static_cast<CUresult>(code), &name) == CUDA_SUCCESS && name) return name;
    return std::to_string(code);
  }
  if (WIFSIGNALED(status)) {
    return WTERMSIG(status) == SIGALRM ? "no end" : "signal " + std::to_string(WTERMSIG(status));
  }
  return "exit status " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

int main(int argc, char** argv) {
  const char* library = argc > 1 ? argv[1] : "libsimcuda.so";
  const std::vector<std::pair<const char*, Ask>> asks = {
      {"cuStreamIsCapturing",
       [](const Handles2& it) {
         CUstreamCaptureStatus status{};
         return is_capturing(it.stream, &status);
       }},
      {"cuStreamQuery", [](const Handles2& it) { return stream_query(it.stream); }},
      {"cuStreamGetId",
       [](const Handles2& it) {
         unsigned long long id = 0;
         return stream_id == nullptr ? CUDA_ERROR_NOT_SUPPORTED : stream_id(it.stream, &id);
       }},
      {"cuStreamSynchronize", [](const Handles2& it) { return cu.cuStreamSynchronize(it.stream); }},
      {"cuEventRecord", [](const Handles2& it) { return cu.cuEventRecord(it.spare, it.stream); }},
      {"cuStreamWaitEvent, stream",
       [](const Handles2& it) { return cu.cuStreamWaitEvent(it.stream, it.spare, 0); }},
      {"cuStreamDestroy", [](const Handles2& it) { return cu.cuStreamDestroy(it.stream); }},
      {"cuEventQuery", [](const Handles2& it) { return cu.cuEventQuery(it.event); }},
      {"cuStreamWaitEvent, event",
       [](const Handles2& it) { return cu.cuStreamWaitEvent(it.other, it.event, 0); }},
      {"cuEventDestroy", [](const Handles2& it) { return cu.cuEventDestroy(it.event); }},
  };
  std::vector<std::array<std::string, 3>> rows;
  for (const char* how : {"destroyed", "and others made since", "context released"}) {
    for (const auto& [name, ask] : asks) rows.push_back({name, how, ""});
  }
  // The children start first, as a process that has opened the driver cannot be forked.
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) give_up(dlerror());
  cu.cuGetErrorName =
      reinterpret_cast<decltype(&::cuGetErrorName)>(dlsym(handle, "cuGetErrorName"));
  size_t at = 0;
  for (const char* how : {"destroyed", "and others made since", "context released"}) {
    for (const auto& [name, ask] : asks) rows[at++][2] = outcome(library, how, ask);
  }
  std::printf("{\"program\": \"dead_handles\", \"library\": \"%s\", \"rows\": [", library);
  for (size_t i = 0; i < rows.size(); ++i) {
    std::printf("%s\n {\"call\": \"%s\", \"case\": \"%s\", \"outcome\": \"%s\"}", i ? "," : "",
                rows[i][0].c_str(), rows[i][1].c_str(), rows[i][2].c_str());
  }
  std::printf("\n]}\n");
  return 0;
}
