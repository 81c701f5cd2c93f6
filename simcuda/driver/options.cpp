// Parses and checks simcuda's options.
#include "options.h"

#include <cstring>

#include "base/numbers.h"
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

}  // namespace

bool is_option(const std::string& key) {
  for (const char* known :
       {"preset",         "platforms",      "devices",       "memory",      "context_memory",
        "phantom",        "seed",           "schedule",      "machine",     "machine_dir",
        "max_maps",       "host_node",      "reuse_handles", "costs",       "cost_file",
        "batch_small_ns", "batch_large_ns", "completion",    "driver_lock", "visible_devices",
        "pace",           "sticky_errors"}) {
    if (key == known) return true;
  }
  return false;
}

bool is_live_option(const std::string& key) {
  return key == "complete_after" || key == "dead_link" || key == "call_us" ||
         key == "call_delay_us" || key == "call_time";
}

bool set_option(Options* options, const std::string& key, const std::string& value,
                std::string* why) {
  int64_t number = 0;
  bool ok = true;
  std::string takes;
  if (key == "preset") {
    options->preset = value;
  } else if (key == "platforms") {
    options->platforms = value;
  } else if (key == "costs") {
    options->costs = value;
  } else if (key == "cost_file") {
    options->cost_file = value;
  } else if (key == "devices") {
    takes = "1 to " + std::to_string(kMaxDevices);
    ok = parse_integer(value, 1, kMaxDevices, &number);
    options->devices = static_cast<int>(number);
  } else if (key == "memory") {
    takes = "2MiB to 64TiB, with suffix KiB, MiB, GiB or TiB";
    ok = parse_bytes(value, &options->memory);
  } else if (key == "context_memory") {
    takes = "0, or at least 2MiB, with suffix KiB, MiB or GiB";
    ok = value == "0" || parse_bytes(value, &options->context_memory);
  } else if (key == "phantom") {
    takes = "0 or 1";
    ok = parse_flag(value, &options->phantom);
  } else if (key == "seed") {
    takes = "a whole number from 0";
    ok = parse_integer(value, 0, INT64_MAX, &number);
    options->seed = static_cast<uint64_t>(number);
  } else if (key == "schedule") {
    takes = "lazy or threaded";
    ok = value == "lazy" || value == "threaded";
    options->threaded = value == "threaded";
  } else if (key == "completion") {
    takes = "instant or polled";
    ok = value == "instant" || value == "polled";
    options->polled = value == "polled";
  } else if (key == "driver_lock") {
    takes = "0 or 1";
    ok = parse_flag(value, &options->driver_lock);
  } else if (key == "sticky_errors") {
    takes = "0 or 1";
    ok = parse_flag(value, &options->sticky_errors);
  } else if (key == "visible_devices") {
    takes = "0 or 1";
    ok = parse_flag(value, &options->visible_devices);
  } else if (key == "pace") {
    takes = "0, or real nanoseconds to one of the clock";
    ok = parse_integer(value, 0, 1000000, &number);
    options->pace = static_cast<uint64_t>(number);
  } else if (key == "machine") {
    takes = "a name of letters, digits, '_', '-' and '.'";
    ok = safe_name(value);
    options->machine = value;
  } else if (key == "machine_dir") {
    options->machine_dir = value;
  } else if (key == "max_maps") {
    takes = "at least 64";
    ok = parse_integer(value, 64, INT64_MAX, &options->max_maps);
  } else if (key == "reuse_handles") {
    takes = "0 or 1";
    ok = parse_flag(value, &options->reuse_handles);
  } else if (key == "host_node") {
    takes = "a socket's number, local or interleave";
    ok = value == "local" || value == "interleave" || parse_integer(value, 0, 63, &number);
    options->host_node = value;
  } else if (key == "batch_small_ns" || key == "batch_large_ns") {
    takes = "nanoseconds from 0";
    ok = parse_integer(value, 0, INT64_C(1) << 40, &number);
    (key == "batch_small_ns" ? options->batch_small_ns : options->batch_large_ns) =
        static_cast<uint64_t>(number);
  } else {
    *why = "simcuda has no option " + key;
    return false;
  }
  if (!ok) *why = "simcuda option " + key + " takes " + takes + ", not \"" + value + "\"";
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
      *why = "simcuda option call_time takes 0 or 1, not \"" + value + "\"";
      return false;
    }
    call_time() = on;
    return true;
  }
  if (key == "dead_link") {
    if (!parse_integer(value, 0, 99999, &number)) {
      *why = "simcuda option dead_link takes a CUresult, or 0, not \"" + value + "\"";
      return false;
    }
    dead_link() = static_cast<int>(number);
    return true;
  }
  if (value != "auto" && !parse_integer(value, -1, INT64_MAX, &number)) {
    *why =
        "simcuda option complete_after takes auto, -1 or a number of ticks, not \"" + value + "\"";
    return false;
  }
  complete_after() = number;
  return true;
}

}  // namespace simcuda
