#include "driver/outside_scope.h"

#include "driver/calls.h"

namespace glake {

OutsideScope::OutsideScope(Driver& driver) : driver_(driver) {
  if (driver_.table_->extras.aside != nullptr) driver_.table_->extras.aside(1);
}

OutsideScope::~OutsideScope() {
  if (driver_.table_->extras.aside != nullptr) driver_.table_->extras.aside(0);
}

}  // namespace glake
