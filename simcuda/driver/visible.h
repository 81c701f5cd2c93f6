// Which GPUs of the machine the process sees, and in which order (CUDA_VISIBLE_DEVICES).
#pragma once

#include <string>
#include <vector>

namespace simcuda {

// A *device* is a GPU by CUDA's number in this process, a *gpu* is one by the machine's number.
// Everything above the machine and its links uses devices.
class VisibleGpus {
 public:
  void all(int gpus);
  // Reads the list of CUDA_VISIBLE_DEVICES by the rules of the CUDA programming guide (environment
  // variables): indices or UUIDs in the given order, up to the first invalid one. If a GPU is named
  // twice, the process sees none. PyTorch reads the variable in the same way, and says that the
  // driver does.
  void choose(const std::string& list, const std::string& machine, int gpus);

  int count() const { return visible_; }
  int gpu(int device) const { return gpus_[static_cast<size_t>(device)]; }
  int device(int gpu) const;  // -1: the process does not see it
  // The number of any GPU of the machine. Those that the process does not see have numbers from
  // count() on, because the process may have memory of theirs from another process.
  int number(int gpu) const;
  int machine() const { return static_cast<int>(gpus_.size()); }  // all GPUs of the machine

 private:
  void hide_rest(int gpus);

  int visible_ = 0;
  std::vector<int> gpus_;  // those that it sees, then the others
};

}  // namespace simcuda
