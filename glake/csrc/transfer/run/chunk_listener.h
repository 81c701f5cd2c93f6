// A submitter calls this when a chunk has ended, or when a path is slower than planned.
#pragma once

#include "transfer/run/chunk_book.h"

namespace glake::transfer {

class ChunkListener {
 public:
  // A chunk of the transfer has arrived, failed or been dropped. The lock is held, and may be
  // released meanwhile.
  virtual void chunk_ended(ChunkBook::Lock* lock, const TransferPtr& transfer) = 0;
  // Called under the lock: a hop of the run is slower than planned.
  virtual void fell_behind(const PathRun& run, size_t hop) = 0;
  // Called without the lock: a copy of the transfer may read and write for ever.
  virtual void given_up(const TransferPtr& transfer) = 0;

 protected:
  ~ChunkListener() = default;
};

}  // namespace glake::transfer
