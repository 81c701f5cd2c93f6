// Times of plans, on every platform of the given file. The first plan searches candidate paths. A
// plan after something was learnt only computes rates. A known plan is only looked up.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "base/json.h"
#include "plan/planner.h"

namespace {

using namespace glake::transfer;
using glake::topology::Json;
using glake::topology::Topology;

double now_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(now).count();
}

// The least time of several tries, as longer ones include other processes.
template <typename Try>
double least(int tries, Try once) {
  double best = 1e12;
  for (int i = 0; i < tries; ++i) {
    const double start = now_us();
    once();
    best = std::min(best, now_us() - start);
  }
  return best;
}

void measure(const std::string& platform, const Topology& topology, const char* name,
             const std::vector<Demand>& demands) {
  constexpr int kLookups = 1000;
  const double first = least(5, [&] { Planner(topology).find(demands); });
  Planner planner(topology);
  planner.find(demands);
  const double again = least(20, [&] {
    planner.set_scale(0, 1);
    planner.find(demands);
  });
  const double known = least(20, [&] {
    for (int i = 0; i < kLookups; ++i) planner.find(demands);
  });
  std::printf("%-20s %-16s first %7.0f us   again %6.0f us   known %5.2f us\n", platform.c_str(),
              name, first, again, known / kLookups);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: plan_time PLATFORMS.json\n");
    return 2;
  }
  std::ifstream file(arguments[1]);
  std::stringstream text;
  text << file.rdbuf();
  const Json all = Json::parse(text.str());
  for (const auto& [name, platform] : all.members()) {
    if (name[0] == '_' || name == "per_copy_us") continue;
    const Topology topology = Topology::parse(text.str(), name);
    const Place striped{-1, kStriped}, g0{0}, g1{1};
    std::vector<Demand> everyone;
    for (int gpu = 0; gpu < topology.gpus(); ++gpu) everyone.push_back({{}, {gpu}});
    measure(name, topology, "h2d", {{{}, g0}});
    measure(name, topology, "h2d striped", {{striped, g0}});
    measure(name, topology, "p2p:0>1", {{g0, g1}});
    measure(name, topology, "both directions", {{striped, g0}, {g0, striped}});
    measure(name, topology, "all-h2d", everyone);
  }
  return 0;
}
