// Shared memory through which the ranks of a communicator exchange bytes: blocks that a rank
// writes and the others read. Each block is a file in the room.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>

#include "room.h"

namespace nccl {

// Mapped memory; unmapped with it. nullptr: errno says why not.
class Mapping {
 public:
  static std::shared_ptr<Mapping> make(const std::string& path, size_t bytes);  // shared, a file
  static std::shared_ptr<Mapping> find(const std::string& path);
  // Private zeros, which take no memory before they are touched.
  static std::shared_ptr<Mapping> zeros(size_t bytes);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  char* data() const { return static_cast<char*>(data_); }
  size_t bytes() const { return bytes_; }

 private:
  Mapping(void* data, size_t bytes) : data_(data), bytes_(bytes) {}
  void* data_;
  size_t bytes_;
};

// A rank's own blocks.
class Stage {
 public:
  Stage(std::shared_ptr<Room> room, int rank) : room_(std::move(room)), rank_(rank) {}

  struct Block {
    uint32_t index = 0;
    std::shared_ptr<Mapping> memory;
  };
  ncclResult take(size_t bytes, Block* block);
  // Reused once every rank has passed so many collectives.
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
  std::deque<std::pair<uint64_t, Block>> until_passed_;  // as given
};

// Blocks of the other ranks, as this one has mapped them.
class Others {
 public:
  explicit Others(std::shared_ptr<Room> room) : room_(std::move(room)) {}
  // Bytes at an offset of a rank's block; nullptr: not so many are there. Valid while `hold` lives.
  const char* read(int rank, uint32_t block, uint64_t offset, uint64_t bytes,
                   std::shared_ptr<Mapping>* hold);

 private:
  std::shared_ptr<Room> room_;
  std::map<std::pair<int, uint32_t>, std::shared_ptr<Mapping>> small_;
};

}  // namespace nccl
