// The work after which freed memory is safe: a few (stream, epoch) pairs.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/tuning.h"

namespace glake {

using StreamId = uint32_t;  // small numbers without gaps, for each device

// A ticket has eight bytes, because spans carry tickets, and the hot path copies them.
struct Ticket {
  Ticket() = default;
  Ticket(StreamId s, uint64_t e) : epoch(e & ((uint64_t{1} << 48) - 1)), stream(s & 0xffff) {}
  uint64_t epoch : 48;
  uint64_t stream : 16;
};
constexpr StreamId kMaxStreams = 1 << 16;

class Tickets {
 public:
  static constexpr int kMax = Tuning::kTickets;

  Tickets() = default;
  explicit Tickets(Ticket t) : one_(t), count_(1) {}
  ~Tickets() {
    if (wide_) delete[] many_;
  }
  Tickets(const Tickets& other) { *this = other; }
  Tickets& operator=(const Tickets& other) {
    if (this == &other) return *this;
    if (other.count_ > 1) widen();
    std::copy(other.begin(), other.end(), items());
    count_ = other.count_;
    return *this;
  }

  const Ticket* begin() const { return wide_ ? many_ : &one_; }
  const Ticket* end() const { return begin() + count_; }
  bool empty() const { return count_ == 0; }
  void clear() { count_ = 0; }

  // Returns false, and changes nothing, when there is no room for one more stream.
  bool add(Ticket t) {
    for (Ticket* mine = items(); mine != end(); ++mine) {
      if (mine->stream != t.stream) continue;
      if (mine->epoch < t.epoch) *mine = t;
      return true;
    }
    if (count_ == kMax) return false;
    if (count_ == 1) widen();
    items()[count_++] = t;
    return true;
  }

  bool same_streams(const Tickets& other) const {
    if (count_ != other.count_) return false;
    if (count_ == 1) return begin()->stream == other.begin()->stream;
    return std::all_of(begin(), end(), [&](Ticket t) { return other.has(t.stream); });
  }
  bool operator==(const Tickets& other) const {
    return std::equal(begin(), end(), other.begin(), other.end(), [](Ticket a, Ticket b) {
      return a.stream == b.stream && a.epoch == b.epoch;
    });
  }

 private:
  bool has(uint64_t stream) const {
    return std::any_of(begin(), end(), [=](Ticket t) { return t.stream == stream; });
  }
  Ticket* items() { return wide_ ? many_ : &one_; }
  // Makes room for kMax tickets. The room stays until the set is destroyed.
  void widen() {
    if (wide_) return;
    auto* many = new Ticket[kMax];
    many[0] = one_;
    many_ = many;
    wide_ = true;
  }

  // Every span has a set, and almost every set names one stream. So there is room in place for one
  // ticket.
  union {
    Ticket one_{0, 0};
    Ticket* many_;
  };
  int count_ = 0;  // the tickets that are set
  bool wide_ = false;
};

}  // namespace glake
