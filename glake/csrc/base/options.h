// Every option of the core: one table, GLAKE_<KEY> variables or glake_configure(key, value).
#pragma once

#include <string>

#include "base/types.h"

namespace glake {

enum class PolicyKind { kBalanced, kCompact };

// Parts of the option `debug` (docs/debugging.md).
struct DebugModes {
  bool guard = false;   // guard bytes around every block
  bool poison = false;  // freed memory is filled, and looked after
  bool trace = false;   // every block carries the stacks it was allocated and freed at
  bool sync = false;    // the host waits for every fill and check
  bool any() const { return guard || poison || trace || sync; }
};

struct Options {
  std::string driver = "cuda";
  PolicyKind policy = PolicyKind::kBalanced;
  double limit_fraction = 1.0;  // of the device's memory, unless limit_bytes is set
  Bytes limit_bytes = 0;
  Bytes headroom = 0;         // of each device's memory, left free for others
  bool peers = false;         // grant every peer that can reach the device
  double view_budget = 8.0;   // most view addresses mapped, as a multiple of the limit
  Bytes contiguous_from = 0;  // blocks of at least so many bytes come from the escape pool; 0: none
  int contiguous_kind = GLAKE_CONTIGUOUS_VMM;
  bool enqueue_copies = true;  // those in a stream's order are all the driver's at once
  DebugModes debug;
  std::string trace;  // path of the trace to write; empty: none

  // The environment's options. Throws Error for an unknown GLAKE_* name or a value not taken.
  static Options from_environment();
  // Sets one option; an empty value, as an empty variable, sets its default. Throws Error
  // (GLAKE_UNKNOWN_OPTION, GLAKE_INVALID_OPTION).
  void set(const std::string& key, const std::string& value);
  // JSON array of {name, variable, default, value, help}; help is the meaning in glake/config.py.
  std::string describe() const;
};

}  // namespace glake
