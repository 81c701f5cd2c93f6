// What this process shares with others: which GPUs may relay for it, which part of each link is its
// own, and what it tells the relay service (glake/transfer/relay) of its transfers.
#include <sys/eventfd.h>
#include <unistd.h>

#include "transfer/engine.h"
#include "transfer/text.h"

namespace glake::transfer {
namespace {

int shown_node(const Place& place) { return place.host() ? place.node : 0; }

}  // namespace

void Engine::lend(uint32_t relays, std::vector<double> factors) {
  if (planner_ == nullptr) {
    if (factors.empty()) return;
    throw Error(GLAKE_INVALID_ARGUMENT, "the engine knows no topology to have parts of");
  }
  {
    std::lock_guard<std::mutex> guard(plan_mutex_);
    try {
      planner_->lend(factors);
    } catch (const PlanError& e) {
      throw Error(GLAKE_INVALID_ARGUMENT, e.what());
    }
    lent_relays_ = relays;
    allow_relays();
    Lock lock(mutex_);
    lent_ = std::move(factors);
  }
  replan();
}

// Under plan_mutex_. A GPU this process copies to or from has its context anyway.
void Engine::allow_relays() {
  const uint32_t allowed = lent_relays_ | own_.load();
  for (int gpu = 0; gpu < std::min(devices_, topology_->gpus()); ++gpu) {
    const uint32_t bit = uint32_t{1} << gpu;
    if (((allowed ^ allowed_relays_) & bit) != 0) planner_->set_relay(gpu, (allowed & bit) != 0);
  }
  allowed_relays_ = allowed;
}

void Engine::use_gpus(const Request& request) {
  if (planner_ == nullptr) return;
  uint32_t used = 0;
  for (const Place& place : {request.src, request.dst}) {
    if (!place.host() && place.gpu < topology_->gpus()) used |= uint32_t{1} << place.gpu;
  }
  if ((used & ~own_.load(std::memory_order_relaxed)) == 0) return;
  std::lock_guard<std::mutex> guard(plan_mutex_);
  own_ |= used;
  allow_relays();
  Lock lock(mutex_);
  signal_demands();
}

// Under the lock.
Rate Engine::ours(int edge) const {
  return topology_->rate(edge) * (lent_.empty() ? 1 : lent_[static_cast<size_t>(edge)]);
}

// Under the lock. Transfers between the same places are one demand.
Engine::Demands Engine::demands_now() const {
  Demands all;
  for (const auto& transfer : running_) {
    const Place &src = transfer->request.src, &dst = transfer->request.dst;
    all.insert({src.gpu, shown_node(src), dst.gpu, shown_node(dst)});
  }
  return all;
}

// Under the lock, when a transfer has begun or ended.
void Engine::tell_demands() {
  if (demands_event_ < 0) return;
  Demands now = demands_now();
  if (now == told_) return;
  told_ = std::move(now);
  signal_demands();
}

// Under the lock.
void Engine::signal_demands() {
  const uint64_t one = 1;
  // Full at 2^64 - 2: it is readable then.
  if (demands_event_ >= 0 && write(demands_event_, &one, sizeof one) < 0) return;
}

int Engine::demands_event() {
  Lock lock(mutex_);
  if (demands_event_ < 0) demands_event_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (demands_event_ < 0) throw Error(GLAKE_DRIVER_ERROR, "the system gives no event descriptor");
  return demands_event_;
}

std::string Engine::demands() {
  Lock lock(mutex_);
  std::string list;
  for (const auto& ends : demands_now()) {
    std::string one;
    for (const int number : ends) one += (one.empty() ? "[" : ", ") + std::to_string(number);
    list += (list.empty() ? "" : ", ") + one + "]";
  }
  return JsonText().raw("gpus", gpus_text(own_.load())).raw("demands", "[" + list + "]").done();
}

std::string Engine::gpus_text(uint32_t bits) const {
  std::string list;
  for (int gpu = 0; gpu < devices_ && gpu < topology::kMaxGpus; ++gpu) {
    if ((bits >> gpu & 1) != 0) list += (list.empty() ? "" : ", ") + std::to_string(gpu);
  }
  return "[" + list + "]";
}

}  // namespace glake::transfer
