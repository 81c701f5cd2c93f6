#include "transfer/remote/wire.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/transfer_tuning.h"

namespace glake::transfer {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(GLAKE_COPY_REFUSED, what + ": " + std::strerror(errno));
}

Descriptor new_socket(const std::string& path, sockaddr_un* address) {
  address->sun_family = AF_UNIX;
  if (path.size() >= sizeof address->sun_path) {
    throw Error(GLAKE_INVALID_ARGUMENT, path +
                                            " is too long for a socket: set XDG_RUNTIME_DIR to "
                                            "a shorter one");
  }
  std::memcpy(address->sun_path, path.c_str(), path.size() + 1);
  Descriptor made(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!made) refuse("a socket");
  return made;
}

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  reset();
  fd_ = other.release();
  return *this;
}

int Descriptor::release() { return std::exchange(fd_, -1); }

void Descriptor::reset() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

bool send_packet(int socket, void* packet, size_t bytes, int descriptor) {
  iovec part{packet, bytes};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = room;
    message.msg_controllen = sizeof room;
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(head), &descriptor, sizeof descriptor);
  }
  ssize_t sent = 0;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(bytes);
}

Got take_packet(int socket, void* packet, size_t bytes, Descriptor* descriptor, bool wait) {
  iovec part{packet, bytes};
  alignas(cmsghdr) char room[CMSG_SPACE(4 * sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof room;
  ssize_t got = 0;
  do {
    got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | (wait ? 0 : MSG_DONTWAIT));
  } while (got < 0 && errno == EINTR);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Got::kNone;
  if (got <= 0) return Got::kGone;
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head; head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {  // one is expected; others are closed
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(head) + i * sizeof fd, sizeof fd);
      *descriptor = Descriptor(fd);
    }
  }
  const bool whole =
      got == static_cast<ssize_t>(bytes) && (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
  return whole ? Got::kPacket : Got::kGone;
}

Descriptor listen_at(const std::string& path) {
  sockaddr_un address{};
  Descriptor made = new_socket(path, &address);
  unlink(path.c_str());
  // Only a process with write permission can connect. fchmod comes before bind, which makes the
  // file, so it is never open to others.
  if (fchmod(made.get(), 0600) != 0 ||
      bind(made.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(made.get(), 64) != 0) {
    refuse(path);
  }
  return made;
}

Descriptor connect_to(const std::string& path) {
  sockaddr_un address{};
  Descriptor made = new_socket(path, &address);
  const timeval patience{TransferTuning::kSendSeconds, 0};
  setsockopt(made.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  if (connect(made.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    refuse("the relay service's " + path);
  }
  if (!same_user(made.get())) {
    throw Error(GLAKE_COPY_REFUSED, path + " is another user's");
  }
  return made;
}

bool same_user(int socket) {
  ucred other{};
  socklen_t size = sizeof other;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &other, &size) == 0 && other.uid == geteuid();
}

Descriptor process_behind(int socket) {
  ucred other{};
  socklen_t size = sizeof other;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &other, &size) != 0) return Descriptor();
  constexpr long kPidfdOpen = 434;  // Linux 5.3; the number is the same on every machine
  return Descriptor(static_cast<int>(syscall(kPidfdOpen, other.pid, 0)));
}

bool has_ended(int process) {
  pollfd one{process, POLLIN, 0};
  return poll(&one, 1, 0) == 1;
}

}  // namespace glake::transfer
