#include "ipc/ipc_fd.h"

#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <utility>

namespace glake {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<int> fds;
};

Registry& registry() {
  static auto* all = new Registry;  // never destroyed, because threads may outlive main
  return *all;
}

}  // namespace

void IpcFd::before_fork() { registry().mutex.lock(); }
void IpcFd::in_parent() { registry().mutex.unlock(); }
void IpcFd::in_child() {
  for (int fd : registry().fds) close(fd);
  registry().fds.clear();
  registry().mutex.unlock();
}

IpcFd IpcFd::open(const std::function<int()>& make) {
  Registry& all = registry();
  std::lock_guard<std::mutex> guard(all.mutex);
  IpcFd made;
  all.fds.reserve(all.fds.size() + 1);
  made.fd_ = make();
  if (made.fd_ >= 0) all.fds.push_back(made.fd_);
  return made;
}

void IpcFd::open_all(const std::function<std::vector<int>()>& make, std::vector<IpcFd>* made) {
  Registry& all = registry();
  std::lock_guard<std::mutex> guard(all.mutex);
  all.fds.reserve(all.fds.size() + Tuning::kIpcBatch);
  made->reserve(made->size() + Tuning::kIpcBatch);
  for (int fd : make()) {
    all.fds.push_back(fd);
    made->emplace_back();
    made->back().fd_ = fd;
  }
}

IpcFd& IpcFd::operator=(IpcFd&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

void IpcFd::reset() {
  if (fd_ < 0) return;
  Registry& all = registry();
  std::lock_guard<std::mutex> guard(all.mutex);
  auto found = std::find(all.fds.begin(), all.fds.end(), fd_);
  // A forked child does not find the descriptor here, because it has closed all of them. There the
  // number may belong to another file by now.
  if (found != all.fds.end()) {
    *found = all.fds.back();
    all.fds.pop_back();
    close(fd_);
  }
  fd_ = -1;
}

}  // namespace glake
