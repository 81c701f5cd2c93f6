// What a submitter calls when a chunk has ended, or a path is slower than planned.
#pragma once

#include "transfer/run/chunk_book.h"

namespace glake::transfer {

class ChunkListener {
 public:
  // A chunk of the transfer has landed, failed or been dropped. The lock is held, and may be given
  // up meanwhile.
  virtual void chunk_ended(ChunkBook::Lock* lock, const TransferPtr& transfer) = 0;
  // Under the lock: a hop of the run is slower than planned.
  virtual void fell_behind(const PathRun& run, size_t hop) = 0;
  // Without the lock: a copy of it may read and write for ever.
  virtual void given_up(const TransferPtr& transfer) = 0;

 protected:
  ~ChunkListener() = default;
};

}  // namespace glake::transfer
