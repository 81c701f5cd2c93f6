// After which work freed memory is safe: a few (stream, epoch) pairs.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace glake {

using StreamId = uint32_t;  // dense, per device

struct Ticket {
  StreamId stream = 0;
  uint64_t epoch = 0;
};

class Tickets {
 public:
  static constexpr int kMax = 4;

  Tickets() = default;
  explicit Tickets(Ticket t) : count_(1) { items_[0] = t; }

  const Ticket* begin() const { return items_.data(); }
  const Ticket* end() const { return items_.data() + count_; }
  bool empty() const { return count_ == 0; }
  void clear() { count_ = 0; }

  // False, and nothing changed, when there is no room for one more stream.
  bool add(Ticket t) {
    for (int i = 0; i < count_; ++i) {
      if (items_[i].stream != t.stream) continue;
      items_[i].epoch = std::max(items_[i].epoch, t.epoch);
      return true;
    }
    if (count_ == kMax) return false;
    items_[count_++] = t;
    return true;
  }

  bool same_streams(const Tickets& other) const {
    if (count_ != other.count_) return false;
    for (int i = 0; i < count_; ++i) {
      if (!other.has(items_[i].stream)) return false;
    }
    return true;
  }

 private:
  bool has(StreamId stream) const {
    for (int i = 0; i < count_; ++i) {
      if (items_[i].stream == stream) return true;
    }
    return false;
  }

  int count_ = 0;
  std::array<Ticket, kMax> items_{};
};

}  // namespace glake
