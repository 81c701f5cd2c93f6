// Pinned host memory in which the bytes to be checked land: many small copies share a slab, which
// is used again once all of them have been read. Not thread-safe: its device's debug lock is held.
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
    uint64_t copies = 0;  // on their way, or not read yet
  };

  explicit Readback(Driver& driver) : driver_(driver) {}

  // A place for n <= Tuning::kReadbackSlab bytes, counted as one copy of its slab. Null when every
  // slab is in use, or the driver refuses another.
  Slab* take(Bytes n, char** place);
  // One copy of the slab has been read, or was never made.
  void done(Slab* slab);
  // Gives the slabs back; the first refusal stops it, to be tried again.
  Status close();

 private:
  Driver& driver_;
  std::vector<std::unique_ptr<Slab>> slabs_;
  std::vector<Slab*> idle_;
  Slab* filling_ = nullptr;
};

}  // namespace glake
