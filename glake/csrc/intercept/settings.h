// What the environment says: GLAKE_INTERCEPT and its like, which glake/config.py checks too.
#pragma once

#include <cstdint>
#include <string>

namespace glake::intercept {

struct Settings {
  bool on = true;
  bool report = false;   // a summary on stderr at exit
  uint64_t least = 0;    // bytes of a copy to be carried
  std::string json;      // a file to which a line is added at exit
  std::string topology;  // a platforms file's text, or its path; empty: none
  std::string visible;   // CUDA_VISIBLE_DEVICES of which the topology is
  bool visible_given = false;
  bool own_gpus_only = false;  // relays over this process's GPUs alone
  std::string wrong;           // why it is off; empty: nothing is wrong
};

// Read once, at the first copy.
const Settings& settings();

}  // namespace glake::intercept
