// The virtual ranges of a heap, and which pages share memory. Callers hold the device's hot lock.
#pragma once

#include <map>
#include <memory>
#include <unordered_map>

#include "memory/virtual_range.h"

namespace glake {

class VirtualBook {
 public:
  using Ranges = std::map<Address, std::unique_ptr<VirtualRange>>;

  VirtualRange& add(std::unique_ptr<VirtualRange> range);
  void remove(VirtualRange& range) { ranges_.erase(range.base()); }
  // The range that begins at `base`, or that contains `at`; null: there is none.
  VirtualRange* find(Address base) const;
  VirtualRange* around(Address at) const;
  const Ranges& ranges() const { return ranges_; }
  bool empty() const { return ranges_.empty(); }

  // How many pages share a block. leave() returns true for the last one.
  void join(const Block* block) { ++more_[block]; }
  bool leave(const Block* block);
  uint64_t pages_of(const Block* block) const;

  uint64_t backed() const;  // pages with a block, those that share one too
  uint64_t shared() const;  // pages beyond the first of each block
  uint64_t idle() const;    // pages that are mapped and not backed

 private:
  Ranges ranges_;
  std::unordered_map<const Block*, uint64_t> more_;  // pages beyond the first
};

}  // namespace glake
