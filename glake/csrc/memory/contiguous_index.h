// Process-wide: from an address to the chunk that holds it.
#pragma once

#include <map>
#include <mutex>
#include <utility>

#include "base/types.h"
#include "memory/contiguous_pool.h"

namespace glake {

class ContiguousIndex {
 public:
  static void add(Chunk* chunk);
  static void remove(Chunk* chunk);
  // The record of the chunk at exactly `ptr`; if `ptr` is inside one, null and *inside is set.
  static Block* find(Address ptr, bool* inside);
  static Block* around(Address ptr);  // of the chunk that holds `ptr`; null: none

 private:
  static ContiguousIndex& instance();
  std::mutex mutex_;
  std::map<Address, std::pair<Bytes, Block*>> chunks_;
};

}  // namespace glake
