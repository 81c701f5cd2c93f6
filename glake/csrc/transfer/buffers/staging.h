// Copies chunks between pageable memory and pinned buffers. One thread copies fewer bytes a second
// than a PCIe link does, so a few threads share a long chunk.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "transfer/buffers/parts.h"

namespace glake::transfer {

class Staging {
 public:
  enum class Way { kIn, kOut };  // into the pinned buffer, or out of it

  Staging() = default;
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging() { close(); }

  // Copies between the bytes `range` of a transfer and the buffer at `buffer`. Returns when all are
  // copied.
  void copy(const Parts& parts, Range range, Address buffer, Way way);
  // Ends the threads. No copy may be under way or begin later.
  void close();

 private:
  struct Batch {
    const Parts& parts;
    Bytes origin;  // the byte of the transfer at the buffer's begin
    Address buffer;
    Way way;
    size_t left;  // slices that are not copied yet; guarded by the mutex
  };
  struct Slice {
    Batch* batch;
    Range range;
  };
  using Lock = std::unique_lock<std::mutex>;

  static void copy_slice(const Batch& batch, Range range, std::vector<Piece>* pieces);
  void run(size_t number);
  void take_one(Lock* lock, std::vector<Piece>* pieces);

  std::mutex mutex_;
  std::condition_variable work_, done_;
  std::deque<Slice> slices_;
  std::vector<std::thread> threads_;
  bool stopping_ = false;
};

}  // namespace glake::transfer
