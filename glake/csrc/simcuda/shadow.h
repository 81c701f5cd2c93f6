// What the host copied to phantom memory and may read back: scripts and libraries send small facts
// through a GPU (DDP the order of its buckets), and act on what returns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace simcuda {

// Kept until a kernel is launched on that GPU, as it might write anywhere; small copies only.
class Shadow {
 public:
  void wrote(int device, uint64_t address, const void* from, size_t bytes);
  // Something else was written there.
  void overwritten(int device, uint64_t address, size_t bytes);
  void launched(int device);
  // False, with nothing done: not all of it is known.
  bool read(int device, uint64_t address, void* to, size_t bytes);

 private:
  using Ranges = std::map<uint64_t, std::vector<char>>;  // by their first address; none overlap
  static void drop(Ranges* ranges, uint64_t address, size_t bytes);

  std::mutex mutex_;
  std::map<int, Ranges> devices_;
};

}  // namespace simcuda
