// How much of a device glake may hold, changed while the program runs. Each method takes the locks
// it needs. Throws Error.
#pragma once

#include "heap/device.h"

namespace glake {

class Limits {
 public:
  explicit Limits(Device& device) : device_(device) {}

  void set_fraction(double fraction);
  double fraction();
  // Leaves so much of the device's memory free for others from now on, and gives idle memory back
  // until that much is free or nothing idle is left; what the driver then reports free.
  Bytes set_headroom(Bytes bytes);
  void check_headroom(Bytes bytes) const;  // throws Error if the device cannot leave so much
  Bytes headroom() const { return device_.headroom(); }

 private:
  Device& device_;
};

}  // namespace glake
