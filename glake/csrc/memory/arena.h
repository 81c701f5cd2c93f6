// One long range of device memory, which is split and merged at 512 bytes. It only keeps books: it
// makes no driver call and has no lock. In a steady state it allocates nothing, as spans come from
// a pool.
#pragma once

#include <cstdint>
#include <vector>

#include "base/types.h"
#include "memory/completion.h"
#include "memory/extent_index.h"
#include "memory/free_granules.h"
#include "memory/span.h"

namespace glake {

class Arena {
 public:
  // At first all of the range is absent: no granule is mapped.
  Arena(int id, Address base, Bytes size, SpanPool& pool);

  int id() const { return id_; }
  Address base() const { return base_; }
  Bytes size() const { return size_; }
  bool contains(Address a) const { return a >= base_ && a < base_ + size_; }

  // Extents of at least `bytes`: the smallest first, and the lowest address first among equal ones.
  Span* best_fit(Bytes bytes) const { return extents_.smallest(bytes); }
  Span* next_fit(const Span* head) const { return extents_.above(head); }
  // All extents in the reverse order: the largest first.
  Span* largest() const { return extents_.largest(); }
  Span* next_smaller(const Span* head) const { return extents_.below(head); }
  uint64_t extents_walked() const { return extents_.steps(); }

  // Makes [begin, begin + size) of the extent at `head` one busy span. Without host
  // memory for spans it throws std::bad_alloc, and changes nothing.
  Span* take(Span* head, Address begin, Bytes size);
  // Frees a busy span and merges it with its neighbours. If `completion` is given, two spans are
  // merged only if their tickets are equal or the work of both is complete. Otherwise the later
  // ticket would hold back memory whose own work was complete long before. Without `completion`,
  // tickets of the same streams are enough.
  void give(Span* s, const Tickets& tickets, const Completion* completion = nullptr);

  // Absent ranges are where granules can be put. claim() makes a part of an absent range busy while
  // the driver works. After that give() frees it, now with granules behind it, or disclaim() makes
  // it absent again. claim() may throw like take().
  Span* first_span() const { return first_; }
  Span* first_absent() const { return absent_; }
  Span* next_absent(const Span* s) const { return s->right; }
  Span* claim(Span* absent, Address begin, Bytes size);
  void disclaim(Span* s);

  // Granules by their index in the arena.
  uint64_t granule_of(Address a) const { return (a - base_) / kGranule; }
  Address granule_at(uint64_t g) const { return base_ + g * kGranule; }
  uint64_t granule_count() const { return edges_.size(); }
  // The granules that are wholly free.
  const FreeGranules& whole() const { return whole_; }
  // Free bytes at a granule's start and end; a whole free granule has both at 2 MiB.
  Bytes free_prefix(uint64_t g) const { return whole_.has(g) ? kGranule : edges_[g].prefix; }
  Bytes free_suffix(uint64_t g) const { return whole_.has(g) ? kGranule : edges_[g].suffix; }
  // The free span that covers `a`. A free granule, or the free prefix or suffix of a granule, must
  // begin at `a`.
  Span* free_span_at(Address a) const;
  // The extent that holds granule g's free start or end; g must have one.
  Span* extent_at_prefix(uint64_t g) const;
  Span* extent_at_suffix(uint64_t g) const;

  Bytes free_bytes() const { return free_; }

  // For tests, because it is slow: says what is inconsistent, or "".
  std::string check() const;

 private:
  struct Edge {
    uint32_t prefix = 0;  // free bytes at the start of a granule whose end is not free
    uint32_t suffix = 0;
    Span* prefix_extent = nullptr;
    Span* suffix_extent = nullptr;
    Span* whole_extent = nullptr;  // set at the first wholly free granule of an extent
  };

  void index(Span* head, Span* tail);
  void unindex(Span* head);
  void set_edges(Span* head, Address begin, Address end);
  Span* split(Span* s, Address at);
  Span* absorb(Span* left, Span* right);
  static bool merge_tickets(Span* into, const Span* from, const Completion* completion);
  void mark_free(Address begin, Address end, Address extent_begin, Address extent_end);
  void link_absent(Span* s);
  void unlink_absent(Span* s);

  int id_;
  Address base_;
  Bytes size_;
  SpanPool& pool_;
  Span* first_ = nullptr;
  Span* absent_ = nullptr;
  ExtentIndex extents_;
  FreeGranules whole_;
  std::vector<Edge> edges_;
  Bytes free_ = 0;
};

}  // namespace glake
