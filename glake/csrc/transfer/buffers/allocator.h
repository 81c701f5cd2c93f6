// What the transfer engine needs of glake's allocator. The process implements it.
#pragma once

#include "base/types.h"
#include "memory/block.h"

namespace glake {
class HostPool;
}

namespace glake::transfer {

class Allocator {
 public:
  virtual ~Allocator() = default;

  // Opens the device's context. It stays open until the process closes its devices, after the
  // engine.
  virtual void open_device(int device) = 0;
  // A device that is in use already; 0 if none is.
  virtual int used_device() = 0;
  // Gives GPU `from` access to glake's memory of `gpu`.
  virtual void enable_peer(int gpu, int from) = 0;
  // Allocates a block for relay buffers. The kind or region that the calling thread has chosen for
  // its own blocks does not count here.
  virtual Address allocate(int gpu, Bytes bytes, StreamHandle stream) = 0;
  virtual void free(Address block) = 0;
  // Called before a stream on which blocks were allocated is destroyed.
  virtual void forget_stream(int gpu, StreamHandle stream) = 0;
  virtual HostPool& host() = 0;
  // The live block that holds the byte at `at`.
  virtual Owned owned(Address at) = 0;
  // Whether some of the live blocks may be paused.
  virtual bool any_paused() = 0;
  // While true, each free asks the engine whether a copy still uses the block.
  virtual void ask_before_free(bool ask) = 0;
};

}  // namespace glake::transfer
