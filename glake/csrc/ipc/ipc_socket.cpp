#include "ipc/ipc_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/tuning.h"

namespace glake {
namespace {

constexpr const char* kListening = "00010000";  // __SO_ACCEPTCON, as /proc/net/unix shows it

// How the names of a service's sockets begin.
std::string prefix_of(IpcService service) {
  const std::string what = service == IpcService::kShare ? "ipc" : "give-back";
  return "glake-" + what + "-" + std::to_string(geteuid()) + "-";
}

sockaddr_un address_of(IpcService service, IpcPlace place, socklen_t* length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // The name is abstract (it begins with a NUL). So no file is left behind, however the process
  // ends.
  const std::string text =
      prefix_of(service) + std::to_string(place.pid) + "-" + std::to_string(place.name);
  std::memcpy(address.sun_path + 1, text.data(), text.size());
  *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return address;
}

}  // namespace

IpcIo ipc_send(const IpcFd& socket, const void* data, size_t size, const std::vector<IpcFd>& fds) {
  const char* first = static_cast<const char*>(data);
  std::vector<char> bytes(first, first + size);  // sendmsg() takes no pointer to const
  iovec part{bytes.data(), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * Tuning::kIpcBatch)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    for (size_t i = 0; i < fds.size(); ++i) {
      int fd = fds[i].get();
      std::memcpy(CMSG_DATA(header) + i * sizeof fd, &fd, sizeof fd);
    }
  }
  ssize_t sent = sendmsg(socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent == static_cast<ssize_t>(size)) return IpcIo::kDone;
  return errno == EPIPE || errno == ECONNRESET ? IpcIo::kClosed : IpcIo::kBroken;
}

IpcIo ipc_receive(const IpcFd& socket, void* data, size_t size, std::vector<IpcFd>* fds) {
  iovec part{data, size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * Tuning::kIpcBatch)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t got = -1;
  int reason = 0;
  std::vector<IpcFd> received;
  auto receive = [&] {
    std::vector<int> numbers;
    got = recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    reason = errno;
    for (cmsghdr* h = got >= 0 ? CMSG_FIRSTHDR(&message) : nullptr; h != nullptr;
         h = CMSG_NXTHDR(&message, h)) {
      if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS) continue;
      size_t count = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      numbers.resize(count);
      std::memcpy(numbers.data(), CMSG_DATA(h), count * sizeof(int));
    }
    return numbers;
  };
  IpcFd::open_all(receive, &received);
  if (fds != nullptr) fds->swap(received);
  if (got == 0) return IpcIo::kClosed;
  if (got < 0) return reason == ECONNRESET ? IpcIo::kClosed : IpcIo::kBroken;
  bool cut = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
  return cut || got != static_cast<ssize_t>(size) ? IpcIo::kBroken : IpcIo::kDone;
}

bool ipc_wait(const IpcFd& socket, int patience_ms) {
  pollfd wanted{socket.get(), POLLIN, 0};
  int ready = 0;
  do {
    ready = poll(&wanted, 1, patience_ms);
  } while (ready < 0 && errno == EINTR);
  return ready == 1;
}

IpcFd ipc_listen(IpcService service, IpcPlace place) {
  IpcFd made =
      IpcFd::open([] { return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
  socklen_t length = 0;
  sockaddr_un address = address_of(service, place, &length);
  bool ok = made && bind(made.get(), reinterpret_cast<sockaddr*>(&address), length) == 0 &&
            listen(made.get(), SOMAXCONN) == 0;
  if (!ok) made.reset();
  return made;
}

IpcFd ipc_connect(IpcService service, IpcPlace place, int patience_ms) {
  IpcFd made = IpcFd::open([] { return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0); });
  if (!made) return made;
  timeval patience{patience_ms / 1000, patience_ms % 1000 * 1000};
  setsockopt(made.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  socklen_t length = 0;
  sockaddr_un address = address_of(service, place, &length);
  int result = 0;
  do {
    result = connect(made.get(), reinterpret_cast<sockaddr*>(&address), length);
  } while (result != 0 && errno == EINTR);
  if (result != 0) {
    const int error = errno;
    made.reset();
    errno = error;
  }
  return made;
}

std::vector<IpcPlace> ipc_places(IpcService service, int* error) {
  std::vector<IpcPlace> places;
  errno = 0;
  std::ifstream table("/proc/net/unix");
  *error = table.is_open() ? 0 : errno;
  const std::string begin = "@" + prefix_of(service);  // the system shows the NUL as @
  for (std::string line; std::getline(table, line);) {
    // Number, references, protocol, flags, type, state, inode, name.
    std::istringstream fields(line);
    std::string skipped, flags, name;
    fields >> skipped >> skipped >> skipped >> flags >> skipped >> skipped >> skipped >> name;
    // Connections have the name of the socket that accepted them, but not its flag.
    if (flags != kListening || name.compare(0, begin.size(), begin) != 0) continue;
    IpcPlace place;
    char dash = 0;
    std::istringstream numbers(name.substr(begin.size()));
    if (numbers >> place.pid >> dash >> place.name && dash == '-') places.push_back(place);
  }
  return places;
}

bool ipc_hung_up(const IpcFd& socket) {
  pollfd watched{socket.get(), 0, 0};
  return poll(&watched, 1, 0) == 1 && (watched.revents & (POLLHUP | POLLERR)) != 0;
}

bool ipc_same_user(const IpcFd& socket) {
  ucred other{};
  socklen_t length = sizeof other;
  return getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &other, &length) == 0 &&
         other.uid == geteuid();
}

bool ipc_random(void* bytes, size_t count) {
  return getrandom(bytes, count, 0) == static_cast<ssize_t>(count);
}

}  // namespace glake
