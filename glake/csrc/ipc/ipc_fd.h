// A descriptor for a connection between processes that share memory. It is closed at the scope's
// end. A registry knows all such descriptors, so that a forked child closes its copies. Thus a
// connection ends when its own process closes it.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace glake {

class IpcFd {
 public:
  IpcFd() = default;
  ~IpcFd() { reset(); }
  IpcFd(IpcFd&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  IpcFd& operator=(IpcFd&& other) noexcept;
  IpcFd(const IpcFd&) = delete;
  IpcFd& operator=(const IpcFd&) = delete;
  // These lock the registry across a fork. The child closes all descriptors.
  static void before_fork();
  static void in_parent();
  static void in_child();
  // Takes the descriptor that `make` opens, while no fork can happen. If `make` returns a negative
  // number, the result is empty, and errno stays.
  static IpcFd open(const std::function<int()>& make);
  // Takes up to Tuning::kIpcBatch descriptors that one call opens. None may be negative.
  static void open_all(const std::function<std::vector<int>()>& make, std::vector<IpcFd>* made);
  void reset();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

}  // namespace glake
