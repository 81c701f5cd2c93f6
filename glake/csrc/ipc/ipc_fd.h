// A descriptor between processes that share memory, closed at the scope's end. All are known to a
// registry, so that a forked child closes its copies: a connection ends when its own process lets
// go of it.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace glake {

class IpcFd {
 public:
  static constexpr size_t kMostAtOnce = 32;

  IpcFd() = default;
  ~IpcFd() { reset(); }
  IpcFd(IpcFd&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  IpcFd& operator=(IpcFd&& other) noexcept;
  IpcFd(const IpcFd&) = delete;
  IpcFd& operator=(const IpcFd&) = delete;
  // The registry is locked across a fork; the child closes all.
  static void before_fork();
  static void in_parent();
  static void in_child();
  // What `make` opens, with no fork in between; empty, with errno kept, if that is negative.
  static IpcFd open(const std::function<int()>& make);
  // Up to kMostAtOnce at once, out of one call; none may be negative.
  static void open_all(const std::function<std::vector<int>()>& make, std::vector<IpcFd>* made);
  void reset();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

}  // namespace glake
