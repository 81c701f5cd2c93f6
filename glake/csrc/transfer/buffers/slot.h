// A lent buffer. Its destructor gives it back, so nothing may use it any more by then.
#pragma once

#include "base/types.h"

namespace glake::transfer {

class Slots;

class Slot {
 public:
  Slot() = default;
  Slot(Slots* owner, int place, Bytes bytes, Address at)
      : owner_(owner), place_(place), bytes_(bytes), at_(at) {}
  Slot(Slot&& other) noexcept { *this = std::move(other); }
  Slot& operator=(Slot&& other) noexcept;
  ~Slot() { reset(); }

  Address at() const { return at_; }
  Bytes bytes() const { return bytes_; }
  explicit operator bool() const { return owner_ != nullptr; }
  void reset();
  void abandon() { owner_ = nullptr; }  // for a buffer that something may use for ever

 private:
  Slots* owner_ = nullptr;
  int place_ = -1;
  Bytes bytes_ = 0;
  Address at_ = 0;
};

}  // namespace glake::transfer
