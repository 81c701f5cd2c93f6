// Whether a rank's communicator works: the first error that prevents it, and whether it has ended.
#pragma once

#include <atomic>
#include <mutex>
#include <string>

#include "nccl.h"

namespace nccl {

class Health {
 public:
  // Keeps the first error, and returns it.
  ncclResult broken(ncclResult code, const std::string& text);
  ncclResult error() const { return error_.load(); }
  std::string why() const;

  void stop() { stopping_ = true; }
  bool stopping() const { return stopping_.load(); }
  bool ended() const { return stopping() || error() != ncclSuccess; }

 private:
  mutable std::mutex mutex_;
  std::string why_;
  std::atomic<bool> stopping_{false};
  std::atomic<ncclResult> error_{ncclSuccess};
};

}  // namespace nccl
