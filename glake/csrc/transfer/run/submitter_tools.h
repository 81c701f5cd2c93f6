// What submitters work with; all of it outlives them.
#pragma once

#include "transfer/buffers/devices.h"
#include "transfer/buffers/slots.h"
#include "transfer/buffers/staging.h"
#include "transfer/remote/remote_gpus.h"
#include "transfer/run/chunk_book.h"
#include "transfer/run/copy_kernel.h"

namespace glake::transfer {

struct SubmitterTools {
  Driver& driver;
  Devices& devices;
  Slots& slots;
  Staging& staging;
  CopyKernel& kernel;
  RemoteGpus& remote;
  ChunkBook& book;
  uint64_t copy_ns;  // what starting a copy costs
};

}  // namespace glake::transfer
