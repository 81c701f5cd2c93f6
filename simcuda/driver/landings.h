// How often copies wrote each byte of the ranges that a test watches.
#pragma once

#include <map>

#include "types.h"

namespace simcuda {

class Landings {
 public:
  // Counts from zero over [address, address + bytes). This replaces what was watched there.
  void watch(uint64_t address, size_t bytes);
  void forget(uint64_t address, size_t bytes);
  void land(uint64_t address, size_t bytes);
  // Gives a count for each byte; 255 means that many or more. False: a part of the range is not
  // watched.
  bool read(uint64_t address, size_t bytes, uint8_t* counts) const;
  // Adds up the bytes of a watched range that were written `times` times (-1: more than once).
  bool sum(uint64_t address, size_t bytes, int times, uint64_t* total) const;

 private:
  struct Run {
    uint64_t end;
    uint32_t count;
  };
  void split(uint64_t at);
  template <class Visit>
  bool each(uint64_t address, size_t bytes, Visit&& visit) const;

  std::map<uint64_t, Run> runs_;  // by start; they do not overlap
};

}  // namespace simcuda
