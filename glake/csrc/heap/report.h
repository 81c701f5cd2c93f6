// The reports of a device: its statistics, and their resets. Each method takes the lock.
#pragma once

#include <string>

#include "heap/device.h"

namespace glake {

class Report {
 public:
  explicit Report(Device& device) : device_(device) {}

  std::string json();
  glake_device_stats values();
  void reset_accumulated();
  void reset_peaks();
  void mark_step();
  // The largest free stretch of the device's own memory. Whole granules count as one stretch,
  // because they can be stitched.
  Bytes largest_free();

 private:
  void note_inactive();
  void append_memory(std::string& json);
  void append_work(std::string& json);
  void append_pools(std::string& json);

  Device& device_;
};

}  // namespace glake
