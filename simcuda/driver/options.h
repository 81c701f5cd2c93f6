// simcuda's options: set by simcuda_configure or GLAKE_SIM_<KEY>, read at cuInit.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>

#include "base/option_table.h"

namespace simcuda {

constexpr int64_t kAuto = INT64_MIN;

// glake/config.py says what each option means. The build makes the fields from it.
struct Options : glake::SimulatorValues {
  bool threaded() const { return schedule == glake::ScheduleKind::kThreaded; }
  bool polled() const { return completion == glake::CompletionKind::kPolled; }
};

// Options given by simcuda_configure, as text. They win over the environment.
using Given = std::map<std::string, std::string>;

// Sets one option from text. A live one is put in force in the whole process as well. If it cannot
// be set, returns false and fills *why.
bool set_option(Options* options, const std::string& key, const std::string& value,
                std::string* why);
// Reads the environment, then `given`. Unknown GLAKE_SIM_ variables are errors. Live options of
// `given` are in force already.
bool load_options(Options* options, const Given& given, std::string* why);
bool is_option(const std::string& key);

// Live options may change at any time. Their values are kept here.
bool is_live_option(const std::string& key);
void reset_live_options();
std::atomic<int64_t>& complete_after();
std::atomic<bool>& call_time();  // calls that enqueue work take their time on the clock
std::atomic<int>& dead_link();   // error of copies over a dead link; 0: they stand still

}  // namespace simcuda
