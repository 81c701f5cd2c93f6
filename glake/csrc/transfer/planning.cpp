// What the engine asks the planner, and what it teaches it.
#include <algorithm>

#include "core/process.h"
#include "transfer/engine.h"
#include "transfer/estimate.h"

namespace glake::transfer {
namespace {

constexpr Rate kUnknownRate = 20;          // GB/s, of a link nobody has described
constexpr double kHandOver = 5'000;        // ns from the call to the first copy of a thread
constexpr double kLeastGain = 1.03;        // in time, over a plain copy
constexpr double kRunsWell = 0.85;         // of its plan: such a lane clears its edges
constexpr Bytes kLongCopy = 8 * kMiB;      // that others should reckon with
constexpr size_t kMostPlain = 64;          // copies remembered at once
constexpr uint64_t kForget = 200'000'000;  // ns after which a slow edge is tried at full speed

std::string place_text(Place place) { return place.host() ? "cpu" : device_text(place.gpu); }

}  // namespace

// The one copy there is without a topology, and where it names no path.
TransferPlan Engine::direct_plan(const Request& request) const {
  const Place &src = request.src, &dst = request.dst;
  Path path;
  path.hops.push_back({src, dst, {}});
  if (topology_ != nullptr) path.hops[0].route = plain_route(*topology_, src, dst);
  path.worker = src.host() ? dst.gpu : src.gpu;
  path.name = place_text(src) + ">" + place_text(dst);
  TransferPlan plan;
  plan.rate = plan.plain = kUnknownRate;
  plan.paths.push_back({path, kUnknownRate});
  return plan;
}

TransferPlan Engine::plan_alone(const Request& request) {
  if (planner_ == nullptr) return direct_plan(request);
  std::lock_guard<std::mutex> guard(plan_mutex_);
  std::vector<TransferPlan> plans = planner_->plan({{request.src, request.dst}});
  if (plans[0].paths.empty()) return direct_plan(request);
  return std::move(plans[0]);
}

// Filling the pipe costs a chunk's way over a relay; what remains must still be a gain.
bool Engine::worthwhile(const Request& request, const TransferPlan& plan) const {
  if (plan.plain <= 0) return true;
  const bool direct = plan.paths.size() == 1 && plan.paths[0].path.hops.size() == 1;
  if (plan.paths.empty() || direct) return false;
  const Bytes bytes = request.parts.total();
  // A chunk for every other buffer on the ways; of fewer the estimate is no good.
  size_t buffers = 0;
  for (const PlannedPath& planned : plan.paths) buffers += planned.path.hops.size() - 1;
  if (2 * bytes < buffers * kLeastChunk) return false;
  const double many = kHandOver + expected_ns(plan, bytes, copy_ns());
  return many * kLeastGain < plain_ns(plan, bytes, copy_ns());
}

// Whether many blocks go better through the engine, whose kernels copy them, than as the driver's
// own copies, over one path as well.
bool Engine::kernel_pays(const Request& request, const TransferPlan& plan) {
  if (request.parts.count() < 2 || plan.plain <= 0) return false;
  const BlockCosts costs = block_costs();
  BlockLoad load;
  for (size_t i = 0; i < request.parts.count(); ++i) load.add(request.parts[i].bytes, costs);
  const bool between = !request.src.host() && !request.dst.host();
  const BlockWay way = best_way(load, plan.plain, costs, !between && driver_.has_batches(), false);
  const double chunks = static_cast<double>(load.bytes) / static_cast<double>(kMostChunk);
  const double kernels = static_cast<double>(kHandOver) + costs.copy_ns * chunks +
                         block_ns(BlockWay::kKernel, load, plan.plain, costs);
  if (kernels * kLeastGain >= block_ns(way, load, plan.plain, costs)) return false;
  const int gpu = request.src.host() ? request.dst.gpu : request.src.gpu;
  open_device(gpu);
  DeviceScope scope(driver_, gpu);
  return scope.status().ok() && kernel_.ready(gpu);
}

// Whether more paths are worthwhile only because others run: plain copies among them take the links
// they do, whatever would be better.
bool Engine::pays_beside_others(const Request& request) {
  if (planner_ == nullptr || request.parts.total() < kLongCopy) return false;
  std::lock_guard<std::mutex> guard(plan_mutex_);
  std::vector<Demand> demands;
  {
    Lock lock(mutex_);
    for (const auto& transfer : running_)
      demands.push_back({transfer->request.src, transfer->request.dst});
    add_plain(&demands);
  }
  if (demands.empty()) return false;
  demands.push_back({request.src, request.dst});
  return worthwhile(request, planner_->plan(demands).back());
}

void Engine::note_plain(const Request& request, Rate rate) {
  if (planner_ == nullptr || rate <= 0 || request.parts.total() < kLongCopy) return;
  const auto ns = static_cast<uint64_t>(static_cast<double>(request.parts.total()) / rate);
  Lock lock(mutex_);
  if (plain_.size() < kMostPlain)
    plain_.emplace_back(Demand{request.src, request.dst, 1, 0}, driver_.now_ns() + ns);
}

// Under the lock.
void Engine::add_plain(std::vector<Demand>* demands) {
  const uint64_t now = driver_.now_ns();
  const auto ended = [&](const auto& one) { return one.second <= now; };
  plain_.erase(std::remove_if(plain_.begin(), plain_.end(), ended), plain_.end());
  for (const auto& [demand, until] : plain_) demands->push_back(demand);
}

// Shares the node anew among all transfers under way. One that is left without a path may have
// nothing under way that would tell of it.
void Engine::replan() {
  for (const auto& transfer : plan_anew()) {
    Lock lock(mutex_);
    conclude(&lock, transfer);
  }
}

std::vector<std::shared_ptr<Transfer>> Engine::plan_anew() {
  std::lock_guard<std::mutex> guard(plan_mutex_);
  std::vector<std::shared_ptr<Transfer>> all, stranded;
  std::vector<Demand> demands;
  std::vector<std::pair<int, double>> lessons;
  const uint64_t now = driver_.now_ns();
  {
    Lock lock(mutex_);
    all = running_;
    lessons.swap(lessons_);
  }
  if (planner_ != nullptr) {
    for (auto [edge, scale] : lessons) {
      planner_->set_scale(edge, scale);
      learnt_[edge] = now + kForget;
    }
    for (auto it = learnt_.begin(); it != learnt_.end();) {
      const bool old = it->second <= now;
      if (old) planner_->set_scale(it->first, 1);
      it = old ? learnt_.erase(it) : std::next(it);
    }
  }
  for (const auto& transfer : all)
    demands.push_back({transfer->request.src, transfer->request.dst});
  if (!all.empty()) {
    Lock lock(mutex_);
    add_plain(&demands);
  }
  std::vector<TransferPlan> plans;
  if (planner_ != nullptr && !demands.empty()) plans = planner_->plan(demands);
  Lock lock(mutex_);
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i]->over()) continue;
    const bool none = plans.empty() || plans[i].paths.empty();
    adopt(all[i], none ? direct_plan(all[i]->request) : plans[i]);
    if (all[i]->stranded()) stranded.push_back(all[i]);
  }
  measure_links();
  tell_demands();
  rouse(now);
  return stranded;
}

void Engine::adopt(const std::shared_ptr<Transfer>& transfer, const TransferPlan& plan) {
  transfer->replan(plan, &health_);
  if (transfer->stranded()) return last_resort(transfer);
  enlist(transfer);
}

void Engine::enlist(const std::shared_ptr<Transfer>& transfer) {
  for (const auto& lane : transfer->lanes) {
    if (lane->closed) continue;
    const Path& path = lane->planned.path;
    for (size_t h = 0; h < lane->hops.size(); ++h) {
      const Place &from = path.hops[h].from, &to = path.hops[h].to;
      auto& use = uses_[{from.gpu, from.node, to.gpu, to.node}];
      if (use == nullptr) use = std::make_shared<LinkUse>(loads_of(path.hops[h].route));
      if (lane->hops[h].use() != use.get()) lane->hops[h].share(use, path.worker);
    }
    submitter(path.worker).add(transfer, lane.get());
  }
}

// Under the lock. All paths of the plan have failed: those that it left to others are better than
// none, unless their relays are lent to other processes, and so is the plain copy's.
void Engine::last_resort(const std::shared_ptr<Transfer>& transfer) {
  const uint32_t relays = lent_relays_ | own_;
  for (const auto& lane : transfer->lanes) {
    const std::vector<Hop>& hops = lane->planned.path.hops;
    const bool ours = std::all_of(hops.begin(), hops.end() - 1, [&](const Hop& hop) {
      return hop.to.host() || (relays >> hop.to.gpu & 1) != 0;
    });
    if (lane->withdrawn && ours) lane->closed = lane->withdrawn = false;
  }
  const auto direct = [](const auto& lane) { return !lane->relayed(); };
  if (std::none_of(transfer->lanes.begin(), transfer->lanes.end(), direct)) {
    transfer->add_lane(direct_plan(transfer->request).paths[0], &health_);
  }
  enlist(transfer);
  measure_links();
}

// Under the lock. A hop falls behind its plan: one of its edges is slower than the topology says,
// and no other lane that runs well takes it. Of several, the tightest.
void Engine::learn(Lane* lane, size_t hop) {
  if (topology_ == nullptr) return;
  int slowest = -1;
  double scale = 1;
  for (const auto& load : lane->planned.path.hops[hop].route) {
    const Rate nominal = ours(load.edge);
    const Use use = use_of(load.edge, *lane);
    if (use.cleared || use.measured / nominal >= scale) continue;
    if (slowest >= 0 && nominal > ours(slowest)) continue;
    slowest = load.edge;
    scale = use.measured / nominal;
  }
  if (slowest >= 0) lessons_.emplace_back(slowest, scale);
}

// What the lanes under way carry over an edge, and whether one of them other than `slow` shows that
// it is well.
Engine::Use Engine::use_of(int edge, const Lane& slow) const {
  Use use;
  for (const auto& transfer : running_) {
    for (const auto& lane : transfer->lanes) {
      for (size_t h = 0; h < lane->hops.size() && !lane->closed; ++h) {
        for (const auto& load : lane->planned.path.hops[h].route) {
          if (load.edge != edge) continue;
          const Rate rate = std::min(lane->hops[h].rate(), lane->planned.rate);
          use.measured += rate * load.share;
          const bool well = rate >= kRunsWell * lane->planned.rate;
          use.cleared =
              use.cleared || (well && lane.get() != &slow && lane->hops[h].completed() > 2);
        }
      }
    }
  }
  return use;
}

// What a path needs of the driver once: contexts, and access of each GPU that pushes to the memory
// it pushes to. Throws Error.
void Engine::prepare(const Path& path) {
  {
    std::lock_guard<std::mutex> guard(prepare_mutex_);
    if (prepared_.count(path.name) != 0) return;
  }
  for (const Hop& hop : path.hops) {
    for (int gpu : {hop.from.gpu, hop.to.gpu}) {
      if (gpu >= devices_)
        throw Error(GLAKE_INVALID_DEVICE, "the driver has no " + device_text(gpu));
      if (gpu >= 0) open_device(gpu);
    }
    if (hop.from.host() || hop.to.host() || hop.from.gpu == hop.to.gpu) continue;
    reach(hop.to.gpu, hop.from.gpu);
  }
  std::lock_guard<std::mutex> guard(prepare_mutex_);
  prepared_.insert(path.name);
}

// Gives GPU `from` access to the memory of `gpu`, glake's and others'. False where the machine has
// none: then copies between the two go over the host.
bool Engine::reach(int gpu, int from) {
  if (gpu == from) return true;
  {
    std::lock_guard<std::mutex> guard(prepare_mutex_);
    auto known = reached_.find({from, gpu});
    if (known != reached_.end()) return known->second;
  }
  bool reaches = false;
  if (!driver_.can_access_peer(from, gpu, &reaches).ok()) return false;
  if (reaches) {
    process_.device(gpu).enable_peer(from);
    driver_.enable_peer(from, gpu);
  }
  std::lock_guard<std::mutex> guard(prepare_mutex_);
  reached_[{from, gpu}] = reaches;
  return reaches;
}

// Under the lock.
Submitter& Engine::submitter(int gpu) {
  std::unique_ptr<Submitter>& one = submitters_[gpu];
  if (one == nullptr) one = std::make_unique<Submitter>(*this, gpu);
  return *one;
}

}  // namespace glake::transfer
