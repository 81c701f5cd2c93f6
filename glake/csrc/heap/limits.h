// Changes how much of a device glake may hold, while the program runs. Each method takes the locks
// that it needs. Throws Error.
#pragma once

#include "heap/device.h"

namespace glake {

class Limits {
 public:
  explicit Limits(Device& device) : device_(device) {}

  void set_fraction(double fraction);
  double fraction();
  // Leaves `bytes` of the device's memory free for others from now on. Gives idle memory back until
  // that much is free, or nothing idle is left. Returns what the driver then reports free.
  Bytes set_headroom(Bytes bytes);
  // Throws Error if a device with `total` bytes cannot leave `bytes` free.
  static void check_headroom(Bytes bytes, int device, Bytes total);
  Bytes headroom() const { return device_.memory.headroom(); }

 private:
  Device& device_;
};

}  // namespace glake
