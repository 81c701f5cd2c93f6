// The settings of the environment: GLAKE_INTERCEPT and others, which glake/config.py checks too.
#pragma once

#include <cstdint>
#include <string>

namespace glake::intercept {

struct Settings {
  bool on = true;
  bool report = false;   // a summary on stderr at exit
  uint64_t least = 0;    // the fewest bytes of a copy that is carried
  std::string json;      // a file to which a line is added at exit
  std::string topology;  // a platforms file's text, or its path; empty: none
  std::string visible;   // the CUDA_VISIBLE_DEVICES for which the topology holds
  bool visible_given = false;
  bool held = false;           // GLAKE_COPY_ORDER: copies end with the engine
  bool own_gpus_only = false;  // only GPUs that this process copies to or from may relay
  std::string wrong;           // why it is off; empty: nothing is wrong
};

// Read once, at the first copy.
const Settings& settings();

}  // namespace glake::intercept
