// The one list of policies a trace can be replayed under.
#include "expandable_policy.h"
#include "glake_policy.h"
#include "native_policy.h"
#include "policy.h"

namespace glake::replay {

const std::vector<std::string>& policy_names() {
  static const std::vector<std::string> names = {"glake", "compact", "native", "expandable"};
  return names;
}

std::unique_ptr<Policy> make_policy(const std::string& name, const PolicyConfig& config) {
  if (name == "glake") return std::make_unique<GlakePolicy>("balanced", config);
  if (name == "compact") return std::make_unique<GlakePolicy>("compact", config);
  if (name == "native") return std::make_unique<NativePolicy>(config);
  if (name == "expandable") return std::make_unique<ExpandablePolicy>(config);
  std::string known;
  for (const std::string& each : policy_names()) known += (known.empty() ? "" : ", ") + each;
  throw ReplayError("unknown policy '" + name + "'; known: " + known);
}

}  // namespace glake::replay
