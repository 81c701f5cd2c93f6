// Every option of the core, set by a variable GLAKE_<NAME> or by glake_configure(name, value).
// Names, kinds, defaults and texts are in glake/config.py. The build makes base/option_table.h from
// it.
#pragma once

#include <string>

#include "base/option_table.h"

namespace glake {

struct Options : OptionValues {
  // Reads the environment. Throws Error for an unknown GLAKE_* name, or for a value that the option
  // does not take.
  static Options from_environment();
  // Sets one option. An empty value sets its default, as an empty variable does. Throws Error
  // (GLAKE_UNKNOWN_OPTION, GLAKE_INVALID_OPTION).
  void set(const std::string& key, const std::string& value);
  // One option's value, as a text that set() takes. Throws Error (GLAKE_UNKNOWN_OPTION).
  std::string get(const std::string& key) const;
  // A JSON array of {name, variable, default, value, help}; `help` is the meaning in
  // glake/config.py.
  std::string describe() const;
};

}  // namespace glake
