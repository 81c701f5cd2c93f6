// Reads simcuda's options by the table that is made from glake/config.py.
#include "options.h"

#include <cstring>

#include "base/numbers.h"
#include "base/types.h"
#include "books.h"
#include "types.h"

extern "C" char** environ;

namespace simcuda {
namespace {

// An option that may change at any time. `apply` puts its value in force. False if the value names
// a call that does not exist.
struct Live {
  const char* key;
  bool (*apply)(const Options& options);
};

constexpr Live kLive[] = {
    {"call_us", [](const Options& options) { return books().configure_costs(options.call_us); }},
    {"call_delay_us",
     [](const Options& options) { return books().configure_delays(options.call_delay_us); }},
    {"call_time",
     [](const Options& options) {
       call_time() = options.call_time;
       return true;
     }},
    {"complete_after",
     [](const Options& options) {
       const auto ticks = glake::parse_whole(options.complete_after, kAuto + 1, INT64_MAX);
       complete_after() = ticks.value_or(kAuto);
       return true;
     }},
    {"dead_link",
     [](const Options& options) {
       dead_link() = options.dead_link;
       return true;
     }},
};

const Live* find_live(const std::string& key) {
  for (const Live& live : kLive) {
    if (key == live.key) return &live;
  }
  return nullptr;
}

// Calls `use` as each_simulator_option() does, but only for the option of that name. False if there
// is no such option.
template <typename Use>
bool with_option(const std::string& key, Use&& use) {
  bool found = false;
  glake::each_simulator_option([&](const glake::OptionRow& row, auto field, const auto& kind) {
    if (key != row.name) return;
    found = true;
    use(row, field, kind);
  });
  return found;
}

}  // namespace

bool is_live_option(const std::string& key) { return find_live(key) != nullptr; }

bool is_option(const std::string& key) {
  return with_option(key, [](const auto&...) {});
}

bool set_option(Options* options, const std::string& key, const std::string& value,
                std::string* why) {
  bool ok = true;
  const bool known = with_option(key, [&](const glake::OptionRow& row, auto field, auto& kind) {
    try {
      glake::read_option_into(row, kind, value, &(options->*field));
    } catch (const glake::Error&) {
      ok = false;
    }
    const Live* live = find_live(key);
    ok = ok && (live == nullptr || live->apply(*options));
    if (!ok) *why = "simcuda option " + key + " takes " + row.takes + ", not \"" + value + "\"";
  });
  if (!known) *why = "simcuda has no option " + key;
  return known && ok;
}

bool load_options(Options* options, const Given& given, std::string* why) {
  constexpr const char kPrefix[] = "GLAKE_SIM_";
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    if (std::strncmp(*entry, kPrefix, sizeof kPrefix - 1) != 0) continue;
    const std::string text = *entry + sizeof kPrefix - 1;
    const size_t equals = text.find('=');
    if (equals == std::string::npos) continue;
    const std::string key = glake::lower(text.substr(0, equals));
    const std::string value = text.substr(equals + 1);
    if (given.count(key) != 0 || (value.empty() && is_option(key))) continue;  // empty: as if unset
    if (!set_option(options, key, value, why)) return false;
  }
  for (const auto& [key, value] : given) {
    if (!is_live_option(key) && !set_option(options, key, value, why)) return false;
  }
  return true;
}

void reset_live_options() {
  const Options defaults;
  for (const Live& live : kLive) live.apply(defaults);
}

std::atomic<bool>& call_time() {
  static std::atomic<bool> value{false};
  return value;
}

std::atomic<int>& dead_link() {
  static std::atomic<int> value{0};
  return value;
}

std::atomic<int64_t>& complete_after() {
  static std::atomic<int64_t> value{kAuto};
  return value;
}

}  // namespace simcuda
