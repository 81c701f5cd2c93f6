// Free extents by (size, address). They are in bins of 1/16 octave under a bitmap. Each bin is a
// treap whose priorities are computed from the addresses. Every operation takes time in the
// logarithm of the number of extents in its bin. It allocates nothing, because the links are in the
// spans.
#pragma once

#include <cstdint>

#include "base/types.h"

namespace glake {

struct Span;

class ExtentIndex {
 public:
  // `head` is the extent's first span. Its `extent` and `begin` must not change until erase().
  void insert(Span* head);
  void erase(Span* head);

  // The smallest extent of at least `bytes`, and the lowest of equal ones; null: there is none.
  Span* smallest(Bytes bytes) const;
  // above(): the next larger extent, or the next higher of equal ones. below(): the reverse.
  Span* above(const Span* head) const;
  Span* below(const Span* head) const;
  Span* largest() const;

  // How many extents were looked at so far. Tests measure with it what an operation costs.
  uint64_t steps() const { return steps_; }

 private:
  static constexpr int kBins = 1024;
  static int bin_of(Bytes size);
  int next_bin(int from) const;
  int last_bin(int before) const;
  Span* first_of(int bin) const;
  Span* last_of(int bin) const;

  Span* roots_[kBins] = {};
  uint64_t bits_[kBins / 64] = {};  // one bit for each bin, set if the bin is not empty
  mutable uint64_t steps_ = 0;
};

}  // namespace glake
