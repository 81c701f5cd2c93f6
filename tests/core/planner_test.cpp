// Compares plans with the bounds of every platform of the platforms file, and checks plans on
// random machines: no link is over its capacity, shares are fair, and each path that is not used
// has a reason.
#include "plan/planner.h"

#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>

#include "base/json.h"
#include "harness.h"
#include "plan/fair_rates.h"

namespace {

using namespace glake::transfer;
using glake::topology::Json;
using glake::topology::Load;
using glake::topology::Topology;

constexpr double kOfBound = 0.97, kOfJointBound = 0.95;
constexpr double kGate = 1.15;

std::string platforms_text() {
  Dl_info info{};
  dladdr(reinterpret_cast<void*>(&simcuda_configure), &info);
  const std::string library = info.dli_fname;
  std::ifstream file(library.substr(0, library.rfind('/') + 1) + "platforms.json");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> platform_names(const Json& all) {
  std::vector<std::string> names;
  for (const auto& [name, value] : all.members()) {
    if (name[0] != '_' && name != "per_copy_us") names.push_back(name);
  }
  return names;
}

std::string text_of(const TransferPlan& plan) {
  std::ostringstream text;
  text << plan.rate << " GB/s, plain " << plan.plain;
  for (const PlannedPath& path : plan.paths) text << "\n    " << path.path.name << " " << path.rate;
  return text.str();
}

double jain(const Planner::Plans& plans) {
  double sum = 0, squares = 0;
  for (const TransferPlan& plan : plans) sum += plan.rate, squares += plan.rate * plan.rate;
  return sum * sum / (static_cast<double>(plans.size()) * squares);
}

double total(const Planner::Plans& plans) {
  double sum = 0;
  for (const TransferPlan& plan : plans) sum += plan.rate;
  return sum;
}

// Every hop starts where the one before it ended, and the load of all paths is within every limit.
void check_sound(const Topology& topology, const std::vector<Demand>& demands,
                 const Planner::Plans& plans) {
  std::vector<double> load(topology.limits().size(), 0.0);
  CHECK(plans.size() == demands.size());
  for (size_t d = 0; d < plans.size(); ++d) {
    double sum = 0;
    for (const PlannedPath& planned : plans[d].paths) {
      const std::vector<Hop>& hops = planned.path.hops;
      CHECK(planned.rate > 0 && !hops.empty());
      CHECK(hops.front().from.gpu == demands[d].src.gpu &&
            hops.back().to.gpu == demands[d].dst.gpu);
      CHECK(planned.path.worker >= 0 || (demands[d].src.host() && demands[d].dst.host()));
      for (size_t h = 0; h < hops.size(); ++h) {
        CHECK(h == 0 || hops[h].from == hops[h - 1].to);
        for (const Load& edge : hops[h].route) {
          for (const Load& limit : topology.limits_of(edge.edge)) {
            load[static_cast<size_t>(limit.edge)] += planned.rate * edge.share * limit.share;
          }
        }
      }
      sum += planned.rate;
    }
    CHECK(plans[d].paths.size() <= 16 && std::abs(sum - plans[d].rate) < 1e-6 * (1 + sum));
  }
  for (size_t limit = 0; limit < load.size(); ++limit) {
    CHECK_TEXT(load[limit] <= topology.limits()[limit].limit * (1 + 1e-9) + 1e-9,
               "limit " + std::to_string(limit) + " carries " + std::to_string(load[limit]));
  }
}

// A row of the platforms file: its demands, and what its fault changes.
struct Row {
  std::vector<Demand> demands;
  std::map<int, double> scales;
  int excluded = -1;
};

// Both directions of the uplink that a GPU shares. If it shares none, both directions of its own
// PCIe link.
std::vector<int> uplink(const Topology& topology, int gpu) {
  std::vector<int> found;
  for (const bool in : {true, false}) {
    const auto route = in ? topology.host_to_device(topology.socket_of(gpu), gpu)
                          : topology.device_to_host(gpu, topology.socket_of(gpu));
    for (const Load& load : route) {
      const std::string& name = topology.name(load.edge);
      const char first = name[0], second = name[name.find('>') + 1];
      if ((in ? first : second) == 's' && (in ? second : first) != 'm') found.push_back(load.edge);
    }
  }
  return found;
}

Row row_of(const Topology& topology, const std::string& name, const Json& bound, int host) {
  Row row;
  const auto local = [&](int gpu) {
    const bool near = name.find("local") != std::string::npos;
    return Place{-1, near ? topology.socket_of(gpu) : host};
  };
  const auto to = [&](int gpu) { row.demands.push_back({local(gpu), {gpu}}); };
  const auto from = [&](int gpu) { row.demands.push_back({{gpu}, local(gpu)}); };
  std::smatch found;
  if (std::regex_search(name, found, std::regex("^p2p (\\d+)>(\\d+)"))) {
    row.demands.push_back({{std::stoi(found[1])}, {std::stoi(found[2])}});
  } else if (std::regex_search(name, found, std::regex("^two h2d .*\\((\\d+),(\\d+)\\)"))) {
    to(std::stoi(found[1])), to(std::stoi(found[2]));
  } else if (name.rfind("all ", 0) == 0) {
    for (int gpu = 0; gpu < topology.gpus(); ++gpu) name[4] == 'h' ? to(gpu) : from(gpu);
  } else if (name.rfind("bidir", 0) == 0) {
    to(0), from(0);
  } else {
    name[0] == 'h' ? to(0) : from(0);
  }
  const Json* fault = bound.find("case");
  if (fault == nullptr) return row;
  const std::string text = fault->text();
  if (name.find("uplink half") != std::string::npos) {
    CHECK(std::regex_search(text, found, std::regex("g(\\d+)")));
    for (const int edge : uplink(topology, std::stoi(found[1]))) row.scales[edge] = 0.5;
  } else if (name.find("excluded") != std::string::npos) {
    row.excluded = std::stoi(text.substr(1));
  } else if (std::regex_search(text, found, std::regex("pair (\\d)(\\d)"))) {
    const std::string a = "g" + found[1].str(), b = "g" + found[2].str();
    row.scales[topology.edge(a, b)] = row.scales[topology.edge(b, a)] = 0;
  } else {
    CHECK(std::regex_search(text, found, std::regex("1 of (\\d+) links of g(\\d+)")));
    const std::string gpu = "g" + found[2].str();
    const double left = 1 - 1 / std::stod(found[1]);
    row.scales[topology.edge(gpu, "N")] = row.scales[topology.edge("N", gpu)] = left;
  }
  return row;
}

// Where memory changes socket at every page, half of every chunk crosses the link between sockets.
// GB200's socket link is too slow for that. Most other socket links are too slow for it in both
// directions at once. No plan can bring these rows to the bound.
bool excepted(const std::string& platform, const std::string& name, int host) {
  const bool own_socket = name.find("local") != std::string::npos || name.rfind("p2p", 0) == 0;
  return host == glake::topology::kSpread && !own_socket &&
         (name.rfind("bidir", 0) == 0 || platform == "gb200_tray");
}

// What is wrong with the plans of a row; empty: nothing.
std::string fault_of(const Planner::Plans& plans, const Json& bound) {
  const double most = bound.at("bound").number(), plain = bound.at("plain").number();
  const Json* fair = bound.find("fair_each");
  const double wanted = most >= kGate * plain ? most : plain;
  if (fair == nullptr) {
    return total(plans) >= kOfBound * wanted ? "" : std::to_string(total(plans)) + " GB/s";
  }
  // The sum of rates may be largest if one transfer starves the other. So fairness is checked
  // first.
  for (const TransferPlan& plan : plans) {
    if (plan.rate < kOfBound * fair->number())
      return std::to_string(plan.rate) + " of a fair share";
  }
  if (jain(plans) < 0.95) return "unfair";
  return total(plans) >= kOfJointBound * wanted ? ""
                                                : std::to_string(total(plans)) + " GB/s together";
}

void check_rows(int host) {
  const std::string text = platforms_text();
  const Json all = Json::parse(text);
  std::string wrong;
  int rows = 0, relayed = 0;
  for (const std::string& platform : platform_names(all)) {
    const Topology topology = Topology::parse(text, platform);
    for (const auto& [name, bound] : all.at(platform).at("bounds").members()) {
      test::running() = platform + ": " + name;
      const Row row = row_of(topology, name, bound, host);
      Planner planner(topology);
      Topology learnt = topology;
      for (const auto& [edge, factor] : row.scales) {
        planner.set_scale(edge, factor);
        learnt.set_rate(edge, topology.rate(edge) * factor);
      }
      if (row.excluded >= 0) planner.set_relay(row.excluded, false);
      const Planner::Plans plans = planner.plan(row.demands);
      check_sound(learnt, row.demands, plans);
      ++rows;
      const double most = bound.at("bound").number();
      for (const TransferPlan& plan : plans) relayed += plan.paths.size() > 1;
      if (std::getenv("PLANNER_TEST_SHOW") != nullptr) {
        std::printf("%s (bound %.2f)\n", test::running().c_str(), most);
        for (const TransferPlan& plan : plans) std::printf("  %s\n", text_of(plan).c_str());
      }
      if (excepted(platform, name, host)) continue;
      const std::string fault = fault_of(plans, bound);
      if (!fault.empty()) {
        wrong += "\n" + test::running() + ": " + fault + ", bound " + std::to_string(most);
      }
    }
  }
  CHECK_TEXT(wrong.empty(), wrong);
  CHECK(rows >= 230 && relayed >= 120);
}

// A made-up machine: sockets, PCIe switches, NVLinks in pairs, a mesh or a switch, joint limits.
std::string random_machine(test::Dice& dice, int gpus, int sockets) {
  std::ostringstream edges, joint;
  const auto rate = [&](uint64_t low, uint64_t high) {
    return static_cast<double>(dice(low * 10, high * 10)) / 10;
  };
  const auto both = [&](const std::string& a, const std::string& b, uint64_t low, uint64_t high) {
    edges << (edges.tellp() > 0 ? "," : "") << "[\"" << a << "\",\"" << b << "\","
          << rate(low, high) << "],[\"" << b << "\",\"" << a << "\"," << rate(low, high) << "]";
  };
  const auto name = [](char kind, int number) { return kind + std::to_string(number); };
  std::ostringstream members;
  for (int s = 0; s < sockets; ++s) {
    both(name('m', s), name('s', s), 40, 400);
    for (int t = 0; t < s; ++t) both(name('s', t), name('s', s), 5, 150);
    members << (s == 0 ? "[" : ",[");
    for (int g = s, first = 1; g < gpus; g += sockets, first = 0)
      members << (first ? "" : ",") << g;
    members << "]";
  }
  const bool switches = dice.chance(50), nvswitch = dice.chance(50);
  const int links = static_cast<int>(dice(0, 100));
  for (int g = 0; g < gpus; ++g) {
    const std::string own = name('g', g);
    const int group = g / (2 * sockets) * sockets + g % sockets;
    const std::string up = switches ? name('u', group) : name('s', g % sockets);
    if (switches && g == group % sockets + group / sockets * 2 * sockets) {
      both(name('s', g % sockets), up, 8, 60);
    }
    both(up, own, 8, 60);
    if (dice.chance(30)) {
      joint << (joint.tellp() > 0 ? "," : "") << "[{\"" << up << ">" << own << "\":1,\"" << own
            << ">" << up << "\":0." << dice(1, 9) << "}," << rate(10, 60) << "]";
    }
    if (nvswitch) both(own, "N", 50, 500);
    for (int h = 0; h < g && !nvswitch; ++h) {
      if (dice.chance(links)) both(name('g', h), own, 10, 200);
    }
  }
  return "{\"gpus\":" + std::to_string(gpus) + ",\"sockets\":[" + members.str() + "],\"edges\":[" +
         edges.str() + "],\"joint\":[" + joint.str() + "]}";
}

Place random_place(test::Dice& dice, const Topology& topology, bool host) {
  if (!host) return {static_cast<int>(dice(0, static_cast<uint64_t>(topology.gpus() - 1)))};
  return {-1, static_cast<int>(dice(0, static_cast<uint64_t>(topology.sockets() + 1))) + kStriped};
}

// The part of their planned rates that all paths reach if all plans are carried out with so many
// copies of each path at once, which share links equally: each path carries what is planned for it
// in one second, and the others have its links when it is done. In steps of a 1000th of a second.
double reached(const Topology& topology, const Planner::Plans& plans, bool usual) {
  const std::vector<double> all_of_each_limit;
  glake::topology::FairRates fair(topology, all_of_each_limit);
  std::vector<double> left;
  for (const TransferPlan& plan : plans) {
    for (const PlannedPath& path : plan.paths) {
      const bool plain = plan.paths.size() == 1 && path.path.hops.size() == 1;
      CHECK(path.at_once >= 1 && path.at_once <= 6 && (!plain || path.at_once == 1));
      fair.add(route_of(path.path), static_cast<double>(usual && !plain ? 2 : path.at_once));
      left.push_back(path.rate);
    }
  }
  std::vector<char> open(left.size(), 1);
  int steps = 0;
  while (std::count(open.begin(), open.end(), 1) != 0 && steps < 10'000) {
    const std::vector<double>& rates = fair.rates(open);
    for (size_t i = 0; i < left.size(); ++i) {
      left[i] -= rates[i] / 1000;
      if (left[i] <= 0) open[i] = 0;
    }
    ++steps;
  }
  return 1000.0 / steps;
}

void play_machine(uint64_t seed) {
  test::Dice dice(seed);
  const int sockets = static_cast<int>(dice(1, 3));
  const std::string text = random_machine(dice, static_cast<int>(dice(1, 8)), sockets);
  test::running() = "machine " + std::to_string(seed) + ": " + text;
  const Topology topology = Topology::parse(text, "");
  Topology learnt = topology;
  Planner planner(topology);
  for (int round = 0; round < 3; ++round) {
    std::vector<Demand> demands;
    for (uint64_t d = dice(1, 6); d > 0; --d) {
      const uint64_t kind = dice(0, 2);
      demands.push_back(
          {random_place(dice, topology, kind == 0), random_place(dice, topology, kind == 1), 1});
    }
    const Planner::Plans plans = planner.plan(demands);
    check_sound(learnt, demands, plans);
    CHECK(reached(learnt, plans, false) >= 0.999 * reached(learnt, plans, true));
    double least = 1e9, least_plain = 1e9;
    for (const TransferPlan& plan : plans) {
      least = std::min(least, plan.rate);
      least_plain = std::min(least_plain, plan.plain);
    }
    // The slowest copy loses at most 2 % to its plain copy, which pruning of paths may cost.
    CHECK_TEXT(least >= 0.979 * least_plain,
               std::to_string(least) + ", plain copies " + std::to_string(least_plain));
    Planner fresh(learnt);
    const Planner::Plans again = fresh.plan(demands);
    for (size_t d = 0; d < plans.size(); ++d) CHECK(text_of(plans[d]) == text_of(again[d]));
    for (int edge = 0; edge < topology.edges(); ++edge) {
      if (!dice.chance(15)) continue;
      const double factor = dice.chance(30) ? 0 : static_cast<double>(dice(1, 15)) / 10;
      planner.set_scale(edge, factor);
      learnt.set_rate(edge, topology.rate(edge) * factor);
    }
  }
}

bool mentions(const TransferPlan& plan, const std::string& path, const std::string& reason) {
  return std::any_of(plan.refusals.begin(), plan.refusals.end(), [&](const Refusal& refusal) {
    return refusal.path.find(path) != std::string::npos &&
           refusal.reason.find(reason) != std::string::npos;
  });
}

TEST(check_reasons) {
  test::running() = "reasons";
  const std::string text = platforms_text();
  const Place host{}, g0{0}, g1{1};
  // With NVSwitch relays cannot help between GPUs, and host memory adds too little.
  const Planner a100(Topology::parse(text, "dgx_a100"));
  TransferPlan plan = a100.plan({{g0, g1}})[0];
  CHECK(plan.paths.size() == 1 && plan.paths[0].path.name == "cuda:0>cuda:1" && plan.rate == 276);
  CHECK(mentions(plan, "cuda:0>cpu:0>cuda:1", "under 15 %") &&
        mentions(plan, "cuda:0>cuda:2>cuda:1", "and more"));
  // Each shared uplink has one relay.
  plan = a100.plan({{host, g0}})[0];
  CHECK(plan.paths.size() == 4 && plan.paths[0].path.name == "cpu>cuda:0");
  CHECK(mentions(plan, "cpu>cuda:3>cuda:0", "cpu:0/pcie>u1 is full (cpu>cuda:2>cuda:0)"));
  // Where GPUs have PCIe alone, none can relay.
  plan = Planner(Topology::parse(text, "a10_l40s_x8")).plan({{host, g0}})[0];
  CHECK(plan.paths.size() == 1 && mentions(plan, "over cuda:1, cuda:2", "no NVLink with cuda:0") &&
        mentions(plan, "cuda:7 alone", "no NVLink with cuda:0"));
  // Plans follow the rates that were learnt.
  const Topology mesh = Topology::parse(text, "dgx1v");
  Planner planner(mesh);
  const double whole = planner.plan({{g0, g1}})[0].rate;
  planner.set_scale(mesh.edge("g0", "g1"), 0.5);
  CHECK(planner.plan({{g0, g1}})[0].plain == 12);
  planner.set_scale(mesh.edge("g0", "g1"), 0);
  planner.set_relay(3, false);
  plan = planner.plan({{g0, g1}})[0];
  CHECK(plan.rate < whole - 24 && plan.plain == 0 && plan.paths[0].path.name != "cuda:0>cuda:1");
  CHECK(mentions(plan, "cuda:0>cuda:1", "cuda:0>cuda:1 is dead") &&
        mentions(plan, "cuda:0>cuda:3>cuda:1", "may not relay"));
  planner.set_scale(mesh.edge("g0", "g1"), 1);
  planner.set_relay(3, true);
  CHECK(planner.plan({{g0, g1}})[0].rate == whole);
}

TEST(check_choice_of_paths) {
  test::running() = "choice of paths";
  const std::string text = platforms_text();
  const Place g0{0}, striped{-1, kStriped};
  // Where two paths carry the same, the planner takes the one within a socket.
  const Topology h20 = Topology::parse(text, "hgx_h20");
  const TransferPlan near = Planner(h20).plan({{striped, g0}})[0];
  for (const PlannedPath& planned : near.paths) {
    const int socket = planned.path.hops[0].from.node;
    CHECK(planned.path.hops.size() == 1 || h20.socket_of(planned.path.worker) == socket);
  }
  // The planner takes no more paths than the option allows, and those with the highest rates.
  PlannerOptions few;
  few.paths = 3;
  const Topology h800 = Topology::parse(text, "hgx_h800");
  const std::vector<Demand> demands{{{-1, 0}, g0}};
  const Planner::Plans plans = Planner(h800, few).plan(demands);
  check_sound(h800, demands, plans);
  CHECK(plans[0].paths.size() == 3 && plans[0].rate > 165);
}

// A machine whose edges are the same in both directions. All GPUs are on socket 0.
struct Edge {
  const char *from, *to;
  double rate;
};
// Each socket has as many of the GPUs as the others.
Topology machine(int gpus, const std::vector<Edge>& edges, int sockets = 1) {
  std::ostringstream text;
  text << "{\"gpus\": " << gpus << ", \"sockets\": [[";
  for (int gpu = 0; gpu < gpus; ++gpu) {
    text << (gpu == 0 ? "" : gpu % (gpus / sockets) == 0 ? "], [" : ", ") << gpu;
  }
  text << "]], \"edges\": [";
  for (const Edge& edge : edges) {
    text << (&edge == edges.data() ? "[\"" : ", [\"") << edge.from << "\", \"" << edge.to << "\", "
         << edge.rate << "], [\"" << edge.to << "\", \"" << edge.from << "\", " << edge.rate << "]";
  }
  return Topology::parse(text.str() + "]}", "");
}

bool has_path(const TransferPlan& plan, const std::string& name) {
  return std::any_of(plan.paths.begin(), plan.paths.end(),
                     [&](const PlannedPath& path) { return path.path.name == name; });
}

// A chain of NVLinks: only a path over all GPUs between its ends avoids host memory, which carries
// 20 GB/s and what the second NVLink carries, up to 30.
TEST(three_relays_in_a_row) {
  const auto chain = [](double nvlink) {
    return machine(5, {{"m0", "s0", 100},
                       {"s0", "g0", 10},
                       {"s0", "g1", 10},
                       {"s0", "g2", 10},
                       {"s0", "g3", 10},
                       {"s0", "g4", 10},
                       {"g0", "g1", 50},
                       {"g1", "g2", nvlink},
                       {"g2", "g3", 50},
                       {"g3", "g4", 50}});
  };
  const std::string longest = "cuda:0>cuda:1>cuda:2>cuda:3>cuda:4";
  const std::vector<Demand> ends{{Place{0}, Place{4}}};
  const TransferPlan plan = Planner(chain(50)).plan(ends)[0];
  CHECK_TEXT(has_path(plan, longest) && plan.rate >= 60, text_of(plan));
  PlannerOptions few;
  few.relays = 2;
  CHECK(Planner(chain(50), few).plan(ends)[0].rate < 35);
  // A path that brings less than 3 % is not taken.
  int taken = 0;
  for (const double nvlink : {10.2, 10.5, 12.0, 15.0}) {
    const TransferPlan longer = Planner(chain(nvlink)).plan(ends)[0];
    const double without = Planner(chain(nvlink), few).plan(ends)[0].rate;
    CHECK_TEXT(has_path(longer, longest) ? longer.rate > 1.02 * without : longer.rate == without,
               text_of(longer) + " or " + std::to_string(without));
    taken += has_path(longer, longest);
  }
  CHECK_TEXT(taken == 2, std::to_string(taken));
}

// Two pairs of GPUs with NVLink, and host memory that carries 14 GB/s. Between peers the plain copy
// does not pass it, and a hop from pair to pair over the root complex brings another 10 GB/s. Of
// GPUs that are no peers, all copies pass it, the plain one too.
TEST(hops_between_peers_over_a_root_complex) {
  Topology pairs = machine(4, {{"m0", "s0", 14},
                               {"s0", "g0", 10},
                               {"s0", "g1", 10},
                               {"s0", "g2", 10},
                               {"s0", "g3", 10},
                               {"g0", "g1", 50},
                               {"g2", "g3", 50}});
  const std::vector<Demand> ends{{Place{0}, Place{3}}};
  const auto crosses = [](const TransferPlan& plan) {
    return std::any_of(plan.paths.begin(), plan.paths.end(), [](const PlannedPath& planned) {
      const std::vector<Hop>& hops = planned.path.hops;
      return hops.size() > 1 && std::any_of(hops.begin(), hops.end(), [](const Hop& hop) {
               return !hop.from.host() && !hop.to.host() && hop.from.gpu / 2 != hop.to.gpu / 2;
             });
    });
  };
  const Planner::Plans peers = Planner(pairs).plan(ends);
  check_sound(pairs, ends, peers);
  CHECK_TEXT(crosses(peers[0]) && peers[0].rate > 19.9, text_of(peers[0]));
  for (const int a : {0, 1}) {
    for (const int b : {2, 3}) pairs.refuse_peers(b, a);
  }
  CHECK(!pairs.peers(1, 2) && pairs.peers(0, 1));
  const Planner::Plans others = Planner(pairs).plan(ends);
  check_sound(pairs, ends, others);
  CHECK_TEXT(!crosses(others[0]) && others[0].paths.size() > 1 && others[0].rate > 13.9 &&
                 others[0].rate < 14.1,
             text_of(others[0]));
}

// From GPU 0 to GPU 5 of a DGX-1, four of the six relayed paths begin over GPU 3 or GPU 4. Each of
// the six has a thread of its own, and a path with one relay has that relay's.
TEST(paths_that_share_a_relay_have_threads_of_their_own) {
  const Topology dgx1v = Topology::parse(platforms_text(), "dgx1v");
  const TransferPlan plan = Planner(dgx1v).plan({{Place{0}, Place{5}}})[0];
  std::map<int, size_t> paths, firsts;  // by GPU
  size_t relayed = 0;
  for (const PlannedPath& planned : plan.paths) {
    const std::vector<Hop>& hops = planned.path.hops;
    if (hops.size() == 1) continue;
    const int worker = planned.path.worker;
    const auto passes = [&](const Hop& hop) { return hop.from.gpu == worker; };
    CHECK(std::any_of(hops.begin(), hops.end(), passes) || hops.back().to.gpu == worker);
    CHECK(hops.size() != 2 || hops[1].from.gpu == worker);
    ++paths[worker];
    ++firsts[hops[1].from.gpu];
    ++relayed;
  }
  CHECK_TEXT(relayed == 6 && paths.size() == 6 && firsts.size() < 6, text_of(plan));
}

// Between GPUs the second path takes two PCIe links. From host memory it takes one, and NVLink.
// Copies whose first hop the relay reads.
size_t readers(const TransferPlan& plan) {
  return static_cast<size_t>(
      std::count_if(plan.paths.begin(), plan.paths.end(),
                    [](const PlannedPath& planned) { return planned.path.hops.front().reads; }));
}

TEST(relays_read_from_the_gpu_of_a_copy) {
  const Topology h100 = Topology::parse(platforms_text(), "hgx_h100_h200");
  const Place g0{0}, host{-1, kStriped};
  const std::vector<Demand> out{{g0, host}};
  const Planner::Plans plans = Planner(h100).plan(out);
  check_sound(h100, out, plans);
  for (const PlannedPath& planned : plans[0].paths) {
    const std::vector<Hop>& hops = planned.path.hops;
    CHECK(hops.front().reads == (hops.size() > 1) && !(hops.size() > 1 && hops.back().reads));
  }
  CHECK(readers(plans[0]) + 1 == plans[0].paths.size() && readers(plans[0]) >= 6);
  CHECK(readers(Planner(h100).plan({{host, g0}})[0]) == 0);
  Demand mapped{g0, host};
  mapped.may_read = false;
  CHECK(readers(Planner(h100).plan({mapped})[0]) == 0);
}

// To read takes more of a link than to write. Slow copies do without, where the links are full.
TEST(full_links_are_read_by_fast_copies_only) {
  for (const double link : {20.0, 200.0}) {
    std::vector<Edge> edges{{"m0", "s0", 400}};
    const char* gpus[] = {"g0", "g1", "g2", "g3"};
    for (int a = 0; a < 4; ++a) {
      edges.push_back({"s0", gpus[a], 10});
      for (int b = a + 1; b < 4; ++b) edges.push_back({gpus[a], gpus[b], link});
    }
    const Topology mesh = machine(4, edges);
    const std::vector<Demand> demands{{Place{0}, Place{1}}};
    const Planner::Plans plans = Planner(mesh).plan(demands);
    check_sound(mesh, demands, plans);
    CHECK_TEXT(plans[0].rate > 2.9 * link && readers(plans[0]) == (link > 100 ? 2 : 0),
               text_of(plans[0]));
  }
}

// Into a relay behind a switch a read takes a quarter more of the link than a write. Of six relays
// two have room for that.
TEST(a_fast_copy_does_not_give_up_a_fifth_of_a_path) {
  std::vector<Edge> edges{{"m0", "s0", 800}, {"s0", "g0", 60}, {"g0", "N", 500}};
  const char* gpus[] = {"g1", "g2", "g3", "g4", "g5", "g6"};
  for (const char* gpu : gpus) {
    edges.push_back({"s0", gpu, 60});
    edges.push_back({gpu, "N", gpu == gpus[0] || gpu == gpus[3] ? 100.0 : 50.0});
  }
  const Topology lopsided = machine(7, edges);
  const std::vector<Demand> demands{{Place{0}, Place{-1, 0}}};
  const Planner::Plans plans = Planner(lopsided).plan(demands);
  check_sound(lopsided, demands, plans);
  CHECK_TEXT(plans[0].rate > 0.99 * 380 && readers(plans[0]) == 2, text_of(plans[0]));
}

TEST(what_relays_must_bring) {
  const auto two = [](double host, double own) {
    return machine(2,
                   {{"m0", "s0", host}, {"s0", "g0", own}, {"s0", "g1", own}, {"g0", "g1", 100}});
  };
  const Place host{-1, 0}, g0{0}, g1{1};
  CHECK(Planner(two(108, 100)).plan({{host, g0}})[0].paths.size() == 2);
  const TransferPlan little = Planner(two(104, 100)).plan({{host, g0}})[0];
  CHECK(little.paths.size() == 1 && mentions(little, "cpu>cuda:1>cuda:0", "under 5 %"));
  const TransferPlan between = Planner(two(100, 8)).plan({{g0, g1}})[0];
  CHECK(between.paths.size() == 1 && mentions(between, "cuda:0>cpu>cuda:1", "under 15 %"));
  CHECK(Planner(two(100, 16)).plan({{g0, g1}})[0].paths.size() == 2);
}

// Three switches with two GPUs each. A copy into each of the GPUs of the second switch would gain
// under 5 % by relays. But all six copies are done when the slowest is.
TEST(the_slowest_of_several_keeps_its_relays) {
  const Topology switches = machine(6, {{"m0", "s0", 400},
                                        {"s0", "u0", 36},
                                        {"s0", "u1", 39.4},
                                        {"s0", "u2", 48},
                                        {"u0", "g0", 40},
                                        {"u0", "g1", 40},
                                        {"u1", "g2", 40},
                                        {"u1", "g3", 40},
                                        {"u2", "g4", 48},
                                        {"u2", "g5", 48},
                                        {"g0", "N", 200},
                                        {"g1", "N", 200},
                                        {"g2", "N", 200},
                                        {"g3", "N", 200},
                                        {"g4", "N", 200},
                                        {"g5", "N", 200}});
  std::vector<Demand> demands;
  for (int gpu = 0; gpu < 6; ++gpu) demands.push_back({Place{-1, 0}, Place{gpu}});
  const Planner::Plans plans = Planner(switches).plan(demands);
  check_sound(switches, demands, plans);
  CHECK(std::abs(plans[2].plain - 19.7) < 0.01 && plans[2].rate < 1.05 * plans[2].plain);
  for (const TransferPlan& plan : plans) CHECK_TEXT(plan.rate > 20.3, text_of(plan));
}

// Two paths meet on the PCIe link into GPU 2. With equally many copies each would get half of it,
// and the direct path, which has no other, would be late.
TEST(copies_at_once_follow_the_plan) {
  const Topology mesh = machine(4, {{"m0", "s0", 100},
                                    {"s0", "u0", 13.4},
                                    {"u0", "g0", 20},
                                    {"s0", "u1", 22},
                                    {"u1", "g1", 21},
                                    {"u1", "g2", 15},
                                    {"u1", "g3", 16},
                                    {"g0", "g1", 45},
                                    {"g2", "g3", 58}});
  const Planner::Plans plans = Planner(mesh).plan({{Place{0}, Place{2}}});
  const double usual = reached(mesh, plans, true), balanced = reached(mesh, plans, false);
  CHECK_TEXT(usual < 0.92 && balanced > 0.96,
             std::to_string(usual) + ", " + std::to_string(balanced) + text_of(plans[0]));
}

// A switch box with host memory on both sockets. The relays share GPU 0's link, and GPU 1 needs the
// most of it: with GPU 0 it serves the first socket, and three GPUs serve the second. What these
// leave of GPU 0's link when they are done is of no use to GPU 1.
TEST(sockets_end_together) {
  std::vector<Edge> edges{{"m0", "s0", 100}, {"m1", "s1", 100}, {"s0", "s1", 5},  {"s0", "g0", 24},
                          {"s0", "g1", 22},  {"s0", "g2", 1},   {"s1", "g3", 16}, {"s1", "g4", 16},
                          {"s1", "g5", 18},  {"g0", "N", 68}};
  for (const char* gpu : {"g1", "g2", "g3", "g4", "g5"}) edges.push_back({gpu, "N", 100});
  const Topology box = machine(6, edges, 2);
  const Planner::Plans plans = Planner(box).plan({{Place{0}, Place{-1, kStriped}}});
  const double usual = reached(box, plans, true), balanced = reached(box, plans, false);
  CHECK_TEXT(usual < 0.95 && balanced > 0.97,
             std::to_string(usual) + ", " + std::to_string(balanced) + text_of(plans[0]));
}

// Two relays serve the first socket and three the second, and all share GPU 0's link, which should
// serve both sockets alike. The usual numbers of copies share it by relays: the second socket has
// more. By the model, what ends early leaves so much to the others that this costs next to nothing.
TEST(some_numbers_are_nearer_to_the_plan) {
  std::vector<Edge> edges{{"m0", "s0", 400}, {"m1", "s1", 400}, {"s0", "s1", 1}, {"g0", "N", 176}};
  for (const char* gpu : {"g1", "g2", "g3", "g4", "g5"}) edges.push_back({gpu, "N", 176});
  for (const char* gpu : {"g0", "g1", "g2"}) edges.push_back({"s0", gpu, 55});
  for (const char* gpu : {"g3", "g4", "g5"}) edges.push_back({"s1", gpu, 55});
  const Topology box = machine(6, edges, 2);
  const TransferPlan plan = Planner(box).plan({{Place{0}, Place{-1, kStriped}}})[0];
  const auto least = [&](bool nearest) {
    const std::vector<double> all_of_each_limit;
    glake::topology::FairRates fair(box, all_of_each_limit);
    for (const PlannedPath& path : plan.paths) {
      fair.add(route_of(path.path),
               static_cast<double>(nearest ? path.nearest_at_once : path.at_once));
    }
    const std::vector<double>& rates = fair.rates(std::vector<char>(plan.paths.size(), 1));
    double part = 1;
    for (size_t i = 0; i < rates.size(); ++i) part = std::min(part, rates[i] / plan.paths[i].rate);
    return part;
  };
  CHECK_TEXT(plan.paths.size() >= 6 && least(false) < 0.93 && least(true) > 0.96,
             std::to_string(least(false)) + ", " + std::to_string(least(true)) + text_of(plan));
}

// Here the path that would get too much ends early, and leaves its links to one that can fill them.
// More copies at once gain nothing, and would need more chunks.
TEST(links_that_are_left_to_others_need_no_more_copies) {
  const Topology box = machine(2,
                               {{"m0", "s0", 900},
                                {"m1", "s1", 900},
                                {"s0", "s1", 360},
                                {"s0", "g0", 250},
                                {"s1", "g1", 340},
                                {"g0", "N", 2000},
                                {"g1", "N", 2000}},
                               2);
  const Planner::Plans plans = Planner(box).plan({{Place{0}, Place{-1, kStriped}}});
  CHECK(plans[0].paths.size() > 2);
  for (const PlannedPath& path : plans[0].paths) CHECK_TEXT(path.at_once == 2, text_of(plans[0]));
}

TEST(check_weights_and_ends) {
  test::running() = "weights and ends";
  const Topology pcie = Topology::parse(platforms_text(), "a10_l40s_x8");
  const Planner planner(pcie);
  const Place host{-1, 0}, g0{0};
  auto plans = planner.plan({{host, g0, 1}, {host, g0, 3}});
  CHECK(std::abs(plans[1].rate - 3 * plans[0].rate) < 0.01 && total(plans) > 25.19);
  CHECK(planner.find({{host, g0}}) == planner.find({{host, g0}}));
  CHECK(planner.plan({{host, host}})[0].paths.size() == 1);
  CHECK(planner.plan({{g0, g0}})[0].rate == 1000);
  for (const Place& bad : {Place{8}, Place{-1, 2}, Place{-1, -3}}) {
    bool refused = false;
    try {
      planner.find({{bad, g0}});
    } catch (const PlanError&) {
      refused = true;
    }
    CHECK(refused);
  }
}

TEST(rows_of_spread_memory) { check_rows(glake::topology::kSpread); }
TEST(rows_of_striped_memory) { check_rows(kStriped); }

TEST(random_machines) {
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(300 / test::kSlowdown); ++seed)
    play_machine(seed);
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
