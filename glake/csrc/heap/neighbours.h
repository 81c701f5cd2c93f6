// Other processes that use the same GPU. Memory that they hold and do not use can be given back to
// the driver when this process runs out.
#pragma once

#include <string>

#include "heap/device.h"

namespace glake {

class Neighbours {
 public:
  // What the others did when they were asked.
  struct Answer {
    uint64_t asked = 0;   // processes
    uint64_t silent = 0;  // those of them that did not answer in time
    uint64_t late = 0;    // those of the silent ones that may still be at work on it
    uint64_t left = 0;    // processes that were not asked, because the others took all the time
    Bytes given = 0;
    std::string hindrance;  // why some could not be asked; "": nothing hindered
  };

  virtual ~Neighbours() = default;
  // Asks the others for `bytes` of the device. No lock of the device may be held.
  virtual Answer ask(int device, Bytes bytes) = 0;

  // Runs `attempt`, which takes the device's locks itself. If the driver's memory does not suffice,
  // the others are asked for what is missing, and `attempt` is run again.
  template <typename Attempt>
  static auto helped(Device& device, Attempt&& attempt) {
    if (device.neighbours == nullptr) return attempt();
    for (int tries = 0;; ++tries) {
      try {
        return attempt();
      } catch (const Error& error) {
        if (!give_hope(device, error, tries)) throw;
      }
    }
  }

 private:
  // Whether another attempt makes sense. Throws the error with a line about what others gave.
  static bool give_hope(Device& device, const Error& error, int tries);
  static std::string text(const Answer& answer, Bytes missing);
};

}  // namespace glake
