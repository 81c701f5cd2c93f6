#include "health.h"

#include "error.h"

namespace nccl {

ncclResult Health::broken(ncclResult code, const std::string& text) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (error_ != ncclSuccess) return error_;
    why_ = text;
    error_ = code;
  }
  return fail(code, text);
}

std::string Health::why() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return why_;
}

}  // namespace nccl
