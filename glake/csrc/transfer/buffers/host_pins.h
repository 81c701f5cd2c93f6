// Callers' host memory made known to the driver, piece by piece: a pinned page is copied from
// without a stop at a buffer of ours. The driver holds locks of the whole machine while it pins, so
// pieces are short, and their pages are there before it begins.
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

  // Calls are made in the context of a device that is open.
  void use(int device) { device_ = device; }
  // Throw Error. add() returns when all is pinned, or at once with `background`.
  void add(void* base, Bytes bytes, bool background);
  // Ends the pinning if it is under way, and unpins.
  void remove(void* base);
  // GLAKE_OK once all is pinned, GLAKE_BUSY_TIMEOUT, or what ended it, with its text.
  int wait(void* base, uint64_t timeout_ns, std::string* text);
  void progress(void* base, Bytes* pinned, Bytes* total);
  // Unpins all. Throws Error; may be tried again.
  void close();

 private:
  struct Range {
    Address base;
    Bytes bytes;
    Bytes pinned = 0;  // from the base on
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
