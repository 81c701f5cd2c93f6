// Checks that no byte is in two blocks. Bytes are identified by their home addresses: for a
// stitched block, these are the addresses of the granules behind its view.
#pragma once

#include <map>

#include "../core/harness.h"
#include "process/process.h"

namespace fuzz {

class HomeBytes {
 public:
  void add(const glake::Block& b) {
    if (b.allocation != nullptr)
      return add(b.allocation->base, b.allocation->base + b.allocation->bytes);
    glake::Bytes total = 0;
    for (const glake::Span* p = b.pieces; p != nullptr; p = p->piece_next) {
      add(p->begin, p->end());
      total += p->size;
    }
    CHECK(total == b.size);
  }
  void remove(const glake::Block& b) {
    if (b.allocation != nullptr) CHECK(held_.erase(b.allocation->base) == 1);
    for (const glake::Span* p = b.pieces; p != nullptr; p = p->piece_next) {
      CHECK(held_.erase(p->begin) == 1);
    }
  }

 private:
  void add(glake::Address begin, glake::Address end) {
    auto after = held_.lower_bound(begin);
    CHECK_TEXT(after == held_.end() || end <= after->first, "a byte is in two blocks");
    CHECK_TEXT(after == held_.begin() || std::prev(after)->second <= begin,
               "a byte is in two blocks");
    held_.emplace(begin, end);
  }
  std::map<glake::Address, glake::Address> held_;
};

}  // namespace fuzz
