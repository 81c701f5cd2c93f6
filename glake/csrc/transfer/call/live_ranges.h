// The memory of copies outside stream order. Nobody waits for such a copy. So its memory must not
// be freed while it runs, or a new owner of the memory would get what the copy writes.
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

  // Adds both ends of a copy. They stay until `settled` says that nothing reads or writes them any
  // more.
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
