// What torch does when memory runs out: it tells the observers and the caller.
#pragma once

#include <array>
#include <mutex>
#include <string>
#include <vector>

#include "torch/cuda/foreign.h"
#include "torch/library.h"

namespace glake::adapter {

class OomObservers {
 public:
  OomObservers(const CudaLibrary& library, const ForeignPools& foreign)
      : library_(library), foreign_(foreign) {}

  void attach_oom(native::OutOfMemoryObserver observer);
  void attach_rejection(OomRejectionObserver observer);
  // Tells all observers, and throws. `text` is glake's message.
  [[noreturn]] void refuse(size_t bytes, int device, const std::string& text);

  // The library counts a request as out of memory whenever it has no memory for it. forgive() says
  // that this many times were no refusals: the request was served later, or counted again.
  void forgive(int device, int64_t times);
  int64_t forgiven(int device) const;

  // torch calls it a rejection if the limit refused a request, and not the device.
  int64_t rejections(int device) const;
  void reset_counts(int device);

 private:
  struct Room {
    size_t free = 0, total = 0, allowed = 0;  // of the device
    size_t allocated = 0, reserved = 0;       // by torch
  };
  Room room(int device) const;
  static std::string account(size_t bytes, int device, const Room& room, const std::string& text);

  const CudaLibrary& library_;
  const ForeignPools& foreign_;
  mutable std::mutex mutex_;  // guards what follows; nothing is called with it held
  std::array<int64_t, kMaxDevices> rejections_{}, forgiven_{};
  std::vector<native::OutOfMemoryObserver> on_oom_;
  std::vector<OomRejectionObserver> on_rejection_;
};

}  // namespace glake::adapter
