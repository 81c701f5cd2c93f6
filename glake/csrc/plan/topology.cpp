// Reads a platform and finds plain routes.
#include "plan/topology.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <fstream>
#include <limits>
#include <memory>
#include <sstream>

#include "base/json.h"
#include "base/transfer_tuning.h"
#include "plan/fair_rates.h"

namespace glake::topology {
namespace {

// Copies within one device and memsets, bytes per ns. Assumed: no preset gives it.
constexpr double kLocalRate = 1000;
// What a GPU's copy engines reach over NVLink when they read from one other GPU, or from several,
// as a part of what they reach when the others write. Published runs of nvbandwidth: 172.2 of 176.1
// GB/s and 142.1 of 177.7 on H800, 768.6 of 775.9 and 659.2 of 794.9 on GB300. The lower one is
// taken.
constexpr double kReadsFromOne = 0.977, kReadsFromSeveral = 0.80;
constexpr const char kPerCopy[] = "per_copy_us";
constexpr int kMaxNodes = 1024;  // the most that Linux can have

std::string gpu(int device) { return "g" + std::to_string(device); }
std::string memory(int socket) { return "m" + std::to_string(socket); }

// A node as messages show it. for_people() of glake/platforms.py must show it in the same way.
std::string shown_node(const std::string& node) {
  const std::string number = node.substr(1);
  if (number.empty()) return node;  // the NVSwitch
  if (node[0] == 'g') return "cuda:" + number;
  if (node[0] == 'm') return "cpu:" + number;
  return node[0] == 's' ? "cpu:" + number + "/pcie" : node;
}

}  // namespace

Topology Topology::load(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  if (!file) throw NoSuchFile("no platforms file at " + path);
  std::stringstream stream;
  stream << file.rdbuf();
  const std::string text = stream.str();
  // A program that starts the same machine a thousand times, as tests do, parses it once.
  thread_local std::string last_text, last_name;
  thread_local std::unique_ptr<const Topology> last;
  try {
    if (last == nullptr || text != last_text || name != last_name) {
      last.reset();
      last = std::make_unique<const Topology>(parse(text, name));
      last_text = text;
      last_name = name;
    }
    return *last;
  } catch (const TopologyError& error) {
    throw TopologyError(path + ": " + error.what());
  }
}

Topology Topology::parse(const std::string& text, const std::string& name) {
  const std::string where = name.empty() ? "" : name + ": ";
  try {
    const Json all = Json::parse(text);
    const Json* platform = name.empty() ? &all : all.find(name);
    if (platform == nullptr) {
      std::string names;
      for (const auto& [known, value] : all.members()) {
        if (known[0] != '_' && known != kPerCopy) names += " " + known;
      }
      throw TopologyError("no platform " + name + "; it has" + names);
    }
    Topology made;
    const Json* price = platform->find(kPerCopy);
    if (price == nullptr) price = all.find(kPerCopy);
    const double us = price == nullptr ? TransferTuning::kCopyNs / 1000 : price->number();
    if (!(us >= 0) || us > 1e6) throw JsonError("per_copy_us: out of range");
    made.copy_ns_ = static_cast<uint64_t>(us * 1000);
    made.read(*platform);
    return made;
  } catch (const JsonError& error) {
    throw TopologyError(where + error.what());
  }
}

void Topology::read_sockets(const Json& sockets) {
  socket_.assign(static_cast<size_t>(gpus_), -1);
  for (const Json& socket : sockets.items()) {
    for (const Json& device : socket.items()) {
      const double number = device.number();
      if (!(number >= 0 && number < gpus_)) throw JsonError("sockets: no such gpu");
      socket_[static_cast<size_t>(number)] = sockets_;
    }
    ++sockets_;
  }
  if (std::count(socket_.begin(), socket_.end(), -1) != 0) {
    throw JsonError("sockets: each GPU must be on one socket");
  }
}

// If the file names no nodes, socket S is node S.
void Topology::read_numa_nodes(const Json* nodes) {
  if (nodes == nullptr || nodes->items().empty()) {
    for (int socket = 0; socket < sockets_; ++socket) node_sockets_.push_back(socket);
    return;
  }
  if (nodes->items().size() != static_cast<size_t>(sockets_)) {
    throw JsonError("numa_nodes: takes one list for each socket");
  }
  for (int socket = 0; socket < sockets_; ++socket) {
    const std::vector<Json>& own = nodes->items()[static_cast<size_t>(socket)].items();
    if (own.empty()) throw JsonError("numa_nodes: a socket has none");
    for (const Json& each : own) {
      const double node = each.number();
      if (!(node >= 0 && node < kMaxNodes)) throw JsonError("numa_nodes: out of range");
      const auto at = static_cast<size_t>(node);
      if (at >= node_sockets_.size()) node_sockets_.resize(at + 1, -1);
      if (node_sockets_[at] != -1) throw JsonError("numa_nodes: one is given twice");
      node_sockets_[at] = socket;
    }
  }
}

std::vector<int> Topology::nodes_of(int socket) const {
  std::vector<int> nodes;
  for (size_t node = 0; node < node_sockets_.size(); ++node) {
    if (node_sockets_[node] == socket) nodes.push_back(static_cast<int>(node));
  }
  return nodes;
}

void Topology::read_joint(const Json& row) {
  if (row.items().size() != 2) throw JsonError("joint: expected [{edge: weight}, GB/s]");
  Limit limit{{}, row.items()[1].number()};
  if (!(limit.limit > 0)) throw JsonError("joint: needs a positive rate");
  for (const auto& [name, weight] : row.items()[0].members()) {
    const size_t arrow = name.find('>');
    const int found =
        arrow == std::string::npos ? -1 : edge(name.substr(0, arrow), name.substr(arrow + 1));
    if (found < 0) throw JsonError("joint: no edge " + name);
    if (!(weight.number() > 0)) throw JsonError("joint: " + name + " needs a positive weight");
    limit.terms.push_back({found, weight.number()});
  }
  limits_.push_back(limit);
}

void Topology::read(const Json& platform) {
  const double gpus = platform.at("gpus").number();
  if (!(gpus >= 1 && gpus <= kMaxGpus)) throw JsonError("gpus: out of range");
  gpus_ = static_cast<int>(gpus);
  read_sockets(platform.at("sockets"));
  read_numa_nodes(platform.find("numa_nodes"));
  for (const Json& row : platform.at("edges").items()) {
    if (row.items().size() != 3) throw JsonError("edges: expected [from, to, GB/s]");
    add_edge(row.items()[0].text(), row.items()[1].text(), row.items()[2].number());
  }
  for (int device = 0; device < gpus_; ++device) {
    add_edge(gpu(device), gpu(device), kLocalRate);
    if (over_pcie(memory(0), gpu(device)).empty() || over_pcie(gpu(device), memory(0)).empty()) {
      throw JsonError("edges: " + gpu(device) + " does not reach host memory");
    }
  }
  const Json* joint = platform.find("joint");
  if (joint != nullptr) {
    for (const Json& row : joint->items()) read_joint(row);
  }
  holds_.assign(names_.size(), {});
  for (size_t c = 0; c < limits_.size(); ++c) {
    for (const Load& term : limits_[c].terms) {
      holds_[static_cast<size_t>(term.edge)].push_back({static_cast<int>(c), term.share});
    }
  }
}

void Topology::set_rate(int edge, double rate) { set_limit(static_cast<size_t>(edge), rate); }

void Topology::set_limit(size_t limit, double rate) { limits_[limit].limit = std::max(rate, 0.0); }

int Topology::add_edge(const std::string& from, const std::string& to, double limit) {
  if (!(limit > 0)) throw JsonError("edges: " + from + ">" + to + " needs a positive rate");
  const int index = static_cast<int>(edges_.size());
  if (!edges_.insert({{from, to}, index}).second) {
    throw JsonError("edges: " + from + ">" + to + " given twice");
  }
  next_[from].push_back(to);
  names_.push_back(from + ">" + to);
  limits_.push_back({{{index, 1.0}}, limit});
  return index;
}

std::string Topology::shown(int edge) const {
  const std::string& both = name(edge);
  const size_t arrow = both.find('>');
  return shown_node(both.substr(0, arrow)) + ">" + shown_node(both.substr(arrow + 1));
}

int Topology::edge(const std::string& from, const std::string& to) const {
  const auto found = edges_.find({from, to});
  return found == edges_.end() ? -1 : found->second;
}

Route Topology::along(const std::vector<std::string>& nodes) const {
  Route route;
  for (size_t i = 1; i < nodes.size(); ++i) route.push_back({edge(nodes[i - 1], nodes[i]), 1.0});
  return route;
}

// The shortest way through sockets and switches only, with no other GPU or host memory.
Route Topology::over_pcie(const std::string& from, const std::string& to) const {
  std::map<std::string, std::string> came;
  std::deque<std::string> queue{from};
  while (!queue.empty()) {
    const std::string node = queue.front();
    queue.pop_front();
    const auto found = next_.find(node);
    if (found == next_.end()) continue;
    for (const std::string& next : found->second) {
      const bool passable = next[0] == 's' || next[0] == 'u';
      if ((next != to && !passable) || next == from || came.count(next) != 0) continue;
      came[next] = node;
      if (next != to) {
        queue.push_back(next);
        continue;
      }
      std::vector<std::string> nodes{to};
      while (nodes.back() != from) nodes.push_back(came[nodes.back()]);
      std::reverse(nodes.begin(), nodes.end());
      return along(nodes);
    }
  }
  return {};
}

Route Topology::spread(int node, bool from_host, int device) const {
  if (node >= 0) {
    return from_host ? over_pcie(memory(node), gpu(device)) : over_pcie(gpu(device), memory(node));
  }
  std::map<int, double> load;
  for (int socket = 0; socket < sockets_; ++socket) {
    for (const Load& hop : spread(socket, from_host, device)) {
      load[hop.edge] += hop.share / sockets_;
    }
  }
  Route route;
  for (const auto& [index, share] : load) route.push_back({index, share});
  return route;
}

Route Topology::host_to_device(int node, int device) const { return spread(node, true, device); }
Route Topology::device_to_host(int device, int node) const { return spread(node, false, device); }

Route Topology::host_to_host(int node) const {
  const std::string socket = "s" + std::to_string(std::max(node, 0));
  return along({memory(std::max(node, 0)), socket, memory(std::max(node, 0))});
}

Route Topology::device_to_device(int from, int to, bool reads) const {
  if (edge(gpu(from), gpu(to)) >= 0) {
    Route route = along({gpu(from), gpu(to)});
    if (reads) route.back().share = 1 / kReadsFromOne;
    return route;
  }
  if (linked(from, to)) {
    Route route = along({gpu(from), "N", gpu(to)});
    if (reads) route.back().share = 1 / kReadsFromSeveral;
    return route;
  }
  if (from == to || peers(from, to)) return over_pcie(gpu(from), gpu(to));
  return staged(from, to);
}

Route Topology::staged(int from, int to) const {
  Route route = device_to_host(from, socket_of(from));
  const Route rest = host_to_device(socket_of(from), to);
  if (route.empty() || rest.empty()) return {};
  route.insert(route.end(), rest.begin(), rest.end());
  return route;
}

bool Topology::linked(int a, int b) const {
  return a != b &&
         (edge(gpu(a), gpu(b)) >= 0 || (edge(gpu(a), "N") >= 0 && edge("N", gpu(b)) >= 0));
}

// Over PCIe only GPUs under one socket are peers, because drivers allow that on every machine.
bool Topology::peers(int a, int b) const {
  if (a == b || refused_.count(std::minmax(a, b)) != 0) return false;
  return linked(a, b) || socket_of(a) == socket_of(b);
}

void Topology::refuse_peers(int a, int b) { refused_.insert(std::minmax(a, b)); }

bool Topology::same_switch(int a, int b) const {
  const Route route = over_pcie(gpu(a), gpu(b));
  return !route.empty() && std::none_of(route.begin(), route.end(), [&](const Load& load) {
    return name(load.edge).find('s') != std::string::npos;
  });
}

std::vector<double> Topology::rates(const std::vector<const Route*>& flows,
                                    const std::vector<double>& weights,
                                    const std::vector<double>& parts) const {
  FairRates fair(*this, parts);
  for (size_t f = 0; f < flows.size(); ++f) fair.add(*flows[f], weights.empty() ? 1 : weights[f]);
  return fair.rates(std::vector<char>(flows.size(), 1));
}

}  // namespace glake::topology
