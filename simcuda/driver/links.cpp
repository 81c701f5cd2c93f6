// Changes of link speeds, faults of single copies, and loads of links.
#include "links.h"

#include <algorithm>
#include <cmath>

#include "base/numbers.h"
#include "books.h"

namespace simcuda {
namespace {

bool is_place(const std::string& name) {
  if (name == "*" || name == "host") return true;
  if (name.size() < 2 || (name[0] != 'g' && name[0] != 'm')) return false;
  return name.find_first_not_of("0123456789", 1) == std::string::npos;
}

bool matches(const std::string& name, const Op::Place& place) {
  if (name == "*") return true;
  if (place.gpu >= 0) return name == "g" + std::to_string(place.gpu);
  return name == "host" || name == "m" + std::to_string(place.node);
}

std::string figure(double value) { return glake::significant_text(value, 6); }

}  // namespace

void Links::restart() {
  edges_.assign(static_cast<size_t>(topology_->edges()), {});
  limits_.assign(topology_->limits().size(), 0.0);
}

CUresult Links::set(uint64_t at_ns, const char* from, const char* to, double rate) {
  const int edge = from == nullptr || to == nullptr ? -1 : topology_->edge(from, to);
  if (edge < 0) {
    return fail(CUDA_ERROR_INVALID_VALUE, std::string("the platform has no link ") +
                                              (from == nullptr ? "?" : from) + ">" +
                                              (to == nullptr ? "?" : to));
  }
  if (!(rate >= 0) || !std::isfinite(rate)) {
    return fail(CUDA_ERROR_INVALID_VALUE, "a link's speed is from 0 GB/s");
  }
  changes_.insert({at_ns, {edge, rate}});
  return CUDA_SUCCESS;
}

bool Links::change(uint64_t now_ns) {
  bool any = false;
  while (!changes_.empty() && changes_.begin()->first <= now_ns) {
    const Change change = changes_.begin()->second;
    topology_->set_rate(change.edge, change.rate);
    changes_.erase(changes_.begin());
    any = true;
  }
  return any;
}

uint64_t Links::next_change() const {
  return changes_.empty() ? UINT64_MAX : changes_.begin()->first;
}

bool Links::dead(const Route& route) const {
  return std::any_of(route.begin(), route.end(),
                     [&](const auto& load) { return topology_->rate(load.edge) <= 0; });
}

CUresult Links::arm(const char* from, const char* to, int64_t k, int64_t times,
                    const CopyFault& fault) {
  if (from == nullptr || to == nullptr || !is_place(from) || !is_place(to)) {
    return fail(CUDA_ERROR_INVALID_VALUE, "places are \"g3\", \"m0\", \"host\" or \"*\"");
  }
  const bool none = fault.code == CUDA_SUCCESS && fault.stall_ns == 0 && !fault.corrupt;
  if (k < 1 || times == 0 || times < -1 || none) {
    return fail(CUDA_ERROR_INVALID_VALUE,
                "k counts from 1; times is -1 or above 0; a fault needs a code, a stall or a flip");
  }
  faults_.push_back({from, to, k, times, fault});
  return CUDA_SUCCESS;
}

void Links::meet(Op* op) {
  for (size_t i = 0; i < faults_.size();) {
    Fault& fault = faults_[i];
    bool spent = false;
    if (matches(fault.from, op->from) && matches(fault.to, op->to) &&
        (fault.countdown == 1 || --fault.countdown == 0)) {
      fault.countdown = 1;
      if (fault.is.code != CUDA_SUCCESS) op->fault = fault.is.code;
      // A stall "for ever" still has an end, so that the clock does not wrap.
      op->stall_ns = std::max(op->stall_ns, std::min(fault.is.stall_ns, uint64_t{1} << 62));
      op->corrupt = op->corrupt || fault.is.corrupt;
      spent = fault.times > 0 && --fault.times == 0;
    }
    if (spent) {
      faults_.erase(faults_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
}

void Links::carry(const std::vector<Op*>& flows, const std::vector<double>& rates, uint64_t ns) {
  std::map<int, double> load;
  for (size_t i = 0; i < flows.size(); ++i) {
    const double moved = std::min(rates[i] * static_cast<double>(ns), flows[i]->remaining);
    for (const auto& [edge, share] : flows[i]->route) {
      load[edge] += share * rates[i];
      edges_[static_cast<size_t>(edge)].bytes += share * moved;
    }
  }
  if (ns == 0) return;
  std::map<int, double> of_limit;
  for (const auto& [edge, rate] : load) {
    Carried& carried = edges_[static_cast<size_t>(edge)];
    carried.peak = std::max(carried.peak, rate);
    if (rate > 0) carried.load = std::max(carried.load, rate / topology_->rate(edge));
    for (const auto& [limit, weight] : topology_->limits_of(edge)) {
      of_limit[limit] += weight * rate;
    }
  }
  for (const auto& [limit, rate] : of_limit) {
    const auto index = static_cast<size_t>(limit);
    if (rate <= 0) continue;
    limits_[index] = std::max(limits_[index], rate / topology_->limits()[index].limit);
  }
}

std::string Links::json(bool clear) {
  std::string text = "{\"edges\": {";
  for (int edge = 0; edge < topology_->edges(); ++edge) {
    const Carried& carried = edges_[static_cast<size_t>(edge)];
    if (edge > 0) text += ", ";
    text += json_quote(topology_->name(edge)) + ": {\"rate\": " + figure(topology_->rate(edge)) +
            ", \"peak\": " + figure(carried.peak) + ", \"load\": " + figure(carried.load) +
            ", \"bytes\": " + std::to_string(std::llround(carried.bytes)) + "}";
  }
  text += "}, \"joint\": [";
  const auto first = static_cast<size_t>(topology_->edges());
  for (size_t i = first; i < limits_.size(); ++i) {
    if (i > first) text += ", ";
    text += "{\"edges\": [";
    std::string names;
    for (const auto& [edge, weight] : topology_->limits()[i].terms) {
      names += (names.empty() ? "" : ", ") + json_quote(topology_->name(edge));
    }
    text += names + "], \"limit\": " + figure(topology_->limits()[i].limit) +
            ", \"load\": " + figure(limits_[i]) + "}";
  }
  if (clear) restart();
  return text + "]}";
}

}  // namespace simcuda
