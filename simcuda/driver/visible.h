// Which GPUs of the machine the process sees, and in which order: CUDA_VISIBLE_DEVICES.
#pragma once

#include <string>
#include <vector>

namespace simcuda {

// A *device* is what CUDA numbers in this process, a *gpu* is one of the machine's. Everything
// above the machine and its links goes by devices.
class VisibleGpus {
 public:
  void all(int gpus);
  // The list of CUDA_VISIBLE_DEVICES, by the rules of the CUDA programming guide (environment
  // variables): indices or UUIDs, in the order given, up to the first that is none. A GPU that is
  // named twice leaves none, as PyTorch's reading of the variable says of the driver.
  void choose(const std::string& list, int gpus);

  int count() const { return visible_; }
  int gpu(int device) const { return gpus_[static_cast<size_t>(device)]; }
  int device(int gpu) const;  // -1: the process does not see it
  // Also of GPUs that it does not see, whose memory it may have from another process: those have
  // numbers from count() on.
  int number(int gpu) const;
  int machine() const { return static_cast<int>(gpus_.size()); }  // all of them

 private:
  void hide_rest(int gpus);

  int visible_ = 0;
  std::vector<int> gpus_;  // those it sees, then the others
};

}  // namespace simcuda
