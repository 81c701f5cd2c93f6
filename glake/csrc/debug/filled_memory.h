// Idle memory of one device that was filled when it was freed and should not have changed since.
// Its lock is the last one to be taken.
#pragma once

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/types.h"
#include "debug/findings.h"

namespace glake {

class FilledMemory {
 public:
  // Bytes at their home addresses, up to `end`. `offset` is the distance of the stretch's first
  // byte from the caller's pointer of the block that was freed there.
  struct Stretch {
    Address end;
    HoldingPtr block;
    int64_t offset;
  };
  using Stretches = std::vector<std::pair<Address, Stretch>>;  // by their first byte

  void add(Address begin, const Stretch& stretch);
  // Forgets the filled memory in [begin, end), and returns it.
  Stretches cut(Address begin, Address end);
  Stretches all() const;
  // The block that was freed at the caller's pointer; null: none is known.
  HoldingPtr freed_at(Address ptr) const;

 private:
  mutable std::mutex mutex_;
  std::map<Address, Stretch> stretches_;
};

}  // namespace glake
