// A stretch of an arena in one state, and the pool of its records.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/types.h"
#include "memory/slabs.h"
#include "memory/tickets.h"

namespace glake {

enum class SpanState : uint8_t { kBusy, kFree, kAbsent };

// What the extent index reads of many spans comes first, and lies in one cache line.
struct alignas(32) Span {
  Address begin = 0;
  // `mate`: the first and the last span of a free extent name each other. The first span also has
  // the extent's size (`extent`), and its links in the extent index (`left`, `right`). In an absent
  // span `left` and `right` are its neighbours in the list of absent spans.
  Bytes extent = 0;
  Span* left = nullptr;
  Span* right = nullptr;
  Span* mate = nullptr;

  Bytes size = 0;
  Span* prev = nullptr;  // by address
  Span* next = nullptr;
  SpanState state = SpanState::kAbsent;
  StreamId stream = 0;         // busy: the stream whose work uses it
  Span* piece_next = nullptr;  // busy: the next span of the same block, which has several on a view
  Tickets tickets;             // free: the work that may still use it

  Address end() const { return begin + size; }
};

class SpanPool {
 public:
  // Throws std::bad_alloc unless reserve() has made the record, and changes nothing then.
  Span* make() {
    if (idle_ == nullptr) return store_.make();
    Span* s = idle_;
    idle_ = s->next;
    --idle_count_;
    *s = Span{};
    return s;
  }
  void recycle(Span* s) {
    s->next = idle_;
    idle_ = s;
    ++idle_count_;
  }
  // The next `count` calls of make() will not throw. This one may throw std::bad_alloc.
  void reserve(size_t count) {
    while (idle_count_ < count) recycle(store_.make());
  }

 private:
  Slabs<Span> store_;
  Span* idle_ = nullptr;
  size_t idle_count_ = 0;
};

}  // namespace glake
