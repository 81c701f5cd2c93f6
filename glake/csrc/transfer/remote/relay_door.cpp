#include "transfer/remote/relay_door.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <system_error>

#include "base/transfer_tuning.h"

namespace glake::transfer {
RelayDoor::RelayDoor(const std::string& driver, const std::string& path)
    : gpus_(driver), socket_(listen_at(path)), stop_(eventfd(0, EFD_CLOEXEC)) {
  thread_ = std::thread([this] { run(); });
}

void RelayDoor::stop() {
  const uint64_t one = 1;
  if (thread_.joinable() && write(stop_.get(), &one, sizeof one) == sizeof one) thread_.join();
}

std::string RelayDoor::wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return over_; });
  return gpus_.lost();
}

bool RelayDoor::serve(Descriptor client) {
  const timeval patience{TransferTuning::kAnswerSeconds, 0};
  setsockopt(client.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  try {
    workers_.push_back(std::make_unique<RelayWorker>(gpus_, std::move(client)));
  } catch (const std::system_error&) {
    return false;
  }
  return true;
}

void RelayDoor::run() {
  for (;;) {
    pollfd waits[] = {
        {socket_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}, {gpus_.lost_event(), POLLIN, 0}};
    poll(waits, 3, -1);
    if (waits[1].revents != 0 || waits[2].revents != 0) break;
    Descriptor client(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    workers_.remove_if([](const auto& worker) { return worker->over(); });
    if (client && (!same_user(client.get()) || workers_.size() >= TransferTuning::kMostClients))
      continue;
    if (client && serve(std::move(client))) continue;
    pollfd stop{stop_.get(), POLLIN, 0};
    poll(&stop, 1, TransferTuning::kFullMs);
  }
  socket_.reset();  // a client that connects now is refused at once
  workers_.clear();
  const std::lock_guard<std::mutex> guard(mutex_);
  over_ = true;
  changed_.notify_all();
}

}  // namespace glake::transfer
