// The GPUs of a relay service: one context each, for all of its clients, and how much of each may
// be buffers.
#pragma once

#include <map>
#include <mutex>
#include <vector>

#include "driver/driver.h"
#include "transfer/remote/wire.h"

namespace glake::transfer {

class RelayGpus {
 public:
  // Opens no context yet. Throws Error.
  explicit RelayGpus(const std::string& driver);
  RelayGpus(const RelayGpus&) = delete;
  RelayGpus& operator=(const RelayGpus&) = delete;
  ~RelayGpus();

  Driver& driver() { return *driver_; }
  int count() const { return driver_->device_count(); }
  void open(int gpu);               // its context, once; throws Error
  int any();                        // one that is open, or the first, opened; throws Error
  std::vector<int> reach(int gpu);  // those open that reach its memory, itself among them
  void take(int gpu, Bytes bytes);  // of its buffers' room; throws Error
  void give(int gpu, Bytes bytes);
  // An error that its context does not survive: this process can serve no more.
  void note(int gpu, Status status);
  std::string lost();                                   // what was noted first; empty: nothing
  int lost_event() const { return lost_event_.get(); }  // readable once something was

 private:
  std::unique_ptr<Driver> driver_;
  std::mutex mutex_;
  std::string lost_;
  Descriptor lost_event_;
  std::map<int, Bytes> open_;  // bytes of buffers, of each GPU whose context is open
};

}  // namespace glake::transfer
