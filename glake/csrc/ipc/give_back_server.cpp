#include "ipc/give_back_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "base/tuning.h"
#include "ipc/ipc_thread.h"

namespace glake {

void GiveBackServer::start() {
  wake_ = IpcFd::open([] { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
  place_.pid = static_cast<uint64_t>(getpid());
  if (wake_ && ipc_random(&place_.name, sizeof place_.name)) {
    listener_ = ipc_listen(IpcService::kGiveBack, place_);
  }
  if (!listener_) {
    throw Error(GLAKE_INTERNAL,
                "option cooperate: the system refuses a socket for other processes: errno " +
                    std::to_string(errno) + " (is the limit of open files reached?)");
  }
  try {
    thread_ = ipc_thread("glake-give-back", [this] { run(); });
  } catch (const Error&) {
    listener_.reset();
    throw;
  }
}

void GiveBackServer::stop() {
  if (!thread_.joinable()) return;
  eventfd_write(wake_.get(), 1);
  thread_.join();
  listener_.reset();
  wake_.reset();
}

void GiveBackServer::serve(DeviceAllocator& device) {
  std::lock_guard<std::mutex> guard(mutex_);
  devices_.push_back(&device);
}

bool GiveBackServer::is_mine(const IpcPlace& place) const {
  return place.pid == place_.pid && place.name == place_.name;
}

// No exception may leave the thread. If one is thrown (no host memory left), nobody is served any
// more, and those who ask are told so by the closed socket.
void GiveBackServer::run() {
  try {
    for (;;) {
      pollfd watched[] = {{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
      if (poll(watched, 2, -1) < 0 && errno != EINTR) break;
      if (watched[0].revents != 0) break;
      if (watched[1].revents == 0) continue;
      const IpcFd socket = IpcFd::open([this] {
        return accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      });
      if (socket) {
        if (ipc_same_user(socket)) answer(socket);
      } else if (errno == EMFILE || errno == ENFILE) {
        poll(watched, 1, Tuning::kIpcRetryMs);  // until there is a descriptor again
      }
    }
  } catch (...) {
    shutdown(listener_.get(), SHUT_RDWR);
  }
}

void GiveBackServer::answer(const IpcFd& socket) {
  GiveBackRequest request;
  if (!ipc_wait(socket, Tuning::kNeighbourReadMs) ||
      ipc_receive(socket, &request, sizeof request, nullptr) != IpcIo::kDone ||
      request.magic != kIpcMagic || ipc_hung_up(socket)) {
    return;  // one that waits no longer, as this process was stopped or busy, gets nothing
  }
  GiveBackReply reply;
  bool uses_gpu = false;
  reply.given = give(request, &uses_gpu);
  reply.uses_gpu = uses_gpu ? 1 : 0;
  ipc_send(socket, &reply, sizeof reply, {});
}

Bytes GiveBackServer::give(const GiveBackRequest& request, bool* uses_gpu) {
  std::lock_guard<std::mutex> guard(mutex_);
  Bytes given = 0;
  for (DeviceAllocator* device : devices_) {
    DeviceUuid uuid{};
    if (ipc_exiting() || !driver_.uuid(device->number(), &uuid).ok() || uuid != request.uuid) {
      continue;
    }
    *uses_gpu = true;
    if (given >= request.bytes) continue;
    try {
      given += device->give_neighbour(request.bytes - given);
    } catch (const Error&) {
      // The driver refuses the device's context now. The other process hears that nothing was
      // given.
    }
  }
  return given;
}

}  // namespace glake
