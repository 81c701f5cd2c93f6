// Contexts that an error of their work has ended (option sticky_errors), as on a GPU.
#pragma once

#include <array>

#include "op.h"
#include "types.h"

namespace simcuda {

class LostContexts {
 public:
  explicit LostContexts(bool sticky) : sticky_(sticky) {}

  // The error that ended the device's contexts, as their calls return it. CUDA_SUCCESS: none did.
  CUresult error(int device) const;
  // Work failed, which ends the contexts of its device.
  void lose(const Op& op, CUresult error);
  // Work of a lost context gets the error that ended the context.
  void meet(Op* op) const;
  void recover(int device) { lost_[static_cast<size_t>(device)] = CUDA_SUCCESS; }

 private:
  CUresult of(int device) const;

  const bool sticky_;
  std::array<CUresult, kMaxDevices> lost_{};
};

}  // namespace simcuda
