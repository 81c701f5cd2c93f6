// What arenas ask of a device's stream clock.
#pragma once

#include "memory/tickets.h"

namespace glake {

// Tells whether the work that tickets name is known to be complete.
class Completion {
 public:
  virtual bool complete(const Tickets& tickets) const = 0;

 protected:
  ~Completion() = default;
};

}  // namespace glake
