// Several processes on one simulated machine: shared capacity, descriptors, death, leaving.
// The other processes run the same program, and talk line by line over a pair of pipes.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "sim_harness.h"

extern char** environ;

namespace {

constexpr const char* kMemory = "64MiB";
std::string machine_name() { return "test-" + std::to_string(getpid()); }
std::string directory_of(const std::string& machine) {
  return "/dev/shm/glake-sim-" + std::to_string(geteuid()) + "-" + machine;
}

long free_bytes() {
  size_t free = 0, total = 0;
  OK(cuMemGetInfo(&free, &total));
  return static_cast<long>(free);
}

// Another process on `machine`, ready once constructed.
struct Other {
  explicit Other(const std::string& machine) {
    int down[2], up[2];
    TRUE(pipe2(down, O_CLOEXEC) == 0 && pipe2(up, O_CLOEXEC) == 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, down[0], 0);
    posix_spawn_file_actions_adddup2(&actions, up[1], 1);
    char self[] = "/proc/self/exe", option[] = "--other";
    std::string name = machine;
    char* arguments[] = {self, option, name.data(), nullptr};
    const int spawned = posix_spawn(&pid, self, &actions, nullptr, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(down[0]);
    close(up[1]);
    to = fdopen(down[1], "w");
    from = fdopen(up[0], "r");
    TRUE(spawned == 0 && ask("ready") == "ready");
  }
  ~Other() {
    fclose(to);  // end of input: it leaves
    fclose(from);
    waitpid(pid, nullptr, 0);
  }
  Other(const Other&) = delete;
  Other& operator=(const Other&) = delete;
  std::string ask(const char* command) {
    char line[256] = "";
    std::fprintf(to, "%s\n", command);
    std::fflush(to);
    if (std::fgets(line, sizeof line, from) == nullptr) return "gone";
    line[std::strcspn(line, "\n")] = 0;
    return line;
  }
  pid_t pid = 0;
  FILE* to = nullptr;
  FILE* from = nullptr;
};

int serve(const char* machine) {
  Sim sim({{"machine", machine}, {"memory", kMemory}, {"devices", "2"}});
  char line[256];
  while (std::fgets(line, sizeof line, stdin) != nullptr) {
    line[std::strcspn(line, "\n")] = 0;
    std::string answer = line;
    if (answer == "take") {
      Mapped memory(8 * kGranule);
      answer = std::to_string(*reinterpret_cast<unsigned*>(memory.at) = 1);
    }
    if (answer == "free") answer = std::to_string(free_bytes());
    std::printf("%s\n", answer.c_str());
    std::fflush(stdout);
  }
  return 0;
}

void check_capacity_is_shared() {
  const std::string machine = machine_name();
  const Sim sim({{"machine", machine.c_str()}, {"memory", kMemory}, {"devices", "2"}});
  const long all = free_bytes();
  Other other(machine);
  TRUE(other.ask("take") == "1");
  TRUE(free_bytes() == all - 8 * static_cast<long>(kGranule));
  Mapped mine(kGranule);
  TRUE(other.ask("free") == std::to_string(all - 9 * static_cast<long>(kGranule)));
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp prop = device_memory(0);
  GIVES(CUDA_ERROR_OUT_OF_MEMORY,
        cuMemCreate(&handle, static_cast<size_t>(all) - 4 * kGranule, &prop, 0));
  struct stat info{};
  TRUE(stat(directory_of(machine).c_str(), &info) == 0 && (info.st_mode & 0777) == 0700);
  TRUE(stat((directory_of(machine) + "/memory").c_str(), &info) == 0 &&
       (info.st_mode & 0777) == 0600);
}

void check_the_dead_give_back() {
  const std::string machine = machine_name();
  const Sim sim({{"machine", machine.c_str()}, {"memory", kMemory}, {"devices", "2"}});
  const long all = free_bytes();
  Other other(machine);
  TRUE(other.ask("take") == "1");
  TRUE(free_bytes() < all);
  TRUE(kill(other.pid, SIGKILL) == 0 && waitpid(other.pid, nullptr, 0) == other.pid);
  TRUE(free_bytes() == all);
  struct stat info{};
  TRUE(stat((directory_of(machine) + "/memory").c_str(), &info) == 0);
  TRUE(info.st_blocks * 512 < static_cast<long>(kGranule));  // really given back
}

void check_the_last_cleans_up() {
  const std::string machine = machine_name();
  {
    const Sim sim({{"machine", machine.c_str()}, {"memory", kMemory}, {"devices", "2"}});
    TRUE(access(directory_of(machine).c_str(), F_OK) == 0);
    Other other(machine);
  }
  TRUE(access(directory_of(machine).c_str(), F_OK) != 0);
  // The last process leaves its files when it is killed. The next process removes them.
  {
    Other other(machine);
    kill(other.pid, SIGKILL);
  }
  TRUE(access(directory_of(machine).c_str(), F_OK) == 0);
  const std::string next = machine + "-next";
  {
    const Sim sim({{"machine", next.c_str()}, {"memory", kMemory}});
  }
  TRUE(access(directory_of(machine).c_str(), F_OK) != 0);
  TRUE(access(directory_of(next).c_str(), F_OK) != 0);
}

void check_another_shape_is_refused() {
  const std::string machine = machine_name();
  Other other(machine);
  simcuda_reset();
  OK(simcuda_configure("machine", machine.c_str()));
  OK(simcuda_configure("memory", "128MiB"));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuInit(0));
  simcuda_reset();
  OK(simcuda_configure("machine", machine.c_str()));
  OK(simcuda_configure("memory", kMemory));
  OK(simcuda_configure("devices", "2"));
  OK(simcuda_configure("pcie_peers", "none"));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuInit(0));
  char message[512] = "";
  simcuda_last_message(message, sizeof message);
  TRUE(std::string(message).find("pcie_peers") != std::string::npos);
  OK(simcuda_configure("pcie_peers", "socket"));
  OK(cuInit(0));
  simcuda_reset();
  TRUE(other.ask("still there") == "still there");
}

// A descriptor keeps memory alive after its last handle, until it is closed.
void descriptor_keeps_memory() {
  const long all = free_bytes();
  CUmemGenericAllocationHandle handle = 0, again = 0;
  const CUmemAllocationProp prop = device_memory(0, true);
  int fd = -1;
  OK(cuMemCreate(&handle, kGranule, &prop, 0));
  OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  OK(cuMemRelease(handle));
  TRUE(free_bytes() == all - static_cast<long>(kGranule));
  OK(cuMemImportFromShareableHandle(&again, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(fd);
  TRUE(free_bytes() == all - static_cast<long>(kGranule));
  OK(cuMemRelease(again));
  TRUE(free_bytes() == all);
  OK(cuMemCreate(&handle, kGranule, &prop, 0));
  OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  OK(cuMemRelease(handle));
  close(fd);
  TRUE(free_bytes() == all);
  GIVES(CUDA_ERROR_INVALID_VALUE,
        cuMemImportFromShareableHandle(&again, reinterpret_cast<void*>(intptr_t{0}),
                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
}

void check_descriptors() {
  {
    const Sim sim({{"memory", kMemory}});
    descriptor_keeps_memory();
  }
  const std::string machine = machine_name();
  const Sim sim({{"machine", machine.c_str()}, {"memory", kMemory}});
  descriptor_keeps_memory();
}

void check_processes_come_and_go() {
  const std::string machine = machine_name();
  const Sim sim({{"machine", machine.c_str()}, {"memory", kMemory}, {"devices", "2"}});
  const long all = free_bytes();
  for (int round = 0; round < 5; ++round) {
    Other a(machine), b(machine);
    TRUE(a.ask("take") == "1" && b.ask("take") == "1");
    if (round % 2 == 0) kill(a.pid, SIGKILL);
  }
  TRUE(free_bytes() == all);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--other") return serve(argv[2]);
  signal(SIGPIPE, SIG_IGN);
  return run_checks(argc, argv,
                    {
                        {"capacity is shared", check_capacity_is_shared},
                        {"the dead give back", check_the_dead_give_back},
                        {"the last one cleans up", check_the_last_cleans_up},
                        {"another shape is refused", check_another_shape_is_refused},
                        {"descriptors keep memory", check_descriptors},
                        {"processes come and go", check_processes_come_and_go},
                    });
}
