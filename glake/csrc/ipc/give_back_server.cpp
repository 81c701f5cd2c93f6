#include "ipc/give_back_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/tuning.h"
#include "ipc/ipc_thread.h"

namespace glake {

namespace {

constexpr uint64_t kLowerHalf = 0xffffffff;

Error refused() {
  return Error(GLAKE_INTERNAL,
               "option cooperate: the system refuses a socket for other processes: errno " +
                   std::to_string(errno) + " (is the limit of open files reached?)");
}

// The upper half of the names of a GPU's sockets (FNV-1a).
uint64_t upper_half(const DeviceUuid& gpu) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const auto byte : gpu) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  return hash & ~kLowerHalf;
}

}  // namespace

void GiveBackServer::start() {
  wake_ = IpcFd::open([] { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
  place_.pid = static_cast<uint64_t>(getpid());
  if (!wake_ || !ipc_random(&place_.name, sizeof place_.name)) throw refused();
  place_.name &= kLowerHalf;
  thread_ = ipc_thread("glake-give-back", [this] { run(); });
}

void GiveBackServer::stop() {
  if (!thread_.joinable()) return;
  ends_ = true;
  eventfd_write(wake_.get(), 1);
  thread_.join();
  listeners_.clear();
  wake_.reset();
}

void GiveBackServer::serve(DeviceAllocator& device) {
  DeviceUuid gpu{};
  // A driver that does not name its GPUs gives zeros. Then nobody asks.
  if (!driver_.uuid(device.number(), &gpu).ok()) gpu = {};
  const IpcPlace place{place_.pid, place_.name | upper_half(gpu)};
  std::lock_guard<std::mutex> guard(mutex_);
  bool listens = false;
  for (const Listener& each : listeners_) listens = listens || each.place.name == place.name;
  if (!listens) {
    IpcFd socket = ipc_listen(IpcService::kGiveBack, place);
    if (!socket) throw refused();
    listeners_.push_back({place, std::move(socket)});
  }
  devices_.push_back(&device);
  eventfd_write(wake_.get(), 1);
}

bool GiveBackServer::is_mine(const IpcPlace& place) const {
  return place.pid == place_.pid && (place.name & kLowerHalf) == place_.name;
}

bool GiveBackServer::may_use(const IpcPlace& place, const DeviceUuid& gpu) {
  return (place.name & ~kLowerHalf) == upper_half(gpu);
}

// No exception may leave the thread. If one is thrown (no host memory left), nobody is served any
// more, and those who ask are told so by the closed sockets.
void GiveBackServer::run() {
  std::vector<Asker> askers;  // the oldest first
  try {
    while (!ends_) turn(&askers);
  } catch (...) {
    std::lock_guard<std::mutex> guard(mutex_);
    for (const Listener& each : listeners_) shutdown(each.socket.get(), SHUT_RDWR);
  }
}

// Waits for something to do, and does it. Connections without a question are waited for together,
// so one that never asks delays nobody.
void GiveBackServer::turn(std::vector<Asker>* askers) {
  std::vector<pollfd> watched{{wake_.get(), POLLIN, 0}};
  for (const Asker& each : *askers) watched.push_back({each.socket.get(), POLLIN, 0});
  const size_t listeners = watched.size();
  {
    std::lock_guard<std::mutex> guard(mutex_);
    for (const Listener& each : listeners_) watched.push_back({each.socket.get(), POLLIN, 0});
  }
  if (poll(watched.data(), watched.size(), askers->empty() ? -1 : Tuning::kNeighbourReadMs) < 0) {
    if (errno != EINTR) ends_ = true;
    return;
  }
  eventfd_t woken = 0;
  if (watched[0].revents != 0) eventfd_read(wake_.get(), &woken);
  const Clock::time_point now = Clock::now();
  std::vector<Asker> waiting;
  for (size_t i = 0; i < askers->size(); ++i) {
    Asker& each = (*askers)[i];
    if (watched[i + 1].revents != 0) {
      answer(each.socket);
    } else if (now < each.until) {
      waiting.push_back(std::move(each));
    }
  }
  askers->swap(waiting);
  for (size_t i = listeners; i < watched.size() && !ends_; ++i) {
    if (watched[i].revents == 0 || accept_on(watched[i].fd, askers)) continue;
    poll(watched.data(), 1, Tuning::kIpcRetryMs);  // until there is a descriptor again
  }
}

// False if there is no descriptor for the connection.
bool GiveBackServer::accept_on(int listener, std::vector<Asker>* askers) {
  IpcFd socket = IpcFd::open(
      [&] { return accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); });
  if (!socket) return errno != EMFILE && errno != ENFILE;
  if (!ipc_same_user(socket)) return true;
  // Who asks does so at once, and is answered in the next turn.
  if (askers->size() == Tuning::kNeighbourAskers) askers->erase(askers->begin());
  const auto patience = std::chrono::milliseconds(Tuning::kNeighbourReadMs);
  askers->push_back({std::move(socket), Clock::now() + patience});
  return true;
}

void GiveBackServer::answer(const IpcFd& socket) {
  GiveBackRequest request;
  if (ipc_receive(socket, &request, sizeof request, nullptr) != IpcIo::kDone ||
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
