#pragma once

#include <string>
#include <vector>

#include "base/json_text.h"
#include "plan/plan.h"

namespace glake::transfer {

// A list of {path, reason}.
inline std::string refusals_json(const std::vector<Refusal>& refusals) {
  std::string list;
  for (const Refusal& refusal : refusals) {
    JsonText one;
    one.text("path", refusal.path).text("reason", refusal.reason);
    list += (list.empty() ? "" : ", ") + one.done();
  }
  return "[" + list + "]";
}

}  // namespace glake::transfer
