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

  // How many granules have stayed mapped because of refusals since count_anew().
  Granules kept() const { return kept_; }
  void keep(Granules n) { kept_ = kept_ + n; }
  void count_anew() { kept_ = {0}; }

 private:
  Driver& driver_;
  std::string text_;
  Granules kept_{0};
};

}  // namespace glake
