// Free extents by (size, address): bins of 1/16 octave under a bitmap, each a treap whose
// priorities follow from the addresses. Every operation takes time in the logarithm of the extents
// in its bin and allocates nothing: the links are in the spans.
#pragma once

#include <cstdint>

#include "base/types.h"

namespace glake {

struct Span;

class ExtentIndex {
 public:
  // By the extent's first span, whose `extent` and `begin` must not change until erase().
  void insert(Span* head);
  void erase(Span* head);

  // The smallest extent of at least `bytes`, the lowest of equals; null: there is none.
  Span* smallest(Bytes bytes) const;
  // The next larger one, or of equals the next higher; and the reverse.
  Span* above(const Span* head) const;
  Span* below(const Span* head) const;
  Span* largest() const;

  // Extents looked at so far, by which tests see what an operation costs.
  uint64_t steps() const { return steps_; }

 private:
  static constexpr int kBins = 1024;
  static int bin_of(Bytes size);
  int next_bin(int from) const;
  int last_bin(int before) const;
  Span* first_of(int bin) const;
  Span* last_of(int bin) const;

  Span* roots_[kBins] = {};
  uint64_t bits_[kBins / 64] = {};  // a bit for each bin that is not empty
  mutable uint64_t steps_ = 0;
};

}  // namespace glake
