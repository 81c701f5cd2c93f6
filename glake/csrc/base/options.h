// Every option of the core: GLAKE_<NAME> variables or glake_configure(name, value). Names, kinds,
// defaults and texts stand in glake/config.py; the build makes base/option_table.h from it.
#pragma once

#include <string>

#include "base/option_table.h"

namespace glake {

struct Options : OptionValues {
  // The environment's options. Throws Error for an unknown GLAKE_* name or a value not taken.
  static Options from_environment();
  // Sets one option; an empty value, as an empty variable, sets its default. Throws Error
  // (GLAKE_UNKNOWN_OPTION, GLAKE_INVALID_OPTION).
  void set(const std::string& key, const std::string& value);
  // One option's value, as a text that set() takes. Throws Error (GLAKE_UNKNOWN_OPTION).
  std::string get(const std::string& key) const;
  // JSON array of {name, variable, default, value, help}; help is the meaning in glake/config.py.
  std::string describe() const;
};

}  // namespace glake
