// A stretch of an arena in one state, and the pool its records come from.
#pragma once

#include <cstdint>

#include "base/types.h"
#include "memory/slabs.h"
#include "memory/tickets.h"

namespace glake {

enum class SpanState : uint8_t { kBusy, kFree, kAbsent };

struct Span {
  Address begin = 0;
  Bytes size = 0;
  Span* prev = nullptr;  // address order
  Span* next = nullptr;
  SpanState state = SpanState::kAbsent;
  StreamId stream = 0;         // busy: whose work uses it
  Span* piece_next = nullptr;  // busy: the next of the same block (on a view, a block has several)

  // Free, at an extent's two ends: the other end. At its head: its size and place in the index;
  // absent: its neighbours in the list of those.
  Span* mate = nullptr;
  Bytes extent = 0;
  Span* left = nullptr;
  Span* right = nullptr;
  Tickets tickets;  // free: the work that may still use it

  Address end() const { return begin + size; }
};

class SpanPool {
 public:
  Span* make() {
    if (idle_ == nullptr) return store_.make();
    Span* s = idle_;
    idle_ = s->next;
    *s = Span{};
    return s;
  }
  void recycle(Span* s) {
    s->next = idle_;
    idle_ = s;
  }

 private:
  Slabs<Span> store_;
  Span* idle_ = nullptr;
};

}  // namespace glake
