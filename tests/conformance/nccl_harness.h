// Ranks for tests of the stand-in for NCCL, and values in device memory. Each rank is a forked
// process with a device of its own on one simulated machine.
#pragma once

#include <dirent.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <functional>

#include "sim_harness.h"
#include "simcuda/runtime/nccl/nccl.h"

#define NCCL(call) nccl_gives((call), ncclSuccess, #call, __LINE__)
#define NCCL_GIVES(code, call) nccl_gives((call), (code), #call, __LINE__)

inline void nccl_gives(int got, int wanted, const char* what, int line) {
  if (got == wanted) return;
  throw Failed{"line " + std::to_string(line) + ": " + what + " returned " + std::to_string(got) +
               ", not " + std::to_string(wanted) + " (" + ncclGetLastError(nullptr) + ")"};
}

inline bool says(const std::string& text) {
  return std::string(ncclGetLastError(nullptr)).find(text) != std::string::npos;
}

// Shared by the ranks: the id, which is made before they start, and marks of how far each is.
struct Shared {
  ncclUniqueId id;
  int mark[64];
};

struct World {
  int rank, size;
  Shared* shared;
  ncclComm* comm = nullptr;
  CUstream stream = nullptr;

  void join() { NCCL(ncclCommInitRank(&comm, size, shared->id, rank)); }
  void mark(int value) const { __atomic_store_n(&shared->mark[rank], value, __ATOMIC_RELEASE); }
  void await(int other, int value) const {
    while (__atomic_load_n(&shared->mark[other], __ATOMIC_ACQUIRE) < value) usleep(200);
  }
};

template <class T>
struct Device {  // values in device memory
  explicit Device(const std::vector<T>& values) : count(values.size()) {
    OK(cuMemAlloc(&address, count * sizeof(T)));
    OK(cuMemcpyHtoD(address, values.data(), count * sizeof(T)));
  }
  Device(size_t count, T value) : Device(std::vector<T>(count, value)) {}
  void* at(size_t index = 0) const { return reinterpret_cast<void*>(address + index * sizeof(T)); }
  std::vector<T> read(CUstream stream) const {
    std::vector<T> values(count);
    OK(cuMemcpyDtoHAsync(values.data(), address, count * sizeof(T), stream));
    OK(cuStreamSynchronize(stream));
    return values;
  }
  CUdeviceptr address = 0;
  size_t count;
};

using Body = std::function<void(World&)>;

inline void set_up(World* world, const std::vector<Settings::value_type>& settings) {
  simcuda_reset();
  OK(simcuda_configure("machine", ("nccl-" + std::to_string(getppid())).c_str()));
  OK(simcuda_configure("devices", "8"));
  OK(simcuda_configure("memory", "64MiB"));
  for (const auto& [key, value] : settings) OK(simcuda_configure(key, value));
  OK(cuInit(0));
  CUcontext context = nullptr;
  OK(cuDevicePrimaryCtxRetain(&context, world->rank));
  OK(cuCtxSetCurrent(context));
  OK(cuStreamCreate(&world->stream, CU_STREAM_NON_BLOCKING));
}

// Runs the ranks, and returns the exit status of each. A rank ends as a program does, with its exit
// handlers.
inline std::vector<int> run_ranks(int size, const Body& body,
                                  const std::vector<Settings::value_type>& settings = {}) {
  auto* shared = static_cast<Shared*>(
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  NCCL(ncclGetUniqueId(&shared->id));
  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    alarm(60);
    try {
      World world{rank, size, shared};
      set_up(&world, settings);
      body(world);
      TRUE(violations() == "[]");
      if (world.comm != nullptr) NCCL(ncclCommDestroy(world.comm));
    } catch (const Failed& failed) {
      std::fprintf(stderr, "rank %d of %d: %s\n", rank, size, failed.why.c_str());
      exit(1);
    }
    exit(0);
  }
  std::vector<int> ends;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    ends.push_back(status);
  }
  munmap(shared, sizeof(Shared));
  return ends;
}

inline void ranks(int size, const Body& body,
                  const std::vector<Settings::value_type>& settings = {}) {
  for (const int end : run_ranks(size, body, settings)) TRUE(end == 0);
}

// The rooms (shared folders) of this user's ranks, also of ranks that have ended.
inline std::vector<std::string> rooms() {
  const std::string prefix = "glake-nccl-" + std::to_string(geteuid()) + "-";
  const char* parent = std::getenv("GLAKE_SIM_MACHINE_DIR");
  std::vector<std::string> found;
  DIR* listing = opendir(parent == nullptr ? "/dev/shm" : parent);
  while (const dirent* entry = readdir(listing)) {
    if (std::string(entry->d_name).rfind(prefix, 0) == 0) found.emplace_back(entry->d_name);
  }
  closedir(listing);
  return found;
}
