// What the driver has opened for copies: contexts, access between GPUs, and streams for plain
// copies that belong to none of the caller's.
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
  // Throws Error (GLAKE_INVALID_DEVICE) if there is no such device.
  void require(int device, const char* what) const;
  void open(int device);
  // A device whose context is open, to ask the driver in: one that the caller names or uses
  // already, since another one's context would cost memory there.
  int some(int first = -1, int second = -1);
  // Gives GPU `from` access to the memory of `gpu`, glake's and others'. False where the machine
  // has none: then copies between the two go over the host.
  bool reach(int gpu, int from);
  // What a path needs once: contexts, and access of each GPU that pushes to the memory it pushes
  // to. Throws Error.
  void prepare(const Path& path);
  // Made once, kept until close(). One of each direction: a copy in is not held up by one out.
  StreamHandle plain_stream(int device, bool outward);
  // Gives the streams back. Throws Error, and may be tried again.
  void close();

 private:
  Driver& driver_;
  Allocator& allocator_;
  const int count_;
  std::unique_ptr<std::atomic<bool>[]> opened_;
  std::unique_ptr<std::atomic<StreamHandle>[]> streams_;  // of each device: in, out
  std::mutex mutex_;                                      // of what follows
  std::set<std::string> prepared_;                        // paths, by name
  std::map<std::pair<int, int>, bool> reached_;
};

}  // namespace glake::transfer
