// Shared by the tests of memory between processes. The other processes run the same program, and
// read line by line what to do.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

extern char** environ;

namespace test_ipc {

using test::kGranule;
using test::kMiB;
using test::stat;

inline std::string machine_name() { return "ipc-" + std::to_string(getpid()); }

inline void start(const std::string& machine, const test::Options& glake = {}) {
  test::fresh_simulator({{"machine", machine}, {"memory", "256MiB"}, {"devices", "2"}});
  test::configure({{"driver", "sim"}});
  test::configure(glake);
}

inline CUdeviceptr at(void* ptr) { return reinterpret_cast<CUdeviceptr>(ptr); }

// Fills a block with a pattern that shows which block and place each 512 bytes are from.
inline void fill(void* ptr, size_t bytes, unsigned seed) {
  test::CurrentContext context;
  std::vector<unsigned> words(bytes / 4);
  for (size_t i = 0; i < words.size(); ++i) words[i] = seed + static_cast<unsigned>(i / 128);
  CU(cuMemcpyHtoD(at(ptr), words.data(), bytes));
}
inline bool holds(void* ptr, size_t bytes, unsigned seed) {
  test::CurrentContext context;
  std::vector<unsigned> words(bytes / 4);
  CU(cuMemcpyDtoH(words.data(), at(ptr), bytes));
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] != seed + static_cast<unsigned>(i / 128)) return false;
  }
  return true;
}

inline std::string share(void* ptr) {
  char text[600];
  size_t length = glake_ipc_share(ptr, text, sizeof text);
  CHECK(length != 0 && length < sizeof text && std::strlen(text) == length);
  return text;
}

inline std::string share_shard(void* ptr) {
  char text[600];
  size_t length = glake_shard_share(ptr, text, sizeof text);
  CHECK(length != 0 && length < sizeof text && std::strlen(text) == length);
  return text;
}

inline int descriptors() {
  int count = 0;
  DIR* listing = opendir("/proc/self/fd");
  while (readdir(listing) != nullptr) ++count;
  closedir(listing);
  return count;
}

// Another process, ready once constructed.
struct Other {
  explicit Other(const std::string& machine) {
    int down[2], up[2];
    CHECK(pipe2(down, O_CLOEXEC) == 0 && pipe2(up, O_CLOEXEC) == 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, down[0], 0);
    posix_spawn_file_actions_adddup2(&actions, up[1], 1);
    char self[4096] = "", option[] = "--other";  // a full path, as the simulator lies beside it
    CHECK(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    std::string name = machine;
    char* arguments[] = {self, option, name.data(), nullptr};
    const int spawned = posix_spawn(&pid, self, &actions, nullptr, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(down[0]);
    close(up[1]);
    to = fdopen(down[1], "w");
    from = fdopen(up[0], "r");
    CHECK(spawned == 0 && ask("ready") == "ready");
  }
  ~Other() {
    if (to != nullptr) fclose(to);  // end of input: it leaves
    fclose(from);
    int status = 0;
    if (pid != 0) CHECK(waitpid(pid, &status, 0) == pid && status == 0);
  }
  Other(const Other&) = delete;
  Other& operator=(const Other&) = delete;
  std::string ask(const std::string& command) {
    tell(command);
    return answer();
  }
  void tell(const std::string& command) {
    std::fprintf(to, "%s\n", command.c_str());
    std::fflush(to);
  }
  std::string answer() {
    char line[1024] = "";
    if (std::fgets(line, sizeof line, from) == nullptr) return "gone";
    line[std::strcspn(line, "\n")] = 0;
    return line;
  }
  // Stops it. All of its threads stand still afterwards: a busy machine may take its time.
  void stop() {
    int status = 0;
    CHECK(kill(pid, SIGSTOP) == 0 && waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status));
  }
  void go_on() { CHECK(kill(pid, SIGCONT) == 0); }
  void kill_it() {
    CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, nullptr, 0) == pid);
    pid = 0;
  }
  pid_t pid = 0;
  FILE* to = nullptr;
  FILE* from = nullptr;
};

// Set by "end": the process exits, but not before its input has ended.
inline bool& lingers() {
  static bool yes = false;
  return yes;
}
inline void linger() {
  if (!lingers()) return;
  std::puts("ending");
  std::fflush(stdout);
  while (std::getchar() != EOF) continue;
}

// Does what the other process is told. Blocks that it opened are named by their order.
struct Servant {
  std::vector<void*> opened;
  std::vector<void*> mine;
  std::string error;  // of the last open

  std::string open(const std::string& text, int device) {
    size_t bytes = 0;
    const bool shard = text.rfind("glake-shard", 0) == 0;
    void* ptr = (shard ? glake_shard_open : glake_ipc_open)(text.c_str(), device, &bytes);
    if (ptr == nullptr) {
      error = test::last_error();
      return "error " + std::to_string(glake_last_error(nullptr, 0));
    }
    for (size_t i = 0; i < opened.size(); ++i) {
      if (opened[i] == ptr) return "again " + std::to_string(i);
    }
    opened.push_back(ptr);
    return "opened " + std::to_string(opened.size() - 1) + " " + std::to_string(bytes);
  }
  std::string obey(const std::string& line) {
    char word[32] = "", text[700] = "";
    unsigned long long a = 0, b = 0;
    if (std::sscanf(line.c_str(), "open %llu %699s", &a, text) == 2) {
      return open(text, static_cast<int>(a));
    }
    if (std::sscanf(line.c_str(), "closed %llu", &a) == 1) {
      return std::to_string(glake_ipc_close(opened[a]));
    }
    if (std::sscanf(line.c_str(), "%31s %llu %llu", word, &a, &b) < 1) return "?";
    const std::string command = word;
    unsigned seed = static_cast<unsigned>(b >> 32);
    size_t bytes = b & 0xffffffffu;
    if (command == "holds") return holds(opened[a], bytes, seed) ? "yes" : "no";
    if (command == "fill") return fill(opened[a], bytes, seed), "filled";
    if (command == "why") return error;
    if (command == "write") {  // the driver's answer to a write
      test::CurrentContext context;
      const unsigned word = 5;
      return std::to_string(cuMemcpyHtoD(at(opened[a]), &word, sizeof word));
    }
    if (command == "put_back") return std::to_string(glake_shard_close(opened[a]));
    if (command == "pass_on") return share_shard(opened[a]);
    if (command == "seal") {  // a filled shard of `a` bytes of its own, sealed and shared
      opened.push_back(glake_shard_create(a, 0));
      fill(opened.back(), a, 77);
      OK(glake_shard_seal(opened.back()));
      return share_shard(opened.back());
    }
    if (command == "descriptors") return std::to_string(descriptors());
    if (command == "pinned") return std::to_string(stat("glake.pinned_bytes"));
    if (command == "offer") {  // a filled block of `a` bytes of its own, shared
      mine.push_back(glake_malloc(a, 0, nullptr));
      fill(mine.back(), a, 77);
      return share(mine.back());
    }
    if (command == "leave") {
      for (void* ptr : mine) OK(glake_free(ptr));
      mine.clear();
      return std::to_string(glake_shutdown());
    }
    if (command == "end") {
      lingers() = true;
      std::exit(0);
    }
    return line;
  }
};

inline int serve(const char* machine) {
  std::atexit(linger);  // registered before glake's exit handlers, so that it runs after them
  start(machine);
  Servant servant;
  char line[1024];
  while (std::fgets(line, sizeof line, stdin) != nullptr) {
    line[std::strcspn(line, "\n")] = 0;
    test::running() = std::string("the other process: ") + line;
    std::printf("%s\n", servant.obey(line).c_str());
    std::fflush(stdout);
  }
  return 0;
}

inline std::string range(size_t which, size_t bytes, unsigned seed) {
  return std::to_string(which) + " " +
         std::to_string(static_cast<unsigned long long>(seed) << 32 | bytes);
}
inline std::string opening(const std::string& text, int device = 0) {
  return "open " + std::to_string(device) + " " + text;
}
// The exporter learns of an importer's end from its socket, a moment later.
inline void wait_until(const char* key, int64_t value) {
  for (int i = 0; i < 30000 && stat(key) != value; ++i) usleep(1000);
  CHECK_TEXT(stat(key) == value, key);
}

inline void finish() {
  OK(glake_check(0));
  OK(glake_shutdown());
  for (int device = 0; device < 2; ++device) test::check_nothing_left(device);
}

}  // namespace test_ipc
