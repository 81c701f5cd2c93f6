// Blocks of the other ranks (stage.h) that this rank has mapped.
#pragma once

#include <map>
#include <memory>
#include <utility>

#include "mapping.h"
#include "room.h"

namespace nccl {

class Others {
 public:
  explicit Others(std::shared_ptr<Room> room) : room_(std::move(room)) {}
  // `bytes` at an offset of a rank's block. nullptr: the block is shorter. Valid while `hold`
  // lives.
  const char* read(int rank, uint32_t block, uint64_t offset, uint64_t bytes,
                   std::shared_ptr<Mapping>* hold);

 private:
  std::shared_ptr<Room> room_;
  std::map<std::pair<int, uint32_t>, std::shared_ptr<Mapping>> small_;
};

}  // namespace nccl
