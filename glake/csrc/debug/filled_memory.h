// Idle memory of one device that was filled when it was freed, and should still hold that. Its lock
// is taken under every other.
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
  // Home bytes up to `end`; `offset` of the first from the caller's pointer of the block that was
  // freed there.
  struct Stretch {
    Address end;
    HoldingPtr block;
    int64_t offset;
  };
  using Stretches = std::vector<std::pair<Address, Stretch>>;  // by their first byte

  void add(Address begin, const Stretch& stretch);
  // Takes what is filled in [begin, end) off the books.
  Stretches cut(Address begin, Address end);
  Stretches all() const;
  // The block that was freed at the caller's pointer; null: none that is known.
  HoldingPtr freed_at(Address ptr) const;

 private:
  mutable std::mutex mutex_;
  std::map<Address, Stretch> stretches_;
};

}  // namespace glake
