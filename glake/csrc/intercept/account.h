// Counts what was carried and over which paths, and what was left to the driver and why.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "intercept/copy.h"

namespace glake::intercept {

class Account {
 public:
  void left(Reason reason, uint64_t bytes);
  void carried(uint64_t bytes);
  // A carried copy is over. It went over these paths.
  void ended(const std::map<std::string, uint64_t>& bytes_by_path, bool relayed);
  void failed();
  bool empty();
  std::string json();
  std::string text();  // for people; ends with a newline
  // lock() and unlock() are called around a fork. The child calls clear() in between.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  void clear();

 private:
  struct Count {
    uint64_t copies = 0, bytes = 0;
  };

  std::mutex mutex_;
  Count carried_, left_[static_cast<int>(Reason::kCount)];
  uint64_t failed_ = 0, relayed_ = 0;
  std::map<std::string, uint64_t> paths_;  // bytes by name
};

}  // namespace glake::intercept
