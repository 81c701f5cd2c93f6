// Writes the text of an out-of-memory error: who holds what, what would fit now (largest_fit.h) and
// what would help. The first line says what was asked for, and each further line states one fact.
// Callers hold the slow lock.
#pragma once

#include <string>

#include "heap/largest_fit.h"

namespace glake {

class OutOfMemory {
 public:
  explicit OutOfMemory(Heap& heap) : heap_(heap), device_(heap.device) {}

  Error error(const Request& r, const Asked& asked, HotGuard& hot);
  // Lines that say who else on the device holds memory, and how to get it; "" if nobody does.
  std::string pools_text();
  // A fact on a line of its own.
  static std::string line(const std::string& fact) { return "\n  " + fact; }

 private:
  std::string held_text() const;
  std::string stitch_text(Granules idle) const;
  std::string driver_text(Bytes driver_free, const GrowthRoom& growth) const;
  std::string idle_text(Granules mine);
  Granules missing(const Request& r, const Asked& asked, Granules growth);
  bool by_budget(Bytes needed) const;
  std::string advice(Bytes needed, Granules missing, const GrowthRoom& growth, Granules idle) const;
  std::string raise_text(Bytes by, const char* then) const;

  Heap& heap_;
  Device& device_;
};

}  // namespace glake
