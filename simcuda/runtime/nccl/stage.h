// Shared memory through which the ranks of a communicator exchange bytes. A rank writes its blocks,
// and the others read them. Each block is a file in the room.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "mapping.h"
#include "room.h"

namespace nccl {

// A rank's own blocks.
class Stage {
 public:
  // Bytes of the largest small block. Small blocks are never given back to the system, and readers
  // keep them mapped, because there are few.
  static constexpr size_t kSmall = size_t{4} << 20;
  // The file of a rank's block.
  static std::string path_of(const Room& room, int rank, uint32_t block);

  Stage(std::shared_ptr<Room> room, int rank) : room_(std::move(room)), rank_(rank) {}

  struct Block {
    uint32_t index = 0;
    std::shared_ptr<Mapping> memory;
  };
  ncclResult take(size_t bytes, Block* block);
  // Keeps a block for reuse, once every rank has passed this number of collectives.
  void give(Block block, uint64_t collectives);

 private:
  void retire();
  void trim();

  std::shared_ptr<Room> room_;
  const int rank_;
  std::mutex mutex_;
  uint32_t next_ = 0;
  size_t idle_bytes_ = 0;
  std::multimap<size_t, Block> idle_;                    // by size
  std::deque<std::pair<uint64_t, Block>> until_passed_;  // in the order of give()
};

}  // namespace nccl
