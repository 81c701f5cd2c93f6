// Which of an arena's granules are wholly free. There is a bit for each granule. A second set has a
// bit for each word of the first, which says that the word is full, so that long runs are crossed
// in few steps.
#pragma once

#include <cstdint>
#include <vector>

namespace glake {

class FreeGranules {
 public:
  // At first none of the `granules` is free.
  explicit FreeGranules(uint64_t granules);

  bool has(uint64_t g) const { return (bits_[g >> 6] >> (g & 63)) & 1; }
  uint64_t count() const { return count_; }
  // free_run(): how many granules from g on are free, up to `most`. busy_run(): how many are not.
  uint64_t free_run(uint64_t g, uint64_t most) const { return run(g, most, ~uint64_t{0}); }
  uint64_t busy_run(uint64_t g, uint64_t most) const { return run(g, most, 0); }
  // The first granule of the free run that holds g. g must be free.
  uint64_t first_of_run(uint64_t g) const;

  // The granules [first, last) need not have been free or busy before.
  void add(uint64_t first, uint64_t last);
  void remove(uint64_t first, uint64_t last);

 private:
  uint64_t run(uint64_t g, uint64_t most, uint64_t flip) const;
  template <typename Change>
  void for_each_word(uint64_t first, uint64_t last, Change&& change);

  uint64_t granules_;
  std::vector<uint64_t> bits_;
  std::vector<uint64_t> full_words_;  // one bit for each word of bits_, set if all its bits are
  uint64_t count_ = 0;
};

}  // namespace glake
