// What the driver has opened for copies: contexts, access between GPUs, and streams for plain
// copies that are in none of the caller's streams.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "driver/driver.h"
#include "plan/plan.h"
#include "transfer/buffers/allocator.h"

namespace glake::transfer {

class Devices {
 public:
  Devices(Driver& driver, Allocator& allocator);
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;

  int count() const { return count_; }
  // Tells this engine's streams from those of other engines of the process.
  uint64_t number() const { return number_; }
  // Throws Error (GLAKE_INVALID_DEVICE) if there is no such device.
  void require(int device, const char* what) const;
  void open(int device);
  // A device with an open context, for asking the driver. It is one that the caller names or uses
  // already, because another context would cost memory on its device.
  int some(int named = -1);
  // Gives GPU `from` access to all memory of `gpu`. False if the machine does not allow this. Then
  // copies between the two go over the host.
  bool reach(int gpu, int from);
  // The same for a copy that the driver makes without access too, staged in host memory. What
  // refuses access is asked once, and is in refusals().
  void try_reach(int gpu, int from);
  std::string refusals();
  // Gives the GPU whose copy engine makes the copy access to the other GPU's memory.
  bool reach(const Hop& hop);
  // Opens what a path needs, at its first use: contexts, and access for each GPU that makes a copy
  // between two. Throws Error.
  void prepare(const Path& path);
  // A stream for plain copies out of the device (`outward`) or into it. It is made once and kept
  // until close(). Each direction has its own, so that copies in and copies out do not wait for
  // each other.
  StreamHandle plain_stream(int device, bool outward);
  // Gives the streams back. Throws Error, and may be tried again.
  void close();

 private:
  void refuse(int gpu, int from, const std::string& why);

  Driver& driver_;
  Allocator& allocator_;
  const int count_;
  const uint64_t number_;
  std::unique_ptr<std::atomic<bool>[]> opened_;
  std::unique_ptr<std::atomic<StreamHandle>[]> streams_;  // two for each device: in, out
  std::mutex mutex_;                                      // guards what follows
  std::set<std::pair<std::string, bool>> prepared_;       // names of paths, and whether it reads
  std::map<std::pair<int, int>, bool> reached_;
  std::map<std::pair<int, int>, std::string> refused_;  // by the GPU that asks, and the other
};

}  // namespace glake::transfer
