// The driver's text when it last refused to take something back. The device's slow lock guards it.
#pragma once

#include <string>

#include "base/types.h"
#include "driver/driver.h"

namespace glake {

class Refusals {
 public:
  explicit Refusals(Driver& driver) : driver_(driver) {}
  Status note(const char* call, Status s) {
    if (!s.ok()) text_ = std::string(call) + ": " + driver_.describe(s);
    return s;
  }
  void note(const std::string& text) { text_ = text; }
  const std::string& text() const { return text_; }

  Granules kept{0};  // stayed mapped since somebody last set this to zero

 private:
  Driver& driver_;
  std::string text_;
};

}  // namespace glake
