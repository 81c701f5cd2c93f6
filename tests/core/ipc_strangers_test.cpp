// Device memory between processes when the other end cannot be trusted. Another user's process
// learns nothing. Nothing that a lying exporter says is believed.
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <functional>
#include <thread>

#include "ipc/ipc_socket.h"
#include "ipc_play.h"

namespace {

using namespace test_ipc;
using glake::IpcFd;
using glake::IpcHandle;
using glake::IpcIo;
using glake::IpcReply;
using glake::IpcRequest;
using test::stat;

constexpr uid_t kNobody = 65534;
constexpr uint64_t kPid = 4242, kName = 77;  // of an exporter that does not exist
constexpr size_t kBytes = 3 * kMiB;

// Only root can start a process of another user.
bool may_be_another() {
  if (geteuid() == 0) return true;
  std::printf("%s: left out, it takes root\n", test::running().c_str());
  return false;
}

// The socket's address, named as glake names it.
socklen_t name_socket(uint64_t pid, uint64_t name, uid_t user, sockaddr_un* address) {
  address->sun_family = AF_UNIX;
  const std::string text =
      "glake-ipc-" + std::to_string(user) + "-" + std::to_string(pid) + "-" + std::to_string(name);
  std::memcpy(address->sun_path + 1, text.data(), text.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
}

// Starts a child process as that user. Its exit status is what `act` returns.
pid_t start_child(uid_t user, const std::function<int()>& act) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child != 0) return child;
  alarm(20);
  if (user != geteuid() && setresuid(user, user, user) != 0) _exit(9);
  _exit(act());
}
int result_of(pid_t child) {
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// A process that knows the socket and the token gets an answer only if its user is the same.
TEST(another_user_is_told_nothing) {
  test::running() = "another user is told nothing";
  start(machine_name());
  void* ptr = glake_malloc(kBytes, 0, nullptr);
  const IpcHandle handle = glake::parse_handle(share(ptr).c_str());
  sockaddr_un address{};
  const socklen_t length = name_socket(handle.pid, handle.socket, geteuid(), &address);
  auto answered = [&] {
    IpcRequest request;
    request.token = handle.token;
    request.id = handle.id;
    IpcReply reply;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (connect(fd, reinterpret_cast<sockaddr*>(&address), length) != 0) return 8;
    send(fd, &request, sizeof request, MSG_NOSIGNAL);
    return recv(fd, &reply, sizeof reply, 0) > 0 ? 1 : 0;
  };
  CHECK(result_of(start_child(geteuid(), answered)) == 1);
  wait_until("glake.pinned_bytes", 0);
  if (may_be_another()) {
    CHECK(result_of(start_child(kNobody, answered)) == 0);
    CHECK(stat("glake.pinned_bytes") == 0);
  }
  OK(glake_free(ptr));
  finish();
}

std::string handle_text() {
  IpcHandle handle;
  handle.pid = kPid;
  handle.socket = kName;
  handle.bytes = kBytes;
  return glake::format_handle(handle);
}

// Any user may listen at a free name. The token is not sent to another user's socket.
TEST(another_users_socket_is_not_asked) {
  test::running() = "another user's socket is not asked";
  if (!may_be_another()) return;
  start(machine_name());
  int ready[2];
  CHECK(pipe2(ready, O_CLOEXEC) == 0);
  sockaddr_un address{};
  const socklen_t length = name_socket(kPid, kName, geteuid(), &address);
  pid_t squatter = start_child(kNobody, [&] {
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    bool heard = bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                 listen(fd, 1) == 0 && write(ready[1], "r", 1) == 1;
    char request[1024];
    int other = accept(fd, nullptr, nullptr);
    return !heard || recv(other, request, sizeof request, 0) > 0 ? 1 : 0;
  });
  char byte = 0;
  CHECK(read(ready[0], &byte, 1) == 1);
  CHECK(glake_ipc_open(handle_text().c_str(), 0, nullptr) == nullptr);
  CHECK(glake_last_error(nullptr, 0) == GLAKE_INVALID_ARGUMENT);
  CHECK_TEXT(test::last_error().find("another user") != std::string::npos, test::last_error());
  CHECK(result_of(squatter) == 0);
  close(ready[0]);
  close(ready[1]);
  finish();
}

IpcReply honest() {
  IpcReply reply;
  reply.bytes = kBytes;
  reply.handle_bytes = kGranule;
  reply.handles = 2;
  return reply;
}

// Answers one importer. The first request gets `first`. All later ones get `then`, with `fds`
// descriptors that are not memory of the driver.
void answer_one(const IpcFd& listener, const IpcReply& first, const IpcReply& then, int fds) {
  CHECK(glake::ipc_wait(listener, 10000));
  IpcFd socket =
      IpcFd::open([&] { return accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC); });
  IpcRequest request;
  while (glake::ipc_wait(socket, 10000) &&
         glake::ipc_receive(socket, &request, sizeof request, nullptr) == IpcIo::kDone) {
    bool next = request.op == glake::IpcOp::kNext;
    std::vector<IpcFd> sent;
    for (int i = 0; next && i < fds; ++i) {
      sent.push_back(IpcFd::open([] { return eventfd(0, EFD_CLOEXEC); }));
    }
    glake::ipc_send(socket, next ? &then : &first, sizeof first, sent);
  }
}

TEST(lies) {
  test::running() = "lies";
  start(machine_name());
  OK(glake_free(glake_malloc(1, 0, nullptr)));
  const IpcFd listener = glake::ipc_listen(glake::IpcService::kShare, {kPid, kName});
  CHECK(static_cast<bool>(listener));
  const int before = descriptors();
  auto told = [&](const char* what, int status, const std::function<void(IpcReply&)>& first,
                  const std::function<void(IpcReply&)>& then = nullptr, int fds = 0) {
    test::running() = std::string("a lie: ") + what;
    IpcReply one = honest(), two;
    two.count = static_cast<uint32_t>(fds);
    if (first != nullptr) first(one);
    if (then != nullptr) then(two);
    std::thread liar([&] { answer_one(listener, one, two, fds); });
    CHECK(glake_ipc_open(handle_text().c_str(), 0, nullptr) == nullptr);
    CHECK_TEXT(glake_last_error(nullptr, 0) == status, test::last_error());
    liar.join();
    CHECK(descriptors() == before);
  };
  const int bad = GLAKE_INVALID_ARGUMENT;
  told("magic", bad, [](IpcReply& r) { r.magic = 1; });
  told("legacy", bad, [](IpcReply& r) { r.legacy = 1; });
  told("other bytes", bad, [](IpcReply& r) { r.bytes = kMiB; });
  told("no handle", bad, [](IpcReply& r) { r.handles = 0; });
  told("too few handles", bad, [](IpcReply& r) { r.handles = 1; });
  told("endless handles", bad, [](IpcReply& r) { r.handles = ~0ull / kGranule; });
  told("handles of nothing", bad, [](IpcReply& r) { r.handle_bytes = 0; });
  told("odd handles", bad, [](IpcReply& r) { r.handle_bytes = kGranule + 512; });
  told("a vast handle", bad, [](IpcReply& r) { r.handle_bytes = size_t{1} << 62; });
  told("beyond the first", bad, [](IpcReply& r) { r.offset = kGranule; });
  told("beyond the last", bad, [](IpcReply& r) { r.offset = kMiB + 512; });
  told("before the first", bad, [](IpcReply& r) { r.offset = ~0ull; });
  for (int status : {-1, 77}) {
    told("a status there is not, endless text", GLAKE_INTERNAL, [status](IpcReply& r) {
      r.status = status;
      std::memset(r.text, 'x', sizeof r.text);
    });
  }
  told("descriptors that do not come", GLAKE_DRIVER_ERROR, [](IpcReply& r) { r.count = 1; });
  told("nor later", GLAKE_DRIVER_ERROR, nullptr, [](IpcReply& r) { r.count = 2; });
  told("none at all", GLAKE_INTERNAL, nullptr);
  told("too many", GLAKE_INTERNAL, nullptr, nullptr, 3);
  told("not the driver's", GLAKE_DRIVER_ERROR, nullptr, nullptr, 2);
  finish();
}

}  // namespace

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  return test::run_cases(argc, argv);
}
