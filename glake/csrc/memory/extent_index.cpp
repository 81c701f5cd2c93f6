#include "memory/extent_index.h"

#include <utility>

#include "memory/arena.h"

namespace glake {
namespace {

bool before(const Span* a, const Span* b) {
  return a->extent != b->extent ? a->extent < b->extent : a->begin < b->begin;
}

// Each node of the treap has a higher priority than the nodes below it. Addresses are regular, so
// their bits are mixed to make priorities look random.
uint64_t priority(const Span* s) {
  uint64_t bits = s->begin;
  bits = (bits ^ bits >> 32) * 0x9e3779b97f4a7c15ull;
  return (bits ^ bits >> 29) * 0xbf58476d1ce4e5b9ull;
}

}  // namespace

int ExtentIndex::bin_of(Bytes size) {
  uint64_t units = size / kAlignment;
  if (units < 16) return static_cast<int>(units);
  int octave = 63 - __builtin_clzll(units);
  return (octave - 3) * 16 + static_cast<int>((units >> (octave - 4)) & 15);
}

int ExtentIndex::next_bin(int from) const {
  if (from == kBins) return -1;
  int word = from >> 6;
  uint64_t bits = bits_[word] & (~uint64_t{0} << (from & 63));
  while (bits == 0) {
    if (++word == kBins / 64) return -1;
    bits = bits_[word];
  }
  return word * 64 + __builtin_ctzll(bits);
}

int ExtentIndex::last_bin(int before) const {
  if (before == 0) return -1;
  int word = (before - 1) >> 6;
  uint64_t bits = bits_[word] & (~uint64_t{0} >> (63 - ((before - 1) & 63)));
  while (bits == 0) {
    if (--word < 0) return -1;
    bits = bits_[word];
  }
  return word * 64 + 63 - __builtin_clzll(bits);
}

Span* ExtentIndex::first_of(int bin) const {
  if (bin < 0) return nullptr;
  Span* s = roots_[bin];
  for (; s->left != nullptr; s = s->left) ++steps_;
  return s;
}

Span* ExtentIndex::last_of(int bin) const {
  if (bin < 0) return nullptr;
  Span* s = roots_[bin];
  for (; s->right != nullptr; s = s->right) ++steps_;
  return s;
}

void ExtentIndex::insert(Span* head) {
  int bin = bin_of(head->extent);
  Span** link = &roots_[bin];
  const uint64_t mine = priority(head);
  while (*link != nullptr && priority(*link) > mine) {
    ++steps_;
    link = before(*link, head) ? &(*link)->right : &(*link)->left;
  }
  // The nodes that were here go to the two sides of the new one.
  Span* rest = std::exchange(*link, head);
  Span** low = &head->left;
  Span** high = &head->right;
  while (rest != nullptr) {
    ++steps_;
    if (before(rest, head)) {
      *low = rest;
      low = &rest->right;
      rest = *low;
    } else {
      *high = rest;
      high = &rest->left;
      rest = *high;
    }
  }
  *low = *high = nullptr;
  bits_[bin >> 6] |= uint64_t{1} << (bin & 63);
}

void ExtentIndex::erase(Span* head) {
  int bin = bin_of(head->extent);
  Span** link = &roots_[bin];
  while (*link != head) {
    ++steps_;
    link = before(*link, head) ? &(*link)->right : &(*link)->left;
  }
  Span* low = head->left;
  Span* high = head->right;
  while (low != nullptr && high != nullptr) {
    ++steps_;
    Span*& top = priority(low) > priority(high) ? low : high;
    *link = top;
    link = top == low ? &top->right : &top->left;
    top = *link;
  }
  *link = low != nullptr ? low : high;
  head->left = head->right = nullptr;
  if (roots_[bin] == nullptr) bits_[bin >> 6] &= ~(uint64_t{1} << (bin & 63));
}

Span* ExtentIndex::smallest(Bytes bytes) const {
  int bin = bin_of(bytes);
  Span* found = nullptr;
  for (Span* s = roots_[bin]; s != nullptr; ++steps_) {
    if (s->extent >= bytes) found = s;
    s = s->extent >= bytes ? s->left : s->right;
  }
  return found != nullptr ? found : first_of(next_bin(bin + 1));
}

Span* ExtentIndex::above(const Span* head) const {
  int bin = bin_of(head->extent);
  Span* found = nullptr;
  for (Span* s = roots_[bin]; s != nullptr; ++steps_) {
    if (before(head, s)) found = s;
    s = before(head, s) ? s->left : s->right;
  }
  return found != nullptr ? found : first_of(next_bin(bin + 1));
}

Span* ExtentIndex::below(const Span* head) const {
  int bin = bin_of(head->extent);
  Span* found = nullptr;
  for (Span* s = roots_[bin]; s != nullptr; ++steps_) {
    if (before(s, head)) found = s;
    s = before(s, head) ? s->right : s->left;
  }
  return found != nullptr ? found : last_of(last_bin(bin));
}

Span* ExtentIndex::largest() const { return last_of(last_bin(kBins)); }

}  // namespace glake
