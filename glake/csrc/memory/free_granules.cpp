#include "memory/free_granules.h"

#include <algorithm>

namespace glake {
namespace {

// Counts the set bits. Most often all or none of a mask of neighbouring bits are set.
uint64_t bits_of(uint64_t bits, uint64_t mask) {
  if (bits == 0) return 0;
  if (bits == mask) {
    return 64 - static_cast<uint64_t>(__builtin_clzll(mask) + __builtin_ctzll(mask));
  }
  return static_cast<uint64_t>(__builtin_popcountll(bits));
}

}  // namespace

FreeGranules::FreeGranules(uint64_t granules)
    : granules_(granules),
      bits_((granules + 63) / 64, 0),
      full_words_((bits_.size() + 63) / 64, 0) {}

void FreeGranules::add(uint64_t first, uint64_t last) {
  for_each_word(first, last, [this](uint64_t& word, uint64_t mask) {
    count_ += bits_of(mask & ~word, mask);
    word |= mask;
  });
}

void FreeGranules::remove(uint64_t first, uint64_t last) {
  for_each_word(first, last, [this](uint64_t& word, uint64_t mask) {
    count_ -= bits_of(mask & word, mask);
    word &= ~mask;
  });
}

// Calls change(word, mask) for the words of granules [first, last).
template <typename Change>
void FreeGranules::for_each_word(uint64_t first, uint64_t last, Change&& change) {
  while (first < last) {
    uint64_t in_word = first & 63;
    uint64_t n = std::min(last - first, 64 - in_word);
    uint64_t mask = (n == 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1) << in_word;
    uint64_t word = first >> 6;
    change(bits_[word], mask);
    uint64_t bit = uint64_t{1} << (word & 63);
    if (bits_[word] == ~uint64_t{0}) {
      full_words_[word >> 6] |= bit;
    } else {
      full_words_[word >> 6] &= ~bit;
    }
    first += n;
  }
}

uint64_t FreeGranules::run(uint64_t g, uint64_t most, uint64_t flip) const {
  most = std::min(most, granules_ - g);
  uint64_t length = 0;
  while (length < most) {
    uint64_t at = g + length;
    uint64_t stop = (bits_[at >> 6] ^ flip) >> (at & 63);
    uint64_t left = 64 - (at & 63);
    uint64_t here = stop == 0 ? left : static_cast<uint64_t>(__builtin_ctzll(stop));
    length += here;
    if (here < left) break;
  }
  return std::min(length, most);
}

uint64_t FreeGranules::first_of_run(uint64_t g) const {
  // Goes backwards a word at a time, and over full words 64 at a time.
  uint64_t word = g >> 6;
  uint64_t busy = ~bits_[word] & ((uint64_t{2} << (g & 63)) - 1);
  while (busy == 0 && word != 0) {
    --word;
    uint64_t gaps = ~full_words_[word >> 6] & ((uint64_t{2} << (word & 63)) - 1);
    if (gaps == 0) {
      word &= ~uint64_t{63};
      continue;
    }
    word = (word & ~uint64_t{63}) + 63 - static_cast<uint64_t>(__builtin_clzll(gaps));
    busy = ~bits_[word];
  }
  return busy == 0 ? 0 : word * 64 + 64 - static_cast<uint64_t>(__builtin_clzll(busy));
}

}  // namespace glake
