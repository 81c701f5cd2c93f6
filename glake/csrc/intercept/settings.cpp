#include "intercept/settings.h"

#include <cstdlib>

#include "base/numbers.h"
#include "base/option_table.h"

namespace glake::intercept {
namespace {

std::string variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

// The value of one of glake's options, or its default.
std::string option(const OptionRow& row) {
  const std::string text = variable(("GLAKE_" + upper(row.name)).c_str());
  return text.empty() ? row.fallback : text;
}

std::string refused(const OptionRow& row) {
  return "GLAKE_" + upper(row.name) + "=" + option(row) + ": it takes " + row.takes;
}

// As one_of_several() of glake/transfer/relay/modes.py: whether a launcher says that this node may
// have several of the job's processes. The first variables hold the number of processes on the
// node, the others that of all processes.
bool one_of_several() {
  for (const char* name : {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
                           "PMI_LOCAL_SIZE", "SLURM_STEP_TASKS_PER_NODE"}) {
    const std::string here = variable(name);
    if (here.empty()) continue;
    if (here == "1") return false;
    // srun: "1(x4)" is one process on each of four nodes.
    const bool repeated = here.rfind("1(x", 0) == 0 && here.back() == ')' &&
                          here.find_first_not_of("0123456789", 3) == here.size() - 1 &&
                          here.size() > 4;
    return !repeated;
  }
  for (const char* name :
       {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "WORLD_SIZE"}) {
    const std::string all = variable(name);
    if (!all.empty() && all != "1") return true;
  }
  return false;
}

// Whether only GPUs that this process copies to or from may relay. The choice is that of
// glake/transfer/relay/modes.py, with one difference: only Python asks the service that lends GPUs,
// so here the answer is true where Python would ask.
bool only_own() {
  const std::string relays = variable("GLAKE_RELAYS");
  return relays.empty() ? one_of_several() : relays != "all";
}

Settings read() {
  Settings s;
  const OptionRow& mode_row = *other_option("intercept");
  const OptionRow& least_row = *other_option("intercept_min");
  const std::string mode = option(mode_row);
  s.on = mode != "0";
  s.report = mode == "report";
  if (mode != "0" && mode != "1" && mode != "report") s.wrong = refused(mode_row);
  const auto least = parse_size(option(least_row));
  if (!least) s.wrong = refused(least_row);
  s.least = least.value_or(0);
  s.json = variable("GLAKE_INTERCEPT_JSON");
  s.topology = variable("GLAKE_INTERCEPT_TOPOLOGY");
  s.visible_given = std::getenv("GLAKE_INTERCEPT_VISIBLE") != nullptr;
  s.visible = variable("GLAKE_INTERCEPT_VISIBLE");
  s.held = variable("GLAKE_COPY_ORDER") == "held";
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
