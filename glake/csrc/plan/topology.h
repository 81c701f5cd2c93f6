// A platform as a directed graph of capacities. It knows the plain route of a copy, and how copies
// in flight share the links. simcuda computes the time of copies from it, and glake::transfer plans
// them with it. Nodes are named as in a platforms file: mS is host memory of socket S, sS its root
// complex, uK a PCIe switch, gI a GPU, N the NVSwitch. Rates are GB/s (1e9), which is bytes per
// nanosecond.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace glake::topology {

constexpr int kMaxGpus = 16;
constexpr int kSpread = -1;  // host memory spread evenly over all sockets

// A copy's load on the graph: the share of its rate that each edge carries.
struct Load {
  int edge;
  double share;
  bool operator==(const Load& other) const { return edge == other.edge && share == other.share; }
};
using Route = std::vector<Load>;

// An error in a platform: what is wrong and where.
struct TopologyError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct NoSuchFile : TopologyError {
  using TopologyError::TopologyError;
};

class Topology {
 public:
  // Read platform `name` of a platforms file, or of its text. Without a name the text is one
  // platform alone. Throw TopologyError (and NoSuchFile).
  static Topology load(const std::string& path, const std::string& name);
  static Topology parse(const std::string& text, const std::string& name);

  int gpus() const { return gpus_; }
  uint64_t copy_ns() const { return copy_ns_; }
  int socket_of(int gpu) const { return socket_[static_cast<size_t>(gpu)]; }
  int sockets() const { return sockets_; }
  // For each NUMA node of the system the socket that it belongs to, or -1 (a GPU's own memory,
  // CXL). Nodes beyond the last entry belong to no socket.
  const std::vector<int>& node_sockets() const { return node_sockets_; }
  std::vector<int> nodes_of(int socket) const;  // never empty

  // Edges are numbered from 0, in the order of the file. Behind them comes one for each GPU's own
  // memory.
  int edges() const { return static_cast<int>(names_.size()); }
  int edge(const std::string& from, const std::string& to) const;                        // -1: none
  const std::string& name(int edge) const { return names_[static_cast<size_t>(edge)]; }  // "g0>N"
  std::string shown(int edge) const;  // as messages show it: "cuda:0>N"
  double rate(int edge) const { return limits_[static_cast<size_t>(edge)].limit; }
  // Changes the speed of a link. At 0 no copy over the link moves. Joint limits stay as they are.
  void set_rate(int edge, double rate);
  // Changes any limit, also one over several edges.
  void set_limit(size_t limit, double rate);

  // What no set of copies may exceed: the sum of weight x rate over `terms`. Limit i < edges() is
  // that of edge i alone. Behind these come limits over several edges, such as both directions of a
  // link.
  struct Limit {
    std::vector<Load> terms;  // edge, weight
    double limit;
  };
  const std::vector<Limit>& limits() const { return limits_; }
  // The limits in which an edge counts. Each entry has the number of the limit (as `edge`) and the
  // edge's weight.
  const std::vector<Load>& limits_of(int edge) const { return holds_[static_cast<size_t>(edge)]; }

  // The route of one plain copy. `node` is the host memory's socket, or kSpread. Empty: there is no
  // route.
  Route host_to_device(int node, int gpu) const;
  Route device_to_host(int gpu, int node) const;
  // `reads`: the target's copy engine reads; else the source's writes. To read takes more of an
  // NVLink.
  Route device_to_device(int from, int to, bool reads = false) const;
  // A copy between GPUs that the driver stages in host memory, because they have no access to each
  // other. It is assumed to be memory of the source's socket.
  Route staged(int from, int to) const;
  Route host_to_host(int node) const;
  bool linked(int a, int b) const;  // by NVLink, directly or through the switch
  // Whether peer access is possible. Over PCIe it is under one socket, until refuse_peers() says
  // that the driver refuses it between the two.
  bool peers(int a, int b) const;
  void refuse_peers(int a, int b);
  bool same_switch(int a, int b) const;  // over PCIe without passing a root complex

  // Max-min fair rates of the flows, in bytes per nanosecond. A weight says how many equal flows
  // one flow stands for, and its rate is the sum of theirs (`weights` empty: all weights are 1).
  // `parts` has the part of each limit that the flows may use (empty: all).
  std::vector<double> rates(const std::vector<const Route*>& flows,
                            const std::vector<double>& weights = {},
                            const std::vector<double>& parts = {}) const;

 private:
  void read(const class Json& platform);
  void read_joint(const Json& row);
  void read_sockets(const Json& sockets);
  void read_numa_nodes(const Json* nodes);
  int add_edge(const std::string& from, const std::string& to, double limit);
  Route along(const std::vector<std::string>& nodes) const;
  Route over_pcie(const std::string& from, const std::string& to) const;
  Route spread(int node, bool from_host, int gpu) const;

  int gpus_ = 0, sockets_ = 0;
  uint64_t copy_ns_ = 0;
  std::vector<int> socket_;                // of each GPU
  std::vector<int> node_sockets_;          // of each NUMA node
  std::set<std::pair<int, int>> refused_;  // pairs of GPUs, the lower one first
  std::map<std::pair<std::string, std::string>, int> edges_;
  std::vector<std::string> names_;
  std::map<std::string, std::vector<std::string>> next_;  // by node: where its edges lead
  std::vector<Limit> limits_;
  std::vector<std::vector<Load>> holds_;  // by edge; see limits_of()
};

}  // namespace glake::topology
