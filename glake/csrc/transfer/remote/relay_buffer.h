// Memory on one GPU of a relay service, for one client.
#pragma once

#include "transfer/remote/relay_gpus.h"

namespace glake::transfer {

// A buffer in one GPU's memory. The client's process may map it. GPUs of the service that reach it
// may be given access.
class RelayBuffer {
 public:
  // Throws Error: GLAKE_OUT_OF_MEMORY if all of the GPU's buffers are in use.
  RelayBuffer(RelayGpus& gpus, int gpu, Bytes bytes);
  RelayBuffer(const RelayBuffer&) = delete;
  RelayBuffer& operator=(const RelayBuffer&) = delete;
  ~RelayBuffer();  // none of its copies may be under way

  Address at() const { return at_; }
  bool holds(Bytes from, Bytes bytes) const { return from <= bytes_ && bytes <= bytes_ - from; }
  // Grants access to every GPU of the service that reaches it and is open by now. Throws Error.
  void grant();
  Descriptor exported();  // throws Error

 private:
  void map();
  void drop();

  RelayGpus& gpus_;
  const int gpu_;
  const Bytes bytes_;
  Handle handle_ = 0;
  Address at_ = 0;
  bool mapped_ = false;
};

}  // namespace glake::transfer
