#include "base/options.h"

#include <unistd.h>

#include <algorithm>
#include <functional>
#include <vector>

namespace glake {
namespace {

[[noreturn]] void refuse(const std::string& key, const std::string& value, const char* takes,
                         const std::string& why = "") {
  throw Error(GLAKE_INVALID_OPTION, "option " + key + " does not take \"" + value + "\"" +
                                        (why.empty() ? "" : ": " + why) + "; it takes " + takes);
}

Bytes bytes_of(const std::string& key, const std::string& text, Bytes least, const char* takes) {
  const std::optional<uint64_t> bytes = parse_size(text);
  if (!bytes || *bytes < least) refuse(key, text, takes);
  return *bytes;
}

// As config.py: a path has a "/", so that a misspelt name is refused at once.
constexpr const char* kDriverTakes =
    "cuda, sim[:preset] or the path (with a /) of a library that exports cu* symbols";

void set_driver(Options& o, const std::string& v) {
  const bool preset = v.rfind("sim:", 0) == 0 && v.size() > 4;
  if (v != "cuda" && v != "sim" && !preset && v.find('/') == std::string::npos) {
    refuse("driver", v, kDriverTakes);
  }
  o.driver = v;
}

constexpr const char* kLimitTakes =
    "none, a fraction (0.9, 90%) of at least 0.00000012 or bytes of at least 2MiB (70GiB)";
// A granule of a device of 16 TiB, more than any has.
constexpr double kLeastFraction = 1.0 / (1 << 23);

void set_limit(Options& o, const std::string& v) {
  if (v == "none") {
    o.limit_fraction = 1.0;
    o.limit_bytes = 0;
    return;
  }
  std::string_view unit = v;
  const double number = take_decimal(&unit).value_or(0);
  if (unit == "%" || (unit.empty() && number <= 1)) {
    const double fraction = unit == "%" ? number / 100 : number;
    if (fraction > 0 && fraction < kLeastFraction) {
      refuse("limit", v, kLimitTakes,
             "less than one granule of 2MiB of any device (none has 16TiB)");
    }
    if (!(fraction > 0 && fraction <= 1)) refuse("limit", v, kLimitTakes);
    o.limit_fraction = fraction;
    o.limit_bytes = 0;
  } else {
    o.limit_bytes = bytes_of("limit", v, kGranule, kLimitTakes);
  }
}

std::string show_limit(const Options& o) {
  if (o.limit_bytes != 0) return std::to_string(o.limit_bytes);
  return o.limit_fraction == 1.0 ? "none" : exact_text(o.limit_fraction);
}

constexpr const char* kHeadroomTakes =
    "none, or how much of each device's memory stays free for others (4GiB)";

void set_headroom(Options& o, const std::string& v) {
  o.headroom = v == "none" ? 0 : bytes_of("headroom", v, 1, kHeadroomTakes);
}

void set_view_budget(Options& o, const std::string& v) {
  const std::optional<double> number = parse_decimal(v);
  if (!number || *number < 1 || *number > 1000) {
    refuse("view_budget", v, "a multiple of the limit from 1 to 1000");
  }
  o.view_budget = *number;
}

constexpr const char* kContiguousTakes =
    "none, or the size, 1MiB or more, from which blocks are one driver allocation each (64MiB, "
    "legacy:64MiB)";

void set_contiguous(Options& o, const std::string& v) {
  if (v == "none") {
    o.contiguous_from = 0;
    return;
  }
  size_t colon = v.find(':');
  std::string kind = colon == std::string::npos ? "vmm" : v.substr(0, colon);
  if (kind != "vmm" && kind != "legacy") refuse("contiguous", v, kContiguousTakes);
  o.contiguous_from = bytes_of("contiguous", colon == std::string::npos ? v : v.substr(colon + 1),
                               kSmallLimit, kContiguousTakes);
  o.contiguous_kind = kind == "vmm" ? GLAKE_CONTIGUOUS_VMM : GLAKE_CONTIGUOUS_LEGACY;
}

std::string show_contiguous(const Options& o) {
  if (o.contiguous_from == 0) return "none";
  return (o.contiguous_kind == GLAKE_CONTIGUOUS_VMM ? "vmm:" : "legacy:") +
         std::to_string(o.contiguous_from);
}

void set_debug(Options& o, const std::string& v) {
  DebugModes modes;
  for (size_t begin = 0; v != "none" && begin <= v.size();) {
    size_t comma = std::min(v.find(',', begin), v.size());
    std::string word = v.substr(begin, comma - begin);
    bool* mode = word == "guard"    ? &modes.guard
                 : word == "poison" ? &modes.poison
                 : word == "trace"  ? &modes.trace
                 : word == "sync"   ? &modes.sync
                                    : nullptr;
    if (mode == nullptr) refuse("debug", v, "none, or a comma list of guard, poison, trace, sync");
    *mode = true;
    begin = comma + 1;
  }
  o.debug = modes;
}

std::string show_debug(const Options& o) {
  std::string text;
  auto add = [&text](bool on, const char* word) {
    if (on) text += (text.empty() ? "" : ",") + std::string(word);
  };
  add(o.debug.guard, "guard");
  add(o.debug.poison, "poison");
  add(o.debug.trace, "trace");
  add(o.debug.sync, "sync");
  return text.empty() ? "none" : text;
}

struct Entry {
  const char* key;
  const char* fallback;
  const char* help;
  std::function<void(Options&, const std::string&)> set;
  std::function<std::string(const Options&)> show;
};

const std::vector<Entry>& table() {
  static const auto* entries = new std::vector<Entry>{
      {"driver", "cuda", "the CUDA driver to use; nothing falls back to the simulator", set_driver,
       [](const Options& o) { return o.driver; }},
      {"policy", "balanced",
       "what comes first: balanced grows while the limit has room, compact stitches",
       [](Options& o, const std::string& v) {
         if (v == "balanced") {
           o.policy = PolicyKind::kBalanced;
         } else if (v == "compact") {
           o.policy = PolicyKind::kCompact;
         } else {
           refuse("policy", v, "balanced or compact");
         }
       },
       [](const Options& o) {
         return std::string(o.policy == PolicyKind::kBalanced ? "balanced" : "compact");
       }},
      {"limit", "none", "most physical memory that glake holds on each device", set_limit,
       show_limit},
      {"headroom", "none", "memory of each device that glake leaves free for others", set_headroom,
       [](const Options& o) { return o.headroom == 0 ? "none" : std::to_string(o.headroom); }},
      {"peers", "none", "devices that may reach each device's memory from the start",
       [](Options& o, const std::string& v) {
         if (v != "none" && v != "all") refuse("peers", v, "none or all");
         o.peers = v == "all";
       },
       [](const Options& o) { return std::string(o.peers ? "all" : "none"); }},
      {"view_budget", "8", "most bytes kept mapped in stitched views, as a multiple of the limit",
       set_view_budget, [](const Options& o) { return exact_text(o.view_budget); }},
      {"contiguous", "none",
       "blocks from this size on are one driver allocation each, as NCCL, RDMA and IPC want them",
       set_contiguous, show_contiguous},
      {"debug", "none", "find writes outside blocks and after a free (docs/debugging.md)",
       set_debug, show_debug},
      {"copy_order", "enqueued",
       "transfers in a stream's order: all is enqueued, or the stream waits for glake's threads",
       [](Options& o, const std::string& v) {
         if (v != "held" && v != "enqueued") refuse("copy_order", v, "held or enqueued");
         o.enqueue_copies = v == "enqueued";
       },
       [](const Options& o) { return std::string(o.enqueue_copies ? "enqueued" : "held"); }},
      {"trace", "", "record every allocation and free in this file",
       [](Options& o, const std::string& v) { o.trace = v; },
       [](const Options& o) { return o.trace; }},
  };
  return *entries;
}

// Read by the Python side, the simulator or the preloaded library; named here so that a misspelt
// one is an error.
const std::vector<std::string>& other_keys() {
  static const auto* keys = new std::vector<std::string>{
      "allocator",          "strict",          "jit_dir",        "host_allocator",
      "private_pools",      "integrations",    "relays",         "sim_preset",
      "sim_platforms",      "sim_devices",     "sim_memory",     "sim_context_memory",
      "sim_phantom",        "sim_seed",        "sim_schedule",   "sim_completion",
      "sim_machine",        "sim_machine_dir", "sim_call_us",    "sim_call_delay_us",
      "sim_complete_after", "sim_costs",       "sim_cost_file",  "sim_host_node",
      "intercept",          "intercept_min",   "intercept_json", "intercept_topology",
      "intercept_visible",  "sim_driver_lock", "sim_call_time",  "sim_pace",
      "sim_visible_devices"};
  return *keys;
}

std::string quote(const std::string& s) {
  std::string out = "\"";
  for (char c : s) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  return out + "\"";
}

}  // namespace

void Options::set(const std::string& key, const std::string& value) {
  std::string name = lower(key);
  for (const Entry& e : table()) {
    if (name == e.key) {
      e.set(*this, value.empty() ? e.fallback : value);
      return;
    }
  }
  std::string known;
  for (const Entry& e : table()) known += std::string(known.empty() ? "" : ", ") + e.key;
  throw Error(GLAKE_UNKNOWN_OPTION, "glake knows no option \"" + key + "\"; it knows " + known);
}

Options Options::from_environment() {
  Options options;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    std::string text = *entry;
    if (text.rfind("GLAKE_", 0) != 0) continue;
    size_t equals = text.find('=');
    std::string key = lower(text.substr(6, equals - 6));
    const auto& others = other_keys();
    if (std::find(others.begin(), others.end(), key) != others.end()) continue;
    options.set(key, text.substr(equals + 1));
  }
  return options;
}

std::string Options::describe() const {
  std::string json = "[";
  for (const Entry& e : table()) {
    std::string variable = "GLAKE_" + upper(e.key);
    if (json.size() > 1) json += ", ";
    json += "{\"name\": " + quote(e.key) + ", \"variable\": " + quote(variable) +
            ", \"default\": " + quote(e.fallback) + ", \"value\": " + quote(e.show(*this)) +
            ", \"help\": " + quote(e.help) + "}";
  }
  return json + "]";
}

}  // namespace glake
