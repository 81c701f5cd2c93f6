// The lock of a machine's state. A private machine needs none: the driver's own mutex is held.
#pragma once

#include <cerrno>

#include "machine.h"

namespace simcuda {

class Machine::Guard {
 public:
  explicit Guard(Machine* machine) : machine_(machine) {
    if (!machine->shared()) return;
    if (pthread_mutex_lock(&machine->state_->mutex) == EOWNERDEAD) {
      pthread_mutex_consistent(&machine->state_->mutex);
      machine->recount();  // its owner died half-way through a change
    }
  }
  ~Guard() {
    if (machine_->shared()) pthread_mutex_unlock(&machine_->state_->mutex);
  }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

 private:
  Machine* machine_;
};

}  // namespace simcuda
