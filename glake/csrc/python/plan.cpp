// Python binding of the capacity graph and of the planner of transfers. A place is (gpu, node). If
// gpu is -1, it is host memory of socket `node`, where -1 is spread by pages and -2 is striped by
// chunks.
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/numbers.h"
#include "base/transfer_tuning.h"
#include "plan/estimate.h"
#include "plan/planner.h"
#include "python/binding.h"

namespace glake::python {
namespace {

using topology::Load;
using topology::Route;
using topology::Topology;
using namespace transfer;

using PlaceArgument = std::pair<int, int>;

Place to_place(const PlaceArgument& place) { return {place.first, place.second}; }

std::vector<std::pair<int, double>> from_route(const Route& route) {
  std::vector<std::pair<int, double>> loads;
  for (const Load& load : route) loads.emplace_back(load.edge, load.share);
  return loads;
}

std::unique_ptr<Topology> read(const std::string& text, const std::string& name) {
  try {
    return std::make_unique<Topology>(Topology::parse(text, name));
  } catch (const topology::TopologyError& error) {
    raise(GLAKE_INVALID_OPTION, std::string("platform ") + error.what());
  }
}

int to_edge(const Topology& graph, int edge) {
  if (edge < 0 || edge >= graph.edges()) {
    raise(GLAKE_INVALID_ARGUMENT,
          "edge " + std::to_string(edge) + ": the machine has " + std::to_string(graph.edges()));
  }
  return edge;
}

int to_gpu(const Topology& graph, int gpu) {
  if (gpu < 0 || gpu >= graph.gpus()) {
    raise(GLAKE_INVALID_DEVICE, device_text(gpu) + ": the machine has " +
                                    counted(static_cast<uint64_t>(graph.gpus()), "GPU"));
  }
  return gpu;
}

Route route(const Topology& graph, const PlaceArgument& src, const PlaceArgument& dst) {
  for (const PlaceArgument& place : {src, dst}) {
    if (place.first >= 0) to_gpu(graph, place.first);
    if (place.first < 0 && (place.second >= graph.sockets() || place.second < kStriped)) {
      raise(GLAKE_INVALID_ARGUMENT, "socket " + std::to_string(place.second) +
                                        ": the machine has " + std::to_string(graph.sockets()));
    }
  }
  return plain_route(graph, to_place(src), to_place(dst));
}

py::list paths_of(const TransferPlan& plan) {
  py::list paths;
  for (const PlannedPath& planned : plan.paths) {
    py::list hops;
    for (const Hop& hop : planned.path.hops) {
      hops.append(py::make_tuple(PlaceArgument{hop.from.gpu, hop.from.node},
                                 PlaceArgument{hop.to.gpu, hop.to.node}, from_route(hop.route)));
    }
    py::dict each;
    each["name"] = planned.path.name;
    each["rate"] = planned.rate;
    each["worker"] = planned.path.worker;
    each["hops"] = hops;
    paths.append(each);
  }
  return paths;
}

py::list plans_of(const Planner& planner,
                  const std::vector<std::tuple<PlaceArgument, PlaceArgument, double>>& asked,
                  uint64_t bytes, uint64_t copy_ns, const std::vector<uint32_t>& relays) {
  if (!relays.empty() && relays.size() != asked.size()) {
    raise(GLAKE_INVALID_ARGUMENT, "relays: one number of bits for each demand");
  }
  std::vector<Demand> demands;
  for (const auto& [src, dst, weight] : asked) {
    const uint32_t bits = relays.empty() ? kAllGpus : relays[demands.size()];
    demands.push_back({to_place(src), to_place(dst), weight, bits});
  }
  std::shared_ptr<const Planner::Plans> plans;
  try {
    const Unlocked unlocked;
    plans = planner.find(demands);
  } catch (const PlanError& error) {
    raise(GLAKE_INVALID_ARGUMENT, error.what());
  }
  py::list out;
  for (const TransferPlan& plan : *plans) {
    py::list refusals;
    for (const Refusal& refusal : plan.refusals) {
      refusals.append(py::make_tuple(refusal.path, refusal.reason));
    }
    py::dict each;
    each["rate"] = plan.rate;
    each["plain"] = plan.plain;
    each["paths"] = paths_of(plan);
    each["refusals"] = refusals;
    each["expected_us"] = expected_ns(plan, bytes, copy_ns) / 1000;
    each["split"] = worth_splitting(plan, bytes, copy_ns);
    each["plain_us"] = plain_ns(plan, bytes, copy_ns) / 1000;
    out.append(each);
  }
  return out;
}

void bind_graph(py::module_& module) {
  py::class_<Topology>(module, "CapacityGraph",
                       "A platform, read from the text of a platforms file.")
      .def(py::init(&read), py::arg("text"), py::arg("name") = "")
      .def_property_readonly("gpus", &Topology::gpus)
      .def_property_readonly("sockets", &Topology::sockets)
      .def_property_readonly("copy_ns", &Topology::copy_ns)
      .def_property_readonly("node_sockets", &Topology::node_sockets)
      .def("socket_of",
           [](const Topology& graph, int gpu) { return graph.socket_of(to_gpu(graph, gpu)); })
      .def("linked", [](const Topology& graph, int a,
                        int b) { return graph.linked(to_gpu(graph, a), to_gpu(graph, b)); })
      .def("same_switch",
           [](const Topology& graph, int a, int b) {
             return graph.same_switch(to_gpu(graph, a), to_gpu(graph, b));
           })
      .def("peers", [](const Topology& graph, int a,
                       int b) { return graph.peers(to_gpu(graph, a), to_gpu(graph, b)); })
      .def("refuse_peers", [](Topology& graph, int a,
                              int b) { graph.refuse_peers(to_gpu(graph, a), to_gpu(graph, b)); })
      .def("copy", [](const Topology& graph) { return std::make_unique<Topology>(graph); })
      .def("edges",
           [](const Topology& graph) {
             std::vector<std::string> names;
             for (int edge = 0; edge < graph.edges(); ++edge) names.push_back(graph.name(edge));
             return names;
           })
      .def("limits",
           [](const Topology& graph) {
             std::vector<std::pair<std::vector<std::pair<int, double>>, double>> limits;
             for (const auto& limit : graph.limits()) {
               limits.emplace_back(from_route(limit.terms), limit.limit);
             }
             return limits;
           })
      .def("rate", [](const Topology& graph, int edge) { return graph.rate(to_edge(graph, edge)); })
      .def("set_rate", [](Topology& graph, int edge,
                          double rate) { graph.set_rate(to_edge(graph, edge), rate); })
      .def(
          "route",
          [](const Topology& graph, const PlaceArgument& src, const PlaceArgument& dst) {
            return from_route(route(graph, src, dst));
          },
          py::arg("src"), py::arg("dst"),
          "Loads (edge, share) of one plain copy; empty if there is no route.");
}

void bind_planner(py::module_& module) {
  py::class_<Planner>(module, "TransferPlanner", "Paths and rates; see csrc/plan/planner.h.")
      .def(py::init([](const Topology& graph, double relay_gain, int relays) {
             PlannerOptions options;
             options.relay_gain = relay_gain;
             options.host_gain = std::min(options.host_gain, relay_gain);
             options.relays = relays;
             return std::make_unique<Planner>(graph, options);
           }),
           py::arg("graph"), py::arg("relay_gain") = PlannerOptions{}.relay_gain,
           py::arg("relays") = PlannerOptions{}.relays)
      .def("plan", &plans_of, py::arg("demands"), py::arg("bytes") = 0, py::arg("copy_ns") = 0,
           py::arg("relays") = std::vector<uint32_t>{})
      .def("set_scale", &Planner::set_scale, py::arg("edge"), py::arg("factor"))
      .def("set_relay", &Planner::set_relay, py::arg("gpu"), py::arg("usable"))
      .def("lend", &Planner::lend, py::arg("factors"));
}

}  // namespace

void bind_plans(py::module_& module) {
  bind_graph(module);
  bind_planner(module);
}

}  // namespace glake::python
