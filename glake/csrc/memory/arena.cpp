#include "memory/arena.h"

#include <algorithm>
#include <string>

namespace glake {
namespace {

// Bits set, where all or none of a mask of neighbouring bits is the common case.
uint64_t bits_of(uint64_t bits, uint64_t mask) {
  if (bits == 0) return 0;
  if (bits == mask) {
    return 64 - static_cast<uint64_t>(__builtin_clzll(mask) + __builtin_ctzll(mask));
  }
  return static_cast<uint64_t>(__builtin_popcountll(bits));
}

}  // namespace

Arena::Arena(int id, Address base, Bytes size, SpanPool& pool)
    : id_(id), base_(base), size_(size), pool_(pool) {
  uint64_t granules = size / kGranule;
  edges_.resize(granules);
  free_bits_.resize((granules + 63) / 64, 0);
  full_words_.resize((free_bits_.size() + 63) / 64, 0);
  first_ = pool_.make();
  first_->begin = base;
  first_->size = size;
  link_absent(first_);
}

void Arena::set_edges(Span* head, Address begin, Address end) {
  // Called with the head to enter the extent, with nullptr to erase it.
  uint64_t first = granule_of(begin);
  uint64_t last = granule_of(end);
  bool starts_inside = begin % kGranule != 0;
  bool ends_inside = end % kGranule != 0;
  if (starts_inside && first < last) {
    edges_[first].suffix =
        head != nullptr ? static_cast<uint32_t>(granule_at(first + 1) - begin) : 0;
    edges_[first].suffix_extent = head;
  }
  if (ends_inside && (first < last || !starts_inside)) {
    edges_[last].prefix = head != nullptr ? static_cast<uint32_t>(end - granule_at(last)) : 0;
    edges_[last].prefix_extent = head;
  }
  uint64_t whole = first + (starts_inside ? 1 : 0);
  if (whole < last) edges_[whole].whole_extent = head;
}

void Arena::index(Span* head, Span* tail) {
  head->mate = tail;
  tail->mate = head;
  head->extent = tail->end() - head->begin;
  extents_.insert(head);
  set_edges(head, head->begin, tail->end());
}

void Arena::unindex(Span* head) {
  extents_.erase(head);
  set_edges(nullptr, head->begin, head->begin + head->extent);
}

Span* Arena::split(Span* s, Address at) {
  Span* right = pool_.make();
  right->begin = at;
  right->size = s->end() - at;
  right->state = s->state;
  right->tickets = s->tickets;
  right->prev = s;
  right->next = s->next;
  if (s->next != nullptr) s->next->prev = right;
  s->next = right;
  s->size = at - s->begin;
  return right;
}

Span* Arena::absorb(Span* left, Span* right) {
  left->size += right->size;
  left->next = right->next;
  if (right->next != nullptr) right->next->prev = left;
  pool_.recycle(right);
  return left;
}

Span* Arena::take(Span* head, Address begin, Bytes size) {
  Span* tail = head->mate;
  Address end = begin + size;
  unindex(head);
  Span* first = head;
  while (first->end() <= begin) first = first->next;
  if (first->begin < begin) {
    Span* right = split(first, begin);
    if (tail == first) tail = right;
    first = right;
  }
  Span* last = first;
  while (last->end() < end) last = last->next;
  if (last->end() > end) {
    Span* right = split(last, end);
    if (tail == last) tail = right;
  }
  Span* left_tail = first == head ? nullptr : first->prev;
  Span* right_head = last == tail ? nullptr : last->next;
  while (first->size < size) absorb(first, first->next);
  first->state = SpanState::kBusy;
  first->tickets.clear();
  first->piece_next = nullptr;
  if (left_tail != nullptr) index(head, left_tail);
  if (right_head != nullptr) index(right_head, tail);
  mark_busy(begin, end);
  free_ -= size;
  return first;
}

// True if the two may become one span; `into` then has the tickets of both.
bool Arena::merge_tickets(Span* into, const Span* from, const Completion* completion) {
  if (into->state != SpanState::kFree || from->state != SpanState::kFree) return false;
  if (completion == nullptr) {
    if (!into->tickets.same_streams(from->tickets)) return false;
    for (Ticket t : from->tickets) into->tickets.add(t);
    return true;
  }
  if (into->tickets == from->tickets) return true;
  if (!completion->complete(into->tickets) || !completion->complete(from->tickets)) return false;
  into->tickets.clear();
  return true;
}

void Arena::give(Span* s, const Tickets& tickets, const Completion* completion) {
  s->state = SpanState::kFree;
  s->tickets = tickets;
  s->piece_next = nullptr;
  Address begin = s->begin, end = s->end();
  free_ += s->size;
  Span* head = s;
  Span* tail = s;
  Span* left = s->prev;
  Span* right = s->next;
  if (left != nullptr && left->state == SpanState::kFree) {
    head = left->mate;
    unindex(head);
  }
  if (right != nullptr && right->state == SpanState::kFree) {
    tail = right->mate;
    unindex(right);
  }
  // The new span with its neighbours, then each neighbour with the next beyond it.
  for (Span* at = s; tail != at && merge_tickets(at, at->next, completion);) {
    if (tail == at->next) tail = at;
    absorb(at, at->next);
  }
  for (Span* at = s; head != at && merge_tickets(at->prev, at, completion);) {
    if (tail == at) tail = at->prev;
    at = absorb(at->prev, at);
  }
  index(head, tail);
  mark_free(begin, end, head->begin, head->begin + head->extent);
}

void Arena::mark_free(Address begin, Address end, Address extent_begin, Address extent_end) {
  uint64_t first = granule_of(begin);
  uint64_t last = granule_of(end - 1) + 1;
  if (granule_at(first) < extent_begin) ++first;
  if (granule_at(last) > extent_end) --last;
  for_each_word(first, last, [this](uint64_t& word, uint64_t mask) {
    whole_free_ += bits_of(mask & ~word, mask);
    word |= mask;
  });
}

void Arena::mark_busy(Address begin, Address end) {
  for_each_word(granule_of(begin), granule_of(end - 1) + 1, [this](uint64_t& word, uint64_t mask) {
    whole_free_ -= bits_of(mask & word, mask);
    word &= ~mask;
  });
}

// Calls change(word, mask) for the words of granules [first, last).
template <typename Change>
void Arena::for_each_word(uint64_t first, uint64_t last, Change&& change) {
  while (first < last) {
    uint64_t in_word = first & 63;
    uint64_t n = std::min(last - first, 64 - in_word);
    uint64_t mask = (n == 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1) << in_word;
    uint64_t word = first >> 6;
    change(free_bits_[word], mask);
    uint64_t bit = uint64_t{1} << (word & 63);
    if (free_bits_[word] == ~uint64_t{0}) {
      full_words_[word >> 6] |= bit;
    } else {
      full_words_[word >> 6] &= ~bit;
    }
    first += n;
  }
}

uint64_t Arena::run(uint64_t g, uint64_t most, uint64_t flip) const {
  most = std::min(most, granule_count() - g);
  uint64_t length = 0;
  while (length < most) {
    uint64_t at = g + length;
    uint64_t stop = (free_bits_[at >> 6] ^ flip) >> (at & 63);
    uint64_t left = 64 - (at & 63);
    uint64_t here = stop == 0 ? left : static_cast<uint64_t>(__builtin_ctzll(stop));
    length += here;
    if (here < left) break;
  }
  return std::min(length, most);
}

uint64_t Arena::free_run(uint64_t g, uint64_t most) const { return run(g, most, ~uint64_t{0}); }
uint64_t Arena::busy_run(uint64_t g, uint64_t most) const { return run(g, most, 0); }

Span* Arena::extent_at_prefix(uint64_t g) const {
  if (!whole_free(g)) return edges_[g].prefix_extent;
  // Extents never touch, so a run of free granules is one extent's: find its first, a word at a
  // time, over wholly free words 64 at a time.
  uint64_t word = g >> 6;
  uint64_t busy = ~free_bits_[word] & ((uint64_t{2} << (g & 63)) - 1);
  while (busy == 0 && word != 0) {
    --word;
    uint64_t gaps = ~full_words_[word >> 6] & ((uint64_t{2} << (word & 63)) - 1);
    if (gaps == 0) {
      word &= ~uint64_t{63};
      continue;
    }
    word = (word & ~uint64_t{63}) + 63 - static_cast<uint64_t>(__builtin_clzll(gaps));
    busy = ~free_bits_[word];
  }
  uint64_t first = busy == 0 ? 0 : word * 64 + 64 - static_cast<uint64_t>(__builtin_clzll(busy));
  return edges_[first].whole_extent;
}

Span* Arena::extent_at_suffix(uint64_t g) const {
  return whole_free(g) ? extent_at_prefix(g) : edges_[g].suffix_extent;
}

Span* Arena::free_span_at(Address a) const {
  uint64_t g = granule_of(a);
  Span* s = a % kGranule == 0 ? extent_at_prefix(g) : extent_at_suffix(g);
  while (s->end() <= a) s = s->next;
  return s;
}

void Arena::link_absent(Span* s) {
  s->state = SpanState::kAbsent;
  s->tickets.clear();
  s->left = nullptr;
  s->right = absent_;
  if (absent_ != nullptr) absent_->left = s;
  absent_ = s;
}

void Arena::unlink_absent(Span* s) {
  (s->left != nullptr ? s->left->right : absent_) = s->right;
  if (s->right != nullptr) s->right->left = s->left;
  s->left = s->right = nullptr;
}

Span* Arena::claim(Span* absent, Address begin, Bytes size) {
  unlink_absent(absent);
  Span* mine = absent;
  if (mine->begin < begin) {
    mine = split(absent, begin);
    link_absent(absent);
  }
  if (mine->size > size) link_absent(split(mine, begin + size));
  mine->state = SpanState::kBusy;
  return mine;
}

void Arena::disclaim(Span* s) {
  if (s->next != nullptr && s->next->state == SpanState::kAbsent) {
    unlink_absent(s->next);
    absorb(s, s->next);
  }
  if (s->prev != nullptr && s->prev->state == SpanState::kAbsent) {
    Span* left = s->prev;
    unlink_absent(left);
    s = absorb(left, s);
  }
  link_absent(s);
}

std::string Arena::check() const {
  Address at = base_;
  Bytes free = 0;
  uint64_t whole = 0;
  const Span* head = nullptr;
  const Span* before = nullptr;
  for (const Span* s = first_; s != nullptr; before = s, s = s->next) {
    if (s->begin != at || s->size == 0) return "spans do not tile the arena";
    if (s->prev != before) return "span links are broken";
    at = s->end();
    if (s->state == SpanState::kAbsent && before != nullptr &&
        before->state == SpanState::kAbsent) {
      return "neighbouring absent spans are not merged";
    }
    if (s->state != SpanState::kFree) {
      head = nullptr;
      continue;
    }
    free += s->size;
    if (head == nullptr) head = s;
    bool last = s->next == nullptr || s->next->state != SpanState::kFree;
    if (!last) continue;
    if (head->mate != s || s->mate != head || head->extent != s->end() - head->begin) {
      return "an extent's ends disagree";
    }
    uint64_t first = granule_of(round_up(head->begin - base_, kGranule) + base_);
    uint64_t end = granule_of(s->end());
    for (uint64_t g = first; g < end; ++g) {
      ++whole;
      if (!whole_free(g)) return "a free granule is marked busy";
    }
  }
  if (at != base_ + size_) return "spans do not reach the arena's end";
  if (free != free_) return "free bytes are miscounted";
  if (whole != whole_free_) return "whole free granules are miscounted";
  return "";
}

}  // namespace glake
