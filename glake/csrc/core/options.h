// Every option of the core: one table, GLAKE_<KEY> variables or glake_configure(key, value).
#pragma once

#include <string>

#include "types.h"

namespace glake {

enum class PolicyKind { kBalanced, kCompact };

struct Options {
  std::string driver = "cuda";
  PolicyKind policy = PolicyKind::kBalanced;
  double limit_fraction = 1.0;  // of the device's memory, unless limit_bytes is set
  Bytes limit_bytes = 0;
  bool peers = false;         // grant every peer that can reach the device
  double view_budget = 8.0;   // most view addresses mapped, as a multiple of the limit
  Bytes contiguous_from = 0;  // blocks of at least so many bytes come from the escape pool; 0: none
  int contiguous_kind = GLAKE_CONTIGUOUS_VMM;
  std::string trace;  // path of the trace to write; empty: none

  // The environment's options. Throws Error for an unknown GLAKE_* name or a value not taken.
  static Options from_environment();
  // Sets one option. Throws Error (GLAKE_UNKNOWN_OPTION, GLAKE_INVALID_OPTION).
  void set(const std::string& key, const std::string& value);
  // JSON array of {name, variable, default, value, help}.
  std::string describe() const;
};

// "512MiB", "1.5GiB", "1073741824": bytes. Throws Error naming `what` for anything else.
Bytes parse_bytes(const std::string& what, const std::string& text);

}  // namespace glake
