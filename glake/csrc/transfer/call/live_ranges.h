// Memory that copies outside any stream's order use. Nobody waits for such a copy, so the memory
// must not be freed under it, or another would be given what it writes to.
#pragma once

#include <functional>
#include <mutex>
#include <vector>

#include "transfer/buffers/allocator.h"
#include "transfer/buffers/parts.h"

namespace glake::transfer {

class LiveRanges {
 public:
  explicit LiveRanges(Allocator& allocator) : allocator_(allocator) {}

  // Both ends of a copy, until `settled` says that nothing reads or writes them any more.
  void add(const Parts& parts, std::function<bool()> settled);
  // Whether a copy uses any of these bytes.
  bool use(Address begin, Address end);
  void close();

 private:
  struct Entry {
    Parts parts;
    std::function<bool()> settled;
  };

  Allocator& allocator_;
  std::mutex mutex_;
  std::vector<Entry> entries_;
};

}  // namespace glake::transfer
