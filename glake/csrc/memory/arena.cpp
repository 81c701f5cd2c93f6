#include "memory/arena.h"

#include <algorithm>
#include <string>

namespace glake {
Arena::Arena(int id, Address base, Bytes size, SpanPool& pool)
    : id_(id), base_(base), size_(size), pool_(pool), whole_(size / kGranule) {
  edges_.resize(size / kGranule);
  first_ = pool_.make();
  first_->begin = base;
  first_->size = size;
  link_absent(first_);
}

void Arena::set_edges(Span* head, Address begin, Address end) {
  // With the extent's head it enters the extent's edges, and with nullptr it erases them.
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
  pool_.reserve(2);  // for the splits below; nothing has changed yet
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
  whole_.remove(granule_of(begin), granule_of(end - 1) + 1);
  free_ -= size;
  return first;
}

// True if the two may become one span. Then `into` has the tickets of both.
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
  // Merges the new span with its neighbours, and then each neighbour with the next one.
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
  whole_.add(first, last);
}

Span* Arena::extent_at_prefix(uint64_t g) const {
  if (!whole_.has(g)) return edges_[g].prefix_extent;
  // Extents never touch, so a whole stretch of free granules is in one extent.
  return edges_[whole_.first_of_run(g)].whole_extent;
}

Span* Arena::extent_at_suffix(uint64_t g) const {
  return whole_.has(g) ? extent_at_prefix(g) : edges_[g].suffix_extent;
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
  pool_.reserve(2);
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
      if (!whole_.has(g)) return "a free granule is marked busy";
    }
  }
  if (at != base_ + size_) return "spans do not reach the arena's end";
  if (free != free_) return "free bytes are miscounted";
  if (whole != whole_.count()) return "whole free granules are miscounted";
  return "";
}

}  // namespace glake
