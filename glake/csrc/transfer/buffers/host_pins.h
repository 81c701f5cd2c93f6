// Pins callers' host memory with the driver, piece by piece. A copy from a pinned page needs no
// buffer of glake's. The driver holds locks of the whole machine while it pins. So pieces are
// short, and their pages are made resident first.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "driver/driver.h"

namespace glake::transfer {

class HostPins {
 public:
  explicit HostPins(Driver& driver) : driver_(driver) {}
  HostPins(const HostPins&) = delete;
  HostPins& operator=(const HostPins&) = delete;

  // The driver pins in the context of this device, which must be open.
  void use(int device) { device_ = device; }
  // These throw Error. add() returns when all is pinned, or at once with `background`.
  void add(void* base, Bytes bytes, bool background);
  // Ends the pinning if it is under way, and unpins.
  void remove(void* base);
  // Returns GLAKE_OK once all is pinned, GLAKE_BUSY_TIMEOUT, or the error that ended the pinning,
  // with its text.
  int wait(void* base, uint64_t timeout_ns, std::string* text);
  void progress(void* base, Bytes* pinned, Bytes* total);
  // Unpins all. Throws Error, and may be called again.
  void close();

 private:
  struct Range {
    Address base;
    Bytes bytes;
    Bytes pinned = 0;  // from `base` on
    bool over = false, stop = false;
    std::string error;
    std::thread thread;
  };
  using RangePtr = std::shared_ptr<Range>;
  using Lock = std::unique_lock<std::mutex>;

  void pin(const RangePtr& range);
  Status unpin(Range* range);
  RangePtr find(void* base, bool take);
  static Address piece_end(const Range& range, Address begin);

  Driver& driver_;
  std::atomic<int> device_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Address, RangePtr> ranges_;
};

}  // namespace glake::transfer
