#include "memory/reservation.h"

#include <sys/resource.h>

#include <algorithm>

#include "memory/pointer_map.h"

namespace glake {
namespace {

// What a user can do about a refused reservation if the process's addresses are limited.
std::string address_limit_text() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  return "; this process may have " + size_text(limit.rlim_cur) +
         " of addresses in all (ulimit -v), and glake needs about five times the device's memory, "
         "5 GiB at least: raise that limit (ulimit -v unlimited), or, above that, take a smaller "
         "simulated device (GLAKE_SIM_MEMORY)";
}

}  // namespace

Reservation::Reservation(Driver& driver, Heap* heap, Bytes bytes, Bytes cell) : driver_(driver) {
  // The request includes room to align, because drivers differ in their alignments.
  bytes = round_up(bytes, kRangeAlign);
  reserved_bytes_ = bytes + kRangeAlign;
  Status s = driver_.reserve(reserved_bytes_, &reserved_);
  if (!s.ok()) {
    // This is no GLAKE_OUT_OF_MEMORY even if the driver says so, because to free memory would not
    // help.
    throw Error(GLAKE_DRIVER_ERROR,
                "the driver refused to reserve " + std::to_string(reserved_bytes_ / kGiB) +
                    " GiB of addresses: " + driver_.describe(s) + address_limit_text());
  }
  try {
    table_ = std::make_unique<BlockTable>(round_up(reserved_, kRangeAlign), bytes, cell, heap);
  } catch (...) {
    driver_.free_range(reserved_, reserved_bytes_);
    throw;
  }
  PointerMap::add(table_.get());
}

Reservation::~Reservation() {
  if (table_ != nullptr && reserved_ != 0) PointerMap::remove(table_.get());
}

Status Reservation::release() {
  if (reserved_ == 0) return {};
  // Once the driver has the addresses, it may give them to another device's thread.
  PointerMap::remove(table_.get());
  Status s = driver_.free_range(reserved_, reserved_bytes_);
  if (s.ok()) {
    reserved_ = 0;
  } else {
    PointerMap::add(table_.get());
  }
  return s;
}

}  // namespace glake
