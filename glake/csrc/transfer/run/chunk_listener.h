// A submitter calls this when a chunk has ended, or when a path is slower than planned.
#pragma once

#include <memory>
#include <mutex>

#include "transfer/run/transfer.h"

namespace glake::transfer {

class ChunkListener {
 public:
  // A chunk of the transfer has arrived, failed or been dropped. The lock is held, and may be
  // released meanwhile.
  virtual void chunk_ended(std::unique_lock<std::mutex>* lock,
                           const std::shared_ptr<Transfer>& transfer) = 0;
  // Called under the lock: a hop of the run is slower than planned.
  virtual void fell_behind(const PathRun& run, size_t hop) = 0;
  // Called without the lock: a copy of the transfer may read and write for ever.
  virtual void given_up(const std::shared_ptr<Transfer>& transfer) = 0;

 protected:
  ~ChunkListener() = default;
};

}  // namespace glake::transfer
