// Room under the limit for memory that is not glake's. It is given back at the scope's end unless
// it is kept.
#pragma once

#include "torch/library.h"

namespace glake::adapter {

class OutsideClaim {
 public:
  OutsideClaim(const CudaLibrary& library, int device, size_t bytes)
      : library_(library), device_(device), bytes_(static_cast<int64_t>(bytes)) {
    granted_ = library_.claim_outside(device_, bytes_) == GLAKE_OK;
  }
  ~OutsideClaim() {
    if (granted_ && !kept_) (void)library_.claim_outside(device_, -bytes_);
  }
  OutsideClaim(const OutsideClaim&) = delete;
  OutsideClaim& operator=(const OutsideClaim&) = delete;
  bool granted() const { return granted_; }  // if not, glake_last_error() says why
  void keep() { kept_ = true; }

 private:
  const CudaLibrary& library_;
  int device_;
  int64_t bytes_;
  bool granted_ = false, kept_ = false;
};

}  // namespace glake::adapter
