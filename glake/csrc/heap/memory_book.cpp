#include "heap/memory_book.h"

#include <algorithm>

namespace glake {

void MemoryBook::begin(Bytes total, Granules limit) {
  total_ = total;
  limit_ = limit;
}

void MemoryBook::set_limit(Granules limit, double fraction) {
  limit_ = limit;
  fraction_ = fraction;
}

double MemoryBook::fraction() const {
  if (fraction_ > 0) return fraction_;
  return static_cast<double>(limit_.bytes()) / static_cast<double>(total_);
}

Granules MemoryBook::physical() const {
  return Granules{backed_.load() + deferred_.handles()} + contiguous_.physical();
}

Granules MemoryBook::under_limit() const {
  return physical() - Granules{deferred_.idle()} + Granules::ceil(outside_);
}

Granules MemoryBook::room() const {
  const Granules held = under_limit();
  return held < limit_ ? limit_ - held : Granules{0};
}

Granules MemoryBook::above_limit() const {
  const Granules held = under_limit();
  return limit_ < held ? held - limit_ : Granules{0};
}

// This is cheap, because each hit of a large block may ask.
bool MemoryBook::half_free() const {
  const Granules held = under_limit();
  return held + held <= limit_;
}

Granules MemoryBook::allocation_room() const {
  Granules held = physical() + Granules::ceil(outside_);
  return held < limit_ ? limit_ - held : Granules{0};
}

Granules MemoryBook::allocations_above_limit() const {
  Granules held = physical() + Granules::ceil(outside_);
  return limit_ < held ? held - limit_ : Granules{0};
}

bool MemoryBook::may_claim(Bytes more) const {
  return physical() + Granules::ceil(outside_ + more) <= limit_;
}

void MemoryBook::end_claim(Bytes bytes) { outside_ -= std::min(bytes, outside_); }

Bytes MemoryBook::claimable() const {
  const Bytes room = physical() < limit_ ? (limit_ - physical()).bytes() : 0;
  return room - std::min(room, outside_);
}

void MemoryBook::owe_imported(Bytes memory, Bytes addresses) {
  imported_ += memory;
  imported_addresses_ += addresses;
}

void MemoryBook::pay_imported(Bytes memory, Bytes addresses) {
  imported_ -= memory;
  imported_addresses_ -= addresses;
}

Granules MemoryBook::kept_of(Bytes driver_free) const {
  return std::min(Granules::ceil(headroom()), Granules::floor(driver_free));
}

Granules MemoryBook::driver_has() {
  Bytes free = 0, total = 0;
  if (!driver_.memory_info(&free, &total).ok()) return {0};
  return Granules::floor(free) - kept_of(free) + Granules{deferred_.idle()};
}

}  // namespace glake
