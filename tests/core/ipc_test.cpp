// Device memory between processes: contents, counts, deaths, forgeries, refusals. The other
// processes are this program again, told what to do a line at a time.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <functional>
#include <thread>

#include "harness.h"

extern char** environ;

using test::kGranule;
using test::kMiB;
using test::stat;

namespace {

std::string machine_name() { return "ipc-" + std::to_string(getpid()); }

void start(const std::string& machine, const test::Options& glake = {}) {
  test::fresh_simulator({{"machine", machine}, {"memory", "256MiB"}, {"devices", "2"}});
  test::configure({{"driver", "sim"}});
  test::configure(glake);
}

CUdeviceptr at(void* ptr) { return reinterpret_cast<CUdeviceptr>(ptr); }

// A pattern that tells where each 512 bytes come from.
void fill(void* ptr, size_t bytes, unsigned seed) {
  test::CurrentContext context;
  std::vector<unsigned> words(bytes / 4);
  for (size_t i = 0; i < words.size(); ++i) words[i] = seed + static_cast<unsigned>(i / 128);
  CU(cuMemcpyHtoD(at(ptr), words.data(), bytes));
}
bool holds(void* ptr, size_t bytes, unsigned seed) {
  test::CurrentContext context;
  std::vector<unsigned> words(bytes / 4);
  CU(cuMemcpyDtoH(words.data(), at(ptr), bytes));
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] != seed + static_cast<unsigned>(i / 128)) return false;
  }
  return true;
}

std::string share(void* ptr) {
  char text[600];
  size_t length = glake_ipc_share(ptr, text, sizeof text);
  CHECK(length != 0 && length < sizeof text && std::strlen(text) == length);
  return text;
}

int descriptors() {
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
    char self[4096] = "", option[] = "--other";  // by its path: the simulator lies beside it
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
  void kill_it() {
    CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, nullptr, 0) == pid);
    pid = 0;
  }
  pid_t pid = 0;
  FILE* to = nullptr;
  FILE* from = nullptr;
};

// What the other process does. Its opened blocks are named by their order.
struct Servant {
  std::vector<void*> opened;
  std::vector<void*> mine;
  std::string error;  // of the last open

  std::string open(const std::string& text, int device) {
    size_t bytes = 0;
    void* ptr = glake_ipc_open(text.c_str(), device, &bytes);
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
    if (command == "descriptors") return std::to_string(descriptors());
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
    return line;
  }
};

int serve(const char* machine) {
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

std::string range(size_t which, size_t bytes, unsigned seed) {
  return std::to_string(which) + " " +
         std::to_string(static_cast<unsigned long long>(seed) << 32 | bytes);
}
std::string opening(const std::string& text, int device = 0) {
  return "open " + std::to_string(device) + " " + text;
}
// The exporter learns of an importer's end from its socket, a moment later.
void wait_until(const char* key, int64_t value) {
  for (int i = 0; i < 30000 && stat(key) != value; ++i) usleep(1000);
  CHECK_TEXT(stat(key) == value, key);
}

void finish() {
  OK(glake_check(0));
  OK(glake_shutdown());
  for (int device = 0; device < 2; ++device) test::check_nothing_left(device);
}

// Blocks at home, stitched, at a granule's edge, small, contiguous: all are seen alike.
void contents_cross() {
  test::running() = "contents cross";
  const std::string machine = machine_name();
  start(machine, {{"limit", "64MiB"}});
  Other other(machine);
  void* parts[8];
  for (void*& p : parts) p = glake_malloc(6 * kMiB, 0, nullptr);
  void* odd = glake_malloc(3 * kMiB, 0, nullptr);
  void* odder = glake_malloc(2 * kMiB + 512, 0, nullptr);
  for (int i = 0; i < 8; i += 2) OK(glake_free(parts[i]));
  void* view = glake_malloc(23 * kMiB, 0, nullptr);
  CHECK(stat("glake.stitches") == 1);
  OK(glake_free(parts[1]));
  std::vector<std::pair<void*, size_t>> blocks{
      {parts[3], 6 * kMiB},
      {odder, 2 * kMiB + 512},
      {view, 23 * kMiB},
      {glake_malloc(1536, 0, nullptr), 1536},
      {glake_malloc_contiguous(5 * kMiB, 0, nullptr, GLAKE_CONTIGUOUS_VMM), 5 * kMiB},
      {glake_malloc_contiguous(5 * kMiB, 0, nullptr, GLAKE_CONTIGUOUS_LEGACY), 5 * kMiB}};
  const int before = descriptors();
  for (size_t i = 0; i < blocks.size(); ++i) {
    auto [ptr, bytes] = blocks[i];
    test::running() = "contents cross, block " + std::to_string(i);
    CHECK(ptr != nullptr);
    const unsigned seed = 1000 * static_cast<unsigned>(i);
    fill(ptr, bytes, seed);
    const std::string text = share(ptr);
    CHECK(share(ptr) == text);
    CHECK_TEXT(
        other.ask(opening(text)) == "opened " + std::to_string(i) + " " + std::to_string(bytes),
        other.ask("why"));
    CHECK(other.ask("holds " + range(i, bytes, seed)) == "yes");
    CHECK(other.ask("fill " + range(i, bytes, seed + 5)) == "filled");
    CHECK(holds(ptr, bytes, seed + 5));
  }
  // Neighbours in the granules were not touched, and nothing stays open but a socket per block.
  CHECK(descriptors() <= before + 2 + static_cast<int>(blocks.size()));
  CHECK(stat("glake.shared_blocks") == static_cast<int64_t>(blocks.size()));
  OK(glake_check(0));
  // Freed while open there: it stays, until this process has another use for it.
  for (auto [ptr, bytes] : blocks) OK(glake_free(ptr));
  CHECK(stat("glake.shared_blocks") == 0 && stat("glake.pinned_bytes") != 0);
  OK(glake_empty_cache(0));
  for (size_t i = 0; i < blocks.size(); ++i) {
    const unsigned seed = 1000 * static_cast<unsigned>(i) + 5;
    CHECK(other.ask("holds " + range(i, blocks[i].second, seed)) == "yes");
    CHECK(other.ask("closed " + std::to_string(i)) == "0");
  }
  wait_until("glake.pinned_bytes", 0);
  CHECK(other.ask("leave") == "0");
  for (void* ptr : {parts[5], parts[7], odd}) OK(glake_free(ptr));
  OK(glake_empty_cache(0));
  CHECK(stat("glake.physical_bytes") == 0);
  finish();
}

// Of "opened 3 5000" or "again 3": 3.
std::string number_of(const std::string& said) {
  CHECK_TEXT(said.rfind("opened", 0) == 0 || said.rfind("again", 0) == 0, said);
  size_t from = said.find(' ') + 1;
  return said.substr(from, said.find(' ', from) - from);
}

void opened_twice_is_counted() {
  test::running() = "opened twice";
  const std::string machine = machine_name();
  start(machine);
  Other other(machine);
  void* ptr = glake_malloc(5 * kMiB, 0, nullptr);
  const std::string text = share(ptr);
  CHECK(other.ask(opening(text)) == "opened 0 " + std::to_string(5 * kMiB));
  CHECK(other.ask(opening(text)) == "again 0");
  CHECK(other.ask("closed 0") == "0");
  CHECK(other.ask("leave") == std::to_string(GLAKE_INVALID_ARGUMENT));  // one is open
  CHECK(stat("glake.pinned_bytes") == 6 * static_cast<int64_t>(kMiB));
  CHECK(other.ask("closed 0") == "0");
  CHECK(other.ask("closed 0") == std::to_string(GLAKE_INVALID_POINTER));
  wait_until("glake.pinned_bytes", 0);
  // Opened again after its close.
  const std::string n = number_of(other.ask(opening(text)));
  CHECK(other.ask("closed " + n) == "0" && other.ask("leave") == "0");
  OK(glake_free(ptr));
  finish();
}

// 100 opens of 100 blocks at once; 40 MiB in many batches; few descriptors.
void many_opens() {
  test::running() = "many opens";
  const std::string machine = machine_name();
  start(machine);
  Other other(machine);
  const int there = std::stoi(other.ask("descriptors"));
  std::vector<void*> blocks;
  for (int i = 0; i < 100; ++i) {
    blocks.push_back(glake_malloc(i == 0 ? 150 * kMiB : 1000, 0, nullptr));
    CHECK(blocks.back() != nullptr);
    fill(blocks.back(), 512, static_cast<unsigned>(i));
    CHECK(other.ask(opening(share(blocks.back()))).rfind("opened", 0) == 0);
  }
  const int then = std::stoi(other.ask("descriptors"));
  CHECK_TEXT(then <= there + 100 + 10, std::to_string(then));
  for (int i = 0; i < 100; ++i) {
    CHECK(other.ask("holds " + range(static_cast<size_t>(i), 512, static_cast<unsigned>(i))) ==
          "yes");
  }
  CHECK(stat("glake.pinned_bytes") == 152 * static_cast<int64_t>(kMiB));
  for (int i = 0; i < 100; ++i) CHECK(other.ask("closed " + std::to_string(i)) == "0");
  for (void* ptr : blocks) OK(glake_free(ptr));
  wait_until("glake.pinned_bytes", 0);
  CHECK(other.ask("leave") == "0");
  finish();
}

void importer_killed() {
  const std::string machine = machine_name();
  for (int midway = 0; midway < 2; ++midway) {
    test::running() = "importer killed " + std::to_string(midway);
    start(machine);
    void* ptr = glake_malloc(100 * kMiB, 0, nullptr);
    const std::string text = share(ptr);
    {
      Other other(machine);
      if (midway == 0) {
        CHECK(other.ask(opening(text)).rfind("opened", 0) == 0);
        CHECK(stat("glake.pinned_bytes") == 100 * static_cast<int64_t>(kMiB));
      } else {
        other.tell(opening(text));  // killed somewhere on its way
      }
      other.kill_it();
    }
    if (midway == 0) wait_until("glake.pinned_bytes", 0);
    OK(glake_free(ptr));
    wait_until("glake.pinned_bytes", 0);
    OK(glake_empty_cache(0));
    CHECK(stat("glake.physical_bytes") == 0);
    // The server goes on serving.
    Other next(machine);
    void* again = glake_malloc(kMiB, 0, nullptr);
    CHECK(next.ask(opening(share(again))).rfind("opened", 0) == 0);
    OK(glake_free(again));
    CHECK(next.ask("closed 0") == "0" && next.ask("leave") == "0");
    finish();
  }
}

void exporter_killed() {
  test::running() = "exporter killed";
  const std::string machine = machine_name();
  start(machine);
  size_t bytes = 0;
  std::string first, second;
  void* ptr = nullptr;
  {
    Other other(machine);
    first = other.ask("offer " + std::to_string(5 * kMiB));
    second = other.ask("offer " + std::to_string(5 * kMiB));
    ptr = glake_ipc_open(first.c_str(), 0, &bytes);
    CHECK(ptr != nullptr && bytes == 5 * kMiB && holds(ptr, bytes, 77));
    other.kill_it();
  }
  CHECK(holds(ptr, bytes, 77));  // ours as long as it is open
  CHECK(glake_ipc_open(second.c_str(), 0, nullptr) == nullptr);
  CHECK(glake_last_error(nullptr, 0) == GLAKE_INVALID_POINTER);
  CHECK(test::last_error().find("has ended") != std::string::npos);
  CHECK(glake_ipc_open(first.c_str(), 0, &bytes) == ptr);
  OK(glake_ipc_close(ptr));
  OK(glake_ipc_close(ptr));
  GIVES(GLAKE_INVALID_POINTER, glake_ipc_close(ptr));
  CHECK(glake_ipc_open(first.c_str(), 0, nullptr) == nullptr);
  CHECK(glake_last_error(nullptr, 0) == GLAKE_INVALID_POINTER);
  finish();
}

void forgeries() {
  test::running() = "forgeries";
  const std::string machine = machine_name();
  start(machine);
  Other other(machine);
  const std::string good = other.ask("offer " + std::to_string(3 * kMiB));
  auto refused = [](const std::string& text, int status, const char* what) {
    test::running() = std::string("forged: ") + what;
    CHECK(glake_ipc_open(text.c_str(), 0, nullptr) == nullptr);
    CHECK_TEXT(glake_last_error(nullptr, 0) == status, test::last_error());
  };
  // Every text cut short, and every character changed to another: never accepted.
  for (size_t cut = 0; cut < good.size(); ++cut) {
    refused(good.substr(0, cut), GLAKE_INVALID_ARGUMENT, "cut short");
  }
  refused(good + "0", GLAKE_INVALID_ARGUMENT, "longer");
  refused(good + ":", GLAKE_INVALID_ARGUMENT, "another field");
  refused(good + "\n", GLAKE_INVALID_ARGUMENT, "a line's end");
  refused(std::string(5000, 'a'), GLAKE_INVALID_ARGUMENT, "long");
  for (size_t i = 0; i < good.size(); ++i) {
    std::string changed = good;
    changed[i] = changed[i] == '1' ? '2' : '1';
    test::running() = "forged: character " + std::to_string(i);
    CHECK(glake_ipc_open(changed.c_str(), 0, nullptr) == nullptr);
    int status = glake_last_error(nullptr, 0);
    CHECK(status == GLAKE_INVALID_ARGUMENT || status == GLAKE_INVALID_POINTER ||
          status == GLAKE_INVALID_DEVICE);
    CHECK(test::last_error().size() > 30);
  }
  // Fields: prefix, pid, socket, id, bytes, token, uuid.
  const size_t token = std::strlen("glake-ipc-1") + 4 * 17 + 1;
  std::string forged = good;
  forged[token] = forged[token] == 'a' ? 'b' : 'a';
  refused(forged, GLAKE_INVALID_ARGUMENT, "token");
  CHECK(test::last_error().find("token") != std::string::npos);
  CHECK(glake_ipc_open(good.c_str(), 1, nullptr) == nullptr);  // another GPU
  CHECK(glake_last_error(nullptr, 0) == GLAKE_INVALID_DEVICE);
  GIVES(GLAKE_INVALID_POINTER, glake_ipc_close(nullptr));
  CHECK(glake_ipc_open(nullptr, 0, nullptr) == nullptr);
  CHECK(glake_last_error(nullptr, 0) == GLAKE_INVALID_ARGUMENT);
  void* ptr = glake_ipc_open(good.c_str(), 0, nullptr);  // the server outlived it all
  CHECK(ptr != nullptr && holds(ptr, 3 * kMiB, 77));
  OK(glake_ipc_close(ptr));
  CHECK(other.ask("leave") == "0");
  refused(good, GLAKE_INVALID_POINTER, "shut down");
  finish();
}

void stale_blocks() {
  test::running() = "stale blocks";
  const std::string machine = machine_name();
  start(machine);
  Other other(machine);
  void* ptr = glake_malloc(5000, 0, nullptr);
  const std::string text = share(ptr);
  CHECK(glake_ipc_open(text.c_str(), 0, nullptr) == nullptr);  // its own
  CHECK(glake_last_error(nullptr, 0) == GLAKE_INVALID_ARGUMENT);
  OK(glake_free(ptr));
  CHECK(other.ask(opening(text)) == "error " + std::to_string(GLAKE_INVALID_POINTER));
  void* again = glake_malloc(5000, 0, nullptr);
  CHECK(again == ptr);  // the same place, another block
  CHECK(other.ask(opening(text)) == "error " + std::to_string(GLAKE_INVALID_POINTER));
  const std::string fresh = share(again);
  CHECK(fresh != text && other.ask(opening(fresh)).rfind("opened", 0) == 0);
  char tiny[8];
  CHECK(glake_ipc_share(again, tiny, sizeof tiny) == fresh.size());  // as snprintf
  CHECK(glake_ipc_share(tiny, tiny, sizeof tiny) == 0);
  CHECK(glake_last_error(nullptr, 0) == GLAKE_INVALID_POINTER);
  CHECK(other.ask("closed 0") == "0" && other.ask("leave") == "0");
  OK(glake_free(again));
  finish();
}

// Strangers at the socket: garbage, silence, a flood. The server serves on.
void strangers() {
  test::running() = "strangers";
  const std::string machine = machine_name();
  start(machine);
  Other other(machine);
  void* ptr = glake_malloc(3 * kMiB, 0, nullptr);
  const std::string text = share(ptr);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  uint64_t name = std::strtoull(text.substr(text.find(':', 12) + 1, 16).c_str(), nullptr, 16);
  const std::string path = "glake-ipc-" + std::to_string(geteuid()) + "-" +
                           std::to_string(getpid()) + "-" + std::to_string(name);
  std::memcpy(address.sun_path + 1, path.data(), path.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + path.size());
  std::vector<int> sockets;
  test::Dice dice(3);
  for (int i = 0; i < 50; ++i) {
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(connect(fd, reinterpret_cast<sockaddr*>(&address), length) == 0);
    std::string garbage(dice(1, 2000), static_cast<char>(dice(0, 255)));
    if (i % 3 != 0) CHECK(send(fd, garbage.data(), garbage.size(), MSG_NOSIGNAL) > 0 || true);
    sockets.push_back(fd);
  }
  CHECK(other.ask(opening(text)).rfind("opened", 0) == 0);
  for (int fd : sockets) close(fd);
  CHECK(other.ask("closed 0") == "0" && other.ask("leave") == "0");
  OK(glake_free(ptr));
  finish();
}

// A forked child holds no end of a connection open, and gets an error, not a hang.
void forked_children() {
  test::running() = "forked children";
  const std::string machine = machine_name();
  start(machine);
  Other other(machine);
  void* ptr = glake_malloc(3 * kMiB, 0, nullptr);
  const std::string text = share(ptr);
  const std::string theirs = other.ask("offer 5000");
  void* opened = glake_ipc_open(theirs.c_str(), 0, nullptr);
  CHECK(opened != nullptr && other.ask(opening(text)).rfind("opened", 0) == 0);
  int gate[2];
  CHECK(pipe2(gate, O_CLOEXEC) == 0);
  pid_t child = fork();
  if (child == 0) {
    close(gate[1]);
    char byte = 0;
    char buffer[600];
    bool good = glake_ipc_share(ptr, buffer, sizeof buffer) == 0 &&
                glake_last_error(nullptr, 0) == GLAKE_FORKED &&
                glake_ipc_open(theirs.c_str(), 0, nullptr) == nullptr &&
                glake_last_error(nullptr, 0) == GLAKE_FORKED &&
                glake_ipc_close(opened) == GLAKE_FORKED && glake_pin(ptr) == GLAKE_FORKED &&
                glake_unpin(ptr) == GLAKE_FORKED && glake_host_malloc(10) == nullptr &&
                glake_last_error(nullptr, 0) == GLAKE_FORKED;
    bool closed = read(gate[0], &byte, 1) == 0;  // lives on until the parent has looked
    _exit(good && closed ? 0 : 1);
  }
  CHECK(child > 0);
  CHECK(other.ask("closed 0") == "0");
  wait_until("glake.pinned_bytes", 0);
  OK(glake_ipc_close(opened));
  OK(glake_free(ptr));
  OK(glake_shutdown());
  // Our listening socket is gone though the child lives.
  CHECK(other.ask(opening(text)) == "error " + std::to_string(GLAKE_INVALID_POINTER));
  close(gate[1]);
  close(gate[0]);
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(other.ask("leave") == "0");
  for (int device = 0; device < 2; ++device) test::check_nothing_left(device);
}

void many_threads_share() {
  test::running() = "many threads share";
  const std::string machine = machine_name();
  start(machine);
  Other others[2] = {Other(machine), Other(machine)};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&others, t] {
      Other& other = others[t];
      for (int i = 0; i < 40 / test::kSlowdown + 2; ++i) {
        size_t bytes = (static_cast<size_t>(i % 5) + 1) * 700 * test::kKiB;
        void* ptr = glake_malloc(bytes, 0, nullptr);
        unsigned seed = static_cast<unsigned>(i * 100 + t);
        fill(ptr, bytes, seed);
        const std::string n = number_of(other.ask(opening(share(ptr))));
        CHECK(other.ask("holds " + range(std::stoul(n), bytes, seed)) == "yes");
        OK(glake_free(ptr));
        CHECK(other.ask("closed " + n) == "0");
      }
    });
  }
  for (std::thread& t : threads) t.join();
  wait_until("glake.pinned_bytes", 0);
  for (Other& other : others) CHECK(other.ask("leave") == "0");
  finish();
}

// Every driver call of an opening and of a closing refused: nothing is lost here.
void every_call_refused() {
  const std::string machine = machine_name();
  for (const char* kind : {"", "legacy"}) {
    for (int64_t times : {1, 2, -1}) {
      for (int64_t k = 1;; k += test::kSlowdown) {
        test::running() = "opening " + std::string(kind) + ", call " + std::to_string(k) +
                          " refused " + std::to_string(times) + " times";
        start(machine);
        Other other(machine);
        void* mine = kind[0] == 0
                         ? glake_malloc(5 * kMiB, 0, nullptr)
                         : glake_malloc_contiguous(5 * kMiB, 0, nullptr, GLAKE_CONTIGUOUS_LEGACY);
        const std::string theirs = other.ask("offer " + std::to_string(5 * kMiB));
        const int64_t calls = simcuda_calls("*");
        CHECK(simcuda_fail("*", k, CUDA_ERROR_UNKNOWN, times) == 0);
        char text[600] = "";
        if (glake_ipc_share(mine, text, sizeof text) == 0) {
          CHECK(glake_last_error(nullptr, 0) == GLAKE_DRIVER_ERROR);
        }
        void* ptr = glake_ipc_open(theirs.c_str(), 0, nullptr);
        CHECK(ptr != nullptr || glake_last_error(nullptr, 0) == GLAKE_DRIVER_ERROR);
        if (ptr != nullptr && glake_ipc_close(ptr) != GLAKE_OK) {
          CHECK(glake_last_error(nullptr, 0) == GLAKE_DRIVER_ERROR);
          CHECK(simcuda_fail(nullptr, 1, 0, 1) == 0);
          CHECK(holds(ptr, 5 * kMiB, 77));
          OK(glake_ipc_close(ptr));
        }
        const bool past = simcuda_calls("*") - calls < k;
        CHECK(simcuda_fail(nullptr, 1, 0, 1) == 0);
        ptr = glake_ipc_open(theirs.c_str(), 0, nullptr);
        CHECK(ptr != nullptr && holds(ptr, 5 * kMiB, 77));
        OK(glake_ipc_close(ptr));
        OK(glake_free(mine));
        CHECK(other.ask("leave") == "0");
        finish();
        if (past) break;
      }
    }
  }
}

// A refusal in the exporter is the importer's error, and its pin ends.
void exporter_refuses() {
  test::running() = "exporter refuses";
  const std::string machine = machine_name();
  start(machine);
  Other other(machine);
  void* ptr = glake_malloc(5 * kMiB, 0, nullptr);
  const std::string text = share(ptr);
  for (int64_t k = 1; k <= 3; ++k) {
    CHECK(simcuda_fail("cuMemExportToShareableHandle", k, CUDA_ERROR_UNKNOWN, 1) == 0);
    CHECK(other.ask(opening(text)) == "error " + std::to_string(GLAKE_DRIVER_ERROR));
    wait_until("glake.pinned_bytes", 0);
  }
  CHECK(other.ask(opening(text)).rfind("opened", 0) == 0);
  CHECK(other.ask("closed 0") == "0" && other.ask("leave") == "0");
  OK(glake_free(ptr));
  finish();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--other") return serve(argv[2]);
  signal(SIGPIPE, SIG_IGN);
  contents_cross();
  opened_twice_is_counted();
  many_opens();
  importer_killed();
  exporter_killed();
  forgeries();
  stale_blocks();
  strangers();
  forked_children();
  many_threads_share();
  exporter_refuses();
  every_call_refused();
  return 0;
}
