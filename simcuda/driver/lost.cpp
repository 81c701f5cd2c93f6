#include "lost.h"

namespace simcuda {

CUresult LostContexts::of(int device) const {
  return device < 0 ? CUDA_SUCCESS : lost_[static_cast<size_t>(device)];
}

CUresult LostContexts::error(int device) const {
  const CUresult error = of(device);
  if (error == CUDA_SUCCESS) return error;
  return fail(error, "the context is lost to an earlier error of its work (option sticky_errors)");
}

void LostContexts::lose(const Op& op, CUresult error) {
  if (!sticky_ || op.device < 0 || error == CUDA_SUCCESS) return;
  CUresult& lost = lost_[static_cast<size_t>(op.device)];
  if (lost == CUDA_SUCCESS) lost = error;
}

void LostContexts::meet(Op* op) const {
  const CUresult error = of(op->device);
  if (error != CUDA_SUCCESS && op->fault == CUDA_SUCCESS) op->fault = error;
}

}  // namespace simcuda
