// The GPUs of a relay service. Each has one context for all clients, and a limit for its buffers.
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
  void open(int gpu);               // opens its context once; throws Error
  int any();                        // an open GPU; if none is open, opens the first; throws Error
  std::vector<int> reach(int gpu);  // the open GPUs that reach its memory, itself too
  void take(int gpu, Bytes bytes);  // takes room for buffers; throws Error
  void give(int gpu, Bytes bytes);
  // Notes an error that the GPU's context does not survive. This process can serve no more then.
  void note(int gpu, Status status);
  std::string lost();                                   // the first noted error; empty: none
  int lost_event() const { return lost_event_.get(); }  // readable once an error was noted

 private:
  std::unique_ptr<Driver> driver_;
  std::mutex mutex_;
  std::string lost_;
  Descriptor lost_event_;
  std::map<int, Bytes> open_;  // the bytes of buffers on each GPU with an open context
};

}  // namespace glake::transfer
