// Copies between a device and pinned host memory. Throws Error.
#pragma once

#include <vector>

#include "base/types.h"

namespace glake {

// A stretch of device memory, and its place in the saved bytes.
struct SavedPart {
  Address at = 0;
  Bytes bytes = 0;
  Bytes offset = 0;
  bool block = false;  // it belongs to one live block, which the transfer engine knows
};

class BytesCopier {
 public:
  virtual ~BytesCopier() = default;

  // `host` is where offset `base` of the saved bytes lies. Copies may begin with the next submit().
  // The copies before it are one transfer, in one direction. The device has no other work
  // meanwhile.
  virtual void start(const std::vector<SavedPart>& parts, char* host, Bytes base, bool to_host) = 0;
  virtual void submit() = 0;
  // Waits for the first transfer that has not been waited for, if there is one.
  virtual void finish_oldest() = 0;
  virtual void finish() = 0;  // submits what was started, and waits for all
  // Called before host memory that copies may still use goes back to the host pool.
  virtual void record(void* host) = 0;
};

}  // namespace glake
