// The one list of policies by which a trace can be replayed.
#include <optional>
#include <string_view>

#include "base/numbers.h"
#include "bound_policy.h"
#include "expandable_policy.h"
#include "glake_policy.h"
#include "gmlake_policy.h"
#include "native_policy.h"
#include "policy.h"

namespace glake::replay {
namespace {

constexpr std::string_view kGmlakeWithSize = "gmlake:";

[[noreturn]] void refuse_size(const std::string& name) {
  throw ReplayError("policy '" + name +
                    "': give the smallest size that is stitched, 2MiB to 1TiB, as in "
                    "gmlake:64MiB (bytes, KiB, MiB, GiB or TiB)");
}

uint64_t frag_limit_of(const std::string& name) {
  constexpr uint64_t kMost = 1024 * 1024 * kMiB;
  const std::optional<uint64_t> size =
      parse_size(std::string_view(name).substr(kGmlakeWithSize.size()));
  if (!size || *size < kGranule || *size > kMost) refuse_size(name);
  return *size;
}

GmlakeKnobs gmlake_knobs(const std::string& name) {
  GmlakeKnobs knobs;
  if (name != "gmlake") knobs.frag_limit = frag_limit_of(name);
  return knobs;
}

bool is_gmlake(const std::string& name) {
  return name == "gmlake" || name.compare(0, kGmlakeWithSize.size(), kGmlakeWithSize) == 0;
}

}  // namespace

const std::vector<PolicyTitle>& policies() {
  static const std::vector<PolicyTitle> all = {
      {"glake", "this library", PolicyKind::kOwn},
      {"compact", "this library, policy compact", PolicyKind::kOwn},
      {"native", "model of PyTorch's allocator", PolicyKind::kModel},
      {"expandable", "model of PyTorch, expandable segments", PolicyKind::kModel},
      {"gmlake", "model of GMLake", PolicyKind::kModel},
      {"bound", "offline lower bound", PolicyKind::kBound},
  };
  return all;
}

void require_policy(const std::string& name) {
  if (is_gmlake(name)) {
    gmlake_knobs(name);
    return;
  }
  std::string known;
  for (const PolicyTitle& each : policies()) {
    if (each.name == name) return;
    known += (known.empty() ? "" : ", ") + std::string(each.name);
  }
  throw ReplayError("unknown policy '" + name + "'; known: " + known + " (also gmlake:SIZE)");
}

std::unique_ptr<Policy> make_policy(const std::string& name, const PolicyConfig& wanted) {
  require_policy(name);
  PolicyConfig config = wanted;
  if (config.capacity == kUnlimited) config.capacity = kUnlimitedBytes;
  if (config.capacity > kMostBytes) {
    throw ReplayError("a device of " + std::to_string(config.capacity) +
                      " bytes: the largest has " + std::to_string(kMostBytes) + " (8 TiB)");
  }
  if (name == "glake") return std::make_unique<GlakePolicy>("balanced", config);
  if (name == "compact") return std::make_unique<GlakePolicy>("compact", config);
  if (name == "native") return std::make_unique<NativePolicy>(config);
  if (name == "expandable") return std::make_unique<ExpandablePolicy>(config);
  if (name == "bound") return std::make_unique<BoundPolicy>(config);
  return std::make_unique<GmlakePolicy>(config, gmlake_knobs(name));
}

}  // namespace glake::replay
