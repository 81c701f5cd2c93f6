// Parses and checks simcuda's options.
#include "options.h"

#include <cstring>

#include "base/numbers.h"
#include "base/option_table.h"
#include "books.h"
#include "types.h"

extern "C" char** environ;

namespace simcuda {
namespace {

bool parse_integer(const std::string& text, int64_t low, int64_t high, int64_t* value) {
  const std::optional<int64_t> parsed = glake::parse_whole(text, low, high);
  *value = parsed.value_or(0);
  return parsed.has_value();
}

bool parse_bytes(const std::string& text, uint64_t* bytes) {
  *bytes = glake::parse_size(text).value_or(0) / kGranule * kGranule;
  return *bytes > 0;
}

bool parse_flag(const std::string& text, bool* value) {
  const std::string word = glake::lower(text);
  *value = word == "1" || word == "on" || word == "yes" || word == "true";
  return *value || word == "0" || word == "off" || word == "no" || word == "false";
}

bool safe_name(const std::string& text) {
  for (const char c : text) {
    const bool plain = glake::is_letter(c) || glake::is_digit(c);
    if (!plain && c != '_' && c != '-' && c != '.') return false;
  }
  return text.size() <= 64 && text[0] != '.';
}

// Options that glake/config.py does not have: of this library's own tests and calibration.
const char* takes_of_own(const std::string& key) {
  if (key == "max_maps") return "at least 64";
  if (key == "reuse_handles") return "0 or 1";
  if (key == "batch_small_ns" || key == "batch_large_ns") return "nanoseconds from 0";
  if (key == "dead_link") return "a CUresult, or 0";
  return nullptr;
}

// What an option takes, in words; nullptr: there is no such option.
const char* takes_of(const std::string& key) {
  const glake::OptionRow* row = glake::other_option("sim_" + key);
  return row != nullptr ? row->takes : takes_of_own(key);
}

std::string refusal(const std::string& key, const std::string& value) {
  return "simcuda option " + key + " takes " + takes_of(key) + ", not \"" + value + "\"";
}

}  // namespace

bool is_live_option(const std::string& key) {
  return key == "complete_after" || key == "dead_link" || key == "call_us" ||
         key == "call_delay_us" || key == "call_time";
}

bool is_option(const std::string& key) { return takes_of(key) != nullptr && !is_live_option(key); }

bool set_option(Options* options, const std::string& key, const std::string& value,
                std::string* why) {
  int64_t number = 0;
  bool ok = true;
  if (key == "preset") {
    options->preset = value;
  } else if (key == "platforms") {
    options->platforms = value;
  } else if (key == "costs") {
    options->costs = value;
  } else if (key == "cost_file") {
    options->cost_file = value;
  } else if (key == "devices") {
    ok = parse_integer(value, 1, kMaxDevices, &number);
    options->devices = static_cast<int>(number);
  } else if (key == "memory") {
    ok = parse_bytes(value, &options->memory);
  } else if (key == "context_memory") {
    ok = value == "0" || parse_bytes(value, &options->context_memory);
  } else if (key == "phantom") {
    ok = parse_flag(value, &options->phantom);
  } else if (key == "seed") {
    ok = parse_integer(value, 0, INT64_MAX, &number);
    options->seed = static_cast<uint64_t>(number);
  } else if (key == "schedule") {
    ok = value == "lazy" || value == "threaded";
    options->threaded = value == "threaded";
  } else if (key == "completion") {
    ok = value == "instant" || value == "polled";
    options->polled = value == "polled";
  } else if (key == "driver_lock") {
    ok = parse_flag(value, &options->driver_lock);
  } else if (key == "sticky_errors") {
    ok = parse_flag(value, &options->sticky_errors);
  } else if (key == "visible_devices") {
    ok = parse_flag(value, &options->visible_devices);
  } else if (key == "pace") {
    ok = parse_integer(value, 0, 1000000, &number);
    options->pace = static_cast<uint64_t>(number);
  } else if (key == "machine") {
    ok = safe_name(value);
    options->machine = value;
  } else if (key == "machine_dir") {
    options->machine_dir = value;
  } else if (key == "max_maps") {
    ok = parse_integer(value, 64, INT64_MAX, &options->max_maps);
  } else if (key == "reuse_handles") {
    ok = parse_flag(value, &options->reuse_handles);
  } else if (key == "host_node") {
    ok = value == "local" || value == "interleave" || parse_integer(value, 0, 63, &number);
    options->host_node = value;
  } else if (key == "batch_small_ns" || key == "batch_large_ns") {
    ok = parse_integer(value, 0, INT64_C(1) << 40, &number);
    (key == "batch_small_ns" ? options->batch_small_ns : options->batch_large_ns) =
        static_cast<uint64_t>(number);
  } else {
    *why = "simcuda has no option " + key;
    return false;
  }
  if (!ok) *why = refusal(key, value);
  return ok;
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
    const bool known = is_option(key) || is_live_option(key);
    if (given.count(key) != 0 || (known && value.empty())) continue;  // empty: as if unset
    const bool ok = is_live_option(key) ? set_live_option(key, value, why)
                                        : set_option(options, key, value, why);
    if (!ok) return false;
  }
  for (const auto& [key, value] : given) {
    if (!is_live_option(key) && !set_option(options, key, value, why)) return false;
  }
  return true;
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

bool set_live_option(const std::string& key, const std::string& value, std::string* why) {
  int64_t number = kAuto;
  if (key == "call_us" || key == "call_delay_us") {
    const int code =
        key == "call_us" ? books().configure_costs(value) : books().configure_delays(value);
    if (code != 0) *why = last_message();
    return code == 0;
  }
  if (key == "call_time") {
    bool on = false;
    if (!parse_flag(value, &on)) {
      *why = refusal(key, value);
      return false;
    }
    call_time() = on;
    return true;
  }
  if (key == "dead_link") {
    if (!parse_integer(value, 0, 99999, &number)) {
      *why = refusal(key, value);
      return false;
    }
    dead_link() = static_cast<int>(number);
    return true;
  }
  if (value != "auto" && !parse_integer(value, -1, INT64_MAX, &number)) {
    *why = refusal(key, value);
    return false;
  }
  complete_after() = number;
  return true;
}

}  // namespace simcuda
