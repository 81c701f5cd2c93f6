// Contexts that an error of their work has ended (option sticky_errors), as those of a GPU are.
#pragma once

#include <array>

#include "op.h"
#include "types.h"

namespace simcuda {

class LostContexts {
 public:
  explicit LostContexts(bool sticky) : sticky_(sticky) {}

  // What has ended the device's contexts; told as their calls tell it. CUDA_SUCCESS: nothing has.
  CUresult error(int device) const;
  // Work that failed takes the contexts of its device with it.
  void lose(const Op& op, CUresult error);
  // Work of a lost context ends with what has ended that.
  void meet(Op* op) const;
  void recover(int device) { lost_[static_cast<size_t>(device)] = CUDA_SUCCESS; }

 private:
  CUresult of(int device) const;

  const bool sticky_;
  std::array<CUresult, kMaxDevices> lost_{};
};

}  // namespace simcuda
