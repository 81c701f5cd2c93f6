// After which work freed memory is safe: a few (stream, epoch) pairs.
#pragma once

#include <array>
#include <cstdint>

namespace glake {

using StreamId = uint32_t;  // dense, per device

// Eight bytes: segments carry several, and the hot path copies them.
struct Ticket {
  Ticket() = default;
  Ticket(StreamId s, uint64_t e) : epoch(e & ((uint64_t{1} << 48) - 1)), stream(s & 0xffff) {}
  uint64_t epoch : 48;
  uint64_t stream : 16;
};
constexpr StreamId kMaxStreams = 1 << 16;

class Tickets {
 public:
  static constexpr int kMax = 8;

  Tickets() = default;
  explicit Tickets(Ticket t) : count_(1) { items_[0] = t; }
  // Copies what is there, most often one: the hot path copies sets.
  Tickets(const Tickets& other) { *this = other; }
  Tickets& operator=(const Tickets& other) {
    count_ = other.count_;
    for (int i = 0; i < count_; ++i) items_[i] = other.items_[i];
    return *this;
  }

  const Ticket* begin() const { return items_.data(); }
  const Ticket* end() const { return items_.data() + count_; }
  bool empty() const { return count_ == 0; }
  void clear() { count_ = 0; }

  // False, and nothing changed, when there is no room for one more stream.
  bool add(Ticket t) {
    for (int i = 0; i < count_; ++i) {
      if (items_[i].stream != t.stream) continue;
      if (items_[i].epoch < t.epoch) items_[i] = t;
      return true;
    }
    if (count_ == kMax) return false;
    items_[count_++] = t;
    return true;
  }

  bool same_streams(const Tickets& other) const {
    if (count_ != other.count_) return false;
    if (count_ == 1) return items_[0].stream == other.items_[0].stream;
    for (int i = 0; i < count_; ++i) {
      if (!other.has(items_[i].stream)) return false;
    }
    return true;
  }
  bool operator==(const Tickets& other) const {
    if (count_ != other.count_) return false;
    for (int i = 0; i < count_; ++i) {
      if (items_[i].stream != other.items_[i].stream || items_[i].epoch != other.items_[i].epoch) {
        return false;
      }
    }
    return true;
  }

 private:
  bool has(uint64_t stream) const {
    for (int i = 0; i < count_; ++i) {
      if (items_[i].stream == stream) return true;
    }
    return false;
  }

  int count_ = 0;
  std::array<Ticket, kMax> items_;  // the first count_ are set
};

// Whether the work tickets name is known to be complete.
class Completion {
 public:
  virtual bool complete(const Tickets& tickets) const = 0;

 protected:
  ~Completion() = default;
};

}  // namespace glake
