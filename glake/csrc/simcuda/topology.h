// A platform as a directed capacity graph: the plain route of a copy, and how copies in flight
// share the links.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "types.h"

namespace simcuda {

// A copy's load on the graph: the share of its rate that each edge carries.
struct Hop {
  int edge;
  double share;
};
using Route = std::vector<Hop>;

class Topology {
 public:
  // Reads `preset` from a platforms file. CUDA_ERROR_FILE_NOT_FOUND, or INVALID_VALUE with where
  // and why.
  CUresult load(const std::string& path, const std::string& preset);

  int gpus() const { return gpus_; }
  uint64_t copy_ns() const { return copy_ns_; }
  int socket_of(int device) const { return socket_[static_cast<size_t>(device)]; }
  int sockets() const { return sockets_; }

  // `node`: the host memory's socket; -1: spread evenly over all sockets.
  Route host_to_device(int node, int device) const;
  Route device_to_host(int device, int node) const;
  Route device_to_device(int from, int to) const;
  Route host_to_host(int node) const;
  bool linked(int a, int b) const;  // by NVLink, directly or through the switch
  bool peers(int a, int b) const;   // peer access is possible

  // Max-min fair rates in bytes per nanosecond, one per flow.
  std::vector<double> rates(const std::vector<const Route*>& flows) const;

 private:
  struct Constraint {
    std::vector<Hop> terms;  // edge, weight
    double limit;
  };

  int edge(const std::string& from, const std::string& to) const;  // -1: none
  int add_edge(const std::string& from, const std::string& to, double limit);
  Route along(const std::vector<std::string>& nodes) const;
  Route over_pcie(const std::string& from, const std::string& to) const;
  Route spread(int node, bool from_host, int device) const;
  void read(const class Json& platform);

  int gpus_ = 0, sockets_ = 0;
  uint64_t copy_ns_ = 0;
  std::vector<int> socket_;
  std::map<std::pair<std::string, std::string>, int> edges_;
  std::map<std::string, std::vector<std::string>> next_;
  std::vector<Constraint> constraints_;
  std::vector<std::vector<Hop>> holds_;  // of each edge: constraints and its weight in them
};

}  // namespace simcuda
