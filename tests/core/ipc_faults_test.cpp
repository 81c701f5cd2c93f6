// Device memory between processes when something is wrong: deaths, forgeries, forks, refusals.
#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <thread>

#include "ipc/ipc_socket.h"
#include "ipc_play.h"

namespace {

using namespace test_ipc;
using test::stat;

TEST(importer_killed) {
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
        other.tell(opening(text));  // it is killed at some point during the open
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

TEST(exporter_killed) {
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
  CHECK(holds(ptr, bytes, 77));  // it is valid here as long as it is open
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

// A process that is exiting refuses requests for its memory, because its thread may make no driver
// call then.
TEST(exporter_ending) {
  test::running() = "exporter ending";
  const std::string machine = machine_name();
  start(machine);
  auto other = std::make_unique<Other>(machine);
  const auto handle = glake::parse_handle(other->ask("offer " + std::to_string(5 * kMiB)).c_str());
  const glake::IpcFd socket =
      glake::ipc_connect(glake::IpcService::kShare, {handle.pid, handle.socket}, 10000);
  auto ask = [&](glake::IpcOp op) {
    glake::IpcRequest request;
    request.op = op;
    request.token = handle.token;
    request.id = handle.id;
    glake::IpcReply reply;
    std::vector<glake::IpcFd> fds;
    CHECK(glake::ipc_send(socket, &request, sizeof request, {}) == glake::IpcIo::kDone);
    CHECK(glake::ipc_wait(socket, 10000));
    CHECK(glake::ipc_receive(socket, &reply, sizeof reply, &fds) == glake::IpcIo::kDone);
    CHECK(reply.count == fds.size());
    return reply;
  };
  CHECK(ask(glake::IpcOp::kOpen).status == GLAKE_OK);
  CHECK(ask(glake::IpcOp::kNext).count == 3);
  CHECK(other->ask("end") == "ending");
  const glake::IpcReply last = ask(glake::IpcOp::kNext);
  CHECK_TEXT(last.status == GLAKE_INVALID_POINTER && last.count == 0, last.text);
  other.reset();  // waits for the process, whose memory is gone then
  finish();
}

TEST(forgeries) {
  test::running() = "forgeries";
  const std::string machine = machine_name();
  start(machine);
  Other other(machine);
  const std::string good = other.ask("offer " + std::to_string(3 * kMiB));
  void* own = glake_malloc(1000, 0, nullptr);
  CHECK(glake::parse_handle(share(own).c_str()).token != glake::parse_handle(good.c_str()).token);
  OK(glake_free(own));
  auto refused = [](const std::string& text, int status, const char* what) {
    test::running() = std::string("forged: ") + what;
    CHECK(glake_ipc_open(text.c_str(), 0, nullptr) == nullptr);
    CHECK_TEXT(glake_last_error(nullptr, 0) == status, test::last_error());
  };
  // The text is refused wherever it is cut short, and whichever character is changed.
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
  void* ptr = glake_ipc_open(good.c_str(), 0, nullptr);  // the server still works
  CHECK(ptr != nullptr && holds(ptr, 3 * kMiB, 77));
  OK(glake_ipc_close(ptr));
  CHECK(other.ask("leave") == "0");
  refused(good, GLAKE_INVALID_POINTER, "shut down");
  finish();
}

// Strangers connect to the socket and send garbage, nothing, or very much. The server goes on
// serving others.
TEST(strangers) {
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
TEST(forked_children) {
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
    bool closed = read(gate[0], &byte, 1) == 0;  // it lives until the parent has checked
    _exit(good && closed ? 0 : 1);
  }
  CHECK(child > 0);
  CHECK(other.ask("closed 0") == "0");
  wait_until("glake.pinned_bytes", 0);
  // The parent's ends of the connections are closed, and its listening socket is gone, although the
  // child still lives.
  OK(glake_ipc_close(opened));
  for (int i = 0; i < 10000 && other.ask("pinned") != "0"; ++i) usleep(1000);
  CHECK(other.ask("pinned") == "0");
  OK(glake_free(ptr));
  OK(glake_shutdown());
  CHECK(other.ask(opening(text)) == "error " + std::to_string(GLAKE_INVALID_POINTER));
  CHECK(other.ask("why").find("shares nothing") != std::string::npos);
  close(gate[1]);
  close(gate[0]);
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(other.ask("leave") == "0");
  for (int device = 0; device < 2; ++device) test::check_nothing_left(device);
}

// A driver call that fails in the exporter is an error in the importer, and the block's pin ends.
TEST(exporter_refuses) {
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

// If the driver refuses a call while a block is closed, the status says so, and the rest is done
// later.
TEST(a_refused_closing_is_told) {
  const std::string machine = machine_name();
  const std::pair<const char*, int> steps[] = {{"cuMemUnmap", GLAKE_DRIVER_ERROR},
                                               {"cuMemAddressFree", GLAKE_MEMORY_OWED}};
  for (auto [call, status] : steps) {
    test::running() = std::string(call) + " of a closing refused";
    start(machine);
    Other other(machine);
    const std::string theirs = other.ask("offer " + std::to_string(5 * kMiB));
    void* ptr = glake_ipc_open(theirs.c_str(), 0, nullptr);
    CHECK(ptr != nullptr);
    CHECK(simcuda_fail(call, 1, CUDA_ERROR_UNKNOWN, 1) == 0);
    GIVES(status, glake_ipc_close(ptr));
    CHECK_TEXT(test::last_error().find(call) != std::string::npos, test::last_error());
    GIVES(status == GLAKE_MEMORY_OWED ? GLAKE_INVALID_POINTER : GLAKE_OK, glake_ipc_close(ptr));
    CHECK(other.ask("leave") == "0");
    finish();
  }
}

// Memory of another process's block that the driver refuses to take back is owed as any other. It
// is counted, and glake_empty_cache() reports it and tries again.
TEST(a_refusal_is_owed) {
  const std::string machine = machine_name();
  struct {
    const char* call;
    const char* also;  // the call that fails, so that the open is undone
    int64_t owed;
  } cases[] = {{"cuMemAddressFree", nullptr, 0},
               {"cuMemAddressFree", "cuMemSetAccess", 0},
               {"cuMemRelease", nullptr, static_cast<int64_t>(kGranule)},
               {"cuMemRelease", "cuMemMap", static_cast<int64_t>(kGranule)},
               {"cuMemUnmap", "cuMemSetAccess", 3 * static_cast<int64_t>(kGranule)}};
  for (const auto& each : cases) {
    test::running() = std::string("owed: ") + each.call;
    start(machine);
    OK(glake_free(glake_malloc(kMiB, 0, nullptr)));
    OK(glake_empty_cache(0));
    Other other(machine);
    const std::string theirs = other.ask("offer " + std::to_string(5 * kMiB));
    if (each.also != nullptr) CHECK(simcuda_fail(each.also, 1, CUDA_ERROR_UNKNOWN, 1) == 0);
    CHECK(simcuda_fail(each.call, 1, CUDA_ERROR_UNKNOWN, -1) == 0);
    void* ptr = glake_ipc_open(theirs.c_str(), 0, nullptr);
    if (ptr != nullptr) GIVES(GLAKE_MEMORY_OWED, glake_ipc_close(ptr));
    CHECK_TEXT(test::last_error().find("refused to take back") != std::string::npos &&
                   test::last_error().find(each.call) != std::string::npos &&
                   test::last_error().find("glake_empty_cache()") != std::string::npos,
               test::last_error());
    CHECK(glake_owed_bytes(0) == each.owed && stat("glake.owed_bytes") == each.owed);
    CHECK(stat("glake.physical_bytes") == stat("reserved_bytes.all.current") + each.owed);
    OK(glake_check(0));
    GIVES(GLAKE_MEMORY_OWED, glake_empty_cache(0));
    CHECK_TEXT(test::last_error().find(each.call) != std::string::npos, test::last_error());
    CHECK(glake_owed_bytes(0) == each.owed);
    CHECK(simcuda_fail(nullptr, 1, 0, 1) == 0);
    OK(glake_empty_cache(0));
    CHECK(glake_owed_bytes(0) == 0 && stat("glake.physical_bytes") == 0);
    CHECK(other.ask("leave") == "0");
    finish();
  }
}

// Each driver call of an open and of a close is refused in turn. No memory is lost in this process.
TEST(every_call_refused) {
  const std::string machine = machine_name();
  for (const char* kind : {"", "legacy"}) {
    for (int64_t times : {1, 2, -1}) {
      for (int64_t k = 1;; k += test::kShortened) {
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
        const int closed = ptr != nullptr ? glake_ipc_close(ptr) : GLAKE_OK;
        if (closed != GLAKE_OK && closed != GLAKE_MEMORY_OWED) {
          CHECK(closed == GLAKE_DRIVER_ERROR);
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

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--other") return serve(argv[2]);
  signal(SIGPIPE, SIG_IGN);
  return test::run_cases(argc, argv);
}
