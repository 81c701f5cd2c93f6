// Pinned host memory for the bytes to be checked. Many small copies share a slab. A slab is used
// again once all of its copies have been read. This class is not thread-safe: the caller holds the
// device's debug lock.
#pragma once

#include <memory>
#include <vector>

#include "base/types.h"
#include "driver/driver.h"

namespace glake {

class Readback {
 public:
  struct Slab {
    char* base = nullptr;
    Bytes used = 0;
    uint64_t copies = 0;  // copies under way, or not read yet
  };

  explicit Readback(Driver& driver) : driver_(driver) {}

  // Gives a place for n <= Tuning::kReadbackSlab bytes, and counts one more copy in its slab. Null
  // if every slab is in use, and there are Tuning::kReadbackSlabs or the driver refuses another
  // one.
  Slab* take(Bytes n, char** place);
  // Says that one copy of the slab has been read, or was never made.
  void done(Slab* slab);
  // Gives the slabs back. The first refusal stops it, and the caller may try again.
  Status close();

 private:
  Driver& driver_;
  std::vector<std::unique_ptr<Slab>> slabs_;
  std::vector<Slab*> idle_;
  Slab* filling_ = nullptr;
};

}  // namespace glake
