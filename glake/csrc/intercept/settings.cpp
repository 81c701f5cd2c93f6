#include "intercept/settings.h"

#include <cstdlib>

#include "base/numbers.h"

namespace glake::intercept {
namespace {

std::string variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

// As glake/transfer/relay/modes.py chooses. The service that lends GPUs is asked by Python alone:
// where it would be, copies go over the GPUs they are from or to.
bool only_own() {
  const std::string relays = variable("GLAKE_RELAYS"), ranks = variable("LOCAL_WORLD_SIZE");
  if (!relays.empty()) return relays != "all";
  return !ranks.empty() && ranks != "1";
}

Settings read() {
  Settings s;
  const std::string mode = variable("GLAKE_INTERCEPT"), least = variable("GLAKE_INTERCEPT_MIN");
  s.on = mode != "0";
  s.report = mode == "report";
  if (!mode.empty() && mode != "0" && mode != "1" && mode != "report") {
    s.wrong = "GLAKE_INTERCEPT=" + mode + ": it takes 0, 1 or report";
  }
  if (!least.empty()) {
    const auto bytes = parse_size(least);
    if (bytes) {
      s.least = *bytes;
    } else {
      s.wrong = "GLAKE_INTERCEPT_MIN=" + least + ": it takes bytes (\"4MiB\")";
    }
  }
  s.json = variable("GLAKE_INTERCEPT_JSON");
  s.topology = variable("GLAKE_INTERCEPT_TOPOLOGY");
  s.visible_given = std::getenv("GLAKE_INTERCEPT_VISIBLE") != nullptr;
  s.visible = variable("GLAKE_INTERCEPT_VISIBLE");
  s.own_gpus_only = only_own();
  if (!s.wrong.empty()) s.on = false;
  return s;
}

}  // namespace

const Settings& settings() {
  static const Settings* read_once = new Settings(read());
  return *read_once;
}

}  // namespace glake::intercept
