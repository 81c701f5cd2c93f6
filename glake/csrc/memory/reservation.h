// Reserved addresses. The part that is used is aligned to 1 GiB and entered in the pointer map.
#pragma once

#include <memory>

#include "base/types.h"
#include "driver/driver.h"
#include "memory/block_table.h"

namespace glake {

class Reservation {
 public:
  // Throws Error when the driver refuses.
  Reservation(Driver& driver, Heap* heap, Bytes bytes, Bytes cell);
  ~Reservation();  // leaves the addresses reserved unless release() has run
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  Address base() const { return table_->base(); }
  Bytes size() const { return table_->size(); }
  Status release();

 private:
  Driver& driver_;
  Address reserved_ = 0;
  Bytes reserved_bytes_ = 0;
  std::unique_ptr<BlockTable> table_;
};

}  // namespace glake
