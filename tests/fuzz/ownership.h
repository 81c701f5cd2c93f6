// Bytes at their home addresses, and that each is held by one block: stitched views are followed to
// the granules behind them.
#pragma once

#include <map>

#include "../core/harness.h"
#include "core/process.h"

namespace fuzz {

class HomeBytes {
 public:
  void add(const glake::Block& b) {
    glake::Bytes total = 0;
    for (const glake::Segment* p = b.pieces; p != nullptr; p = p->piece_next) {
      auto after = held_.lower_bound(p->begin);
      CHECK_TEXT(after == held_.end() || p->end() <= after->first, "a byte is in two blocks");
      CHECK_TEXT(after == held_.begin() || std::prev(after)->second <= p->begin,
                 "a byte is in two blocks");
      held_.emplace(p->begin, p->end());
      total += p->size;
    }
    CHECK(total == b.size);
  }
  void remove(const glake::Block& b) {
    for (const glake::Segment* p = b.pieces; p != nullptr; p = p->piece_next) {
      CHECK(held_.erase(p->begin) == 1);
    }
  }

 private:
  std::map<glake::Address, glake::Address> held_;
};

}  // namespace fuzz
