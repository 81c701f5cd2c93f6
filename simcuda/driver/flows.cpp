#include "flows.h"

#include <algorithm>
#include <cmath>

namespace simcuda {

void Flows::begin(const OpPtr& op) {
  op->latency_end_ns = clock_->moment_ns() + op->latency_ns + op->stall_ns;
  op->remaining = static_cast<double>(op->bytes) * static_cast<double>(op->rows);
  if (op->fault != CUDA_SUCCESS) op->remaining = 0;
  if (shared_ != nullptr) enter(op.get());
  running_.push_back(op);
}

void Flows::enter(Op* op) {
  if (op->route.empty() || op->remaining <= 0) return;
  op->shared = shared_->enter(op->route, op->latency_end_ns, op->remaining);
  if (op->shared >= 0) return;
  // The shared table is full: more than kMostShared copies run at once. This copy fails, because
  // the links would not know of it.
  op->fault = CUDA_ERROR_UNKNOWN;
  op->remaining = 0;
}

// For links that all processes share: returns whether the work has ended, and then books its bytes.
bool Flows::take_over(Op* op) {
  if (op->shared < 0) return op->latency_end_ns <= clock_->moment_ns();
  uint64_t end = 0;
  if (!shared_->over(op->shared, clock_->moment_ns(), &end)) return false;
  op->shared = -1;
  const std::vector<double> rates(1, op->remaining);
  links_->carry({op}, rates, 1);
  op->remaining = 0;
  return true;
}

bool Flows::over(const Op& op) const {
  return op.latency_end_ns <= clock_->moment_ns() && (op.route.empty() || op.remaining <= 0);
}

std::vector<OpPtr> Flows::take_done() {
  std::vector<OpPtr> done;
  const auto ended = [&](const OpPtr& op) {
    if (shared_ != nullptr ? !take_over(op.get()) : !over(*op)) return false;
    done.push_back(op);
    return true;
  };
  running_.erase(std::remove_if(running_.begin(), running_.end(), ended), running_.end());
  return done;
}

std::vector<Op*> Flows::flowing() {
  std::vector<Op*> flows;
  for (const OpPtr& op : running_) {
    if (op->latency_end_ns > clock_->moment_ns() || op->remaining <= 0 || op->route.empty()) {
      continue;
    }
    if (links_->dead_code() != CUDA_SUCCESS && links_->dead(op->route)) {
      op->fault = links_->dead_code();
      op->remaining = 0;
      continue;
    }
    flows.push_back(op.get());
  }
  return flows;
}

// UINT64_MAX: there is none.
uint64_t Flows::next_moment(uint64_t deadline_ns, const std::vector<Op*>& flows,
                            const std::vector<double>& rates) const {
  const uint64_t now = clock_->moment_ns();
  uint64_t next = deadline_ns;
  for (const OpPtr& op : running_) {
    if (op->latency_end_ns > now) next = std::min(next, op->latency_end_ns);
    if (over(*op)) next = now;
  }
  for (size_t i = 0; i < flows.size(); ++i) {
    const double left = std::ceil(flows[i]->remaining / rates[i]);
    if (!(left < 1e18)) continue;  // it stands still
    next = std::min(next, now + std::max<uint64_t>(1, static_cast<uint64_t>(left)));
  }
  return running_.empty() ? next : std::min(next, links_->next_change());
}

bool Flows::move(uint64_t deadline_ns) {
  const std::vector<Op*> flows = flowing();
  std::vector<const Route*> routes;
  for (const Op* op : flows) routes.push_back(&op->route);
  const std::vector<double> rates = topology_->rates(routes);
  const uint64_t next = next_moment(deadline_ns, flows, rates);
  if (next == UINT64_MAX) return false;
  const uint64_t step = next - clock_->moment_ns();
  links_->carry(flows, rates, step);
  clock_->move_to(next);
  for (size_t i = 0; i < flows.size(); ++i) {
    flows[i]->remaining -= rates[i] * static_cast<double>(step);
  }
  return true;
}

uint64_t Flows::next_look() const {
  uint64_t next = running_.empty() ? UINT64_MAX : shared_->next_ns();
  for (const OpPtr& op : running_) {
    if (op->shared < 0) next = std::min(next, op->latency_end_ns);
  }
  return next;
}

}  // namespace simcuda
