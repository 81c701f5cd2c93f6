#include "transfer/run/scheduler.h"

#include <algorithm>

#include "base/transfer_tuning.h"
#include "plan/block_ways.h"
#include "plan/estimate.h"
#include "transfer/run/live_burst.h"

namespace glake::transfer {
namespace {

// The GPUs of a path, a bit each.
uint32_t gpus_of(const Path& path) {
  uint32_t gpus = 0;
  for (const Hop& hop : path.hops) {
    for (const Place& place : {hop.from, hop.to}) {
      if (!place.host()) gpus |= uint32_t{1} << place.gpu;
    }
  }
  return gpus;
}

size_t relays_of(const Path& path) {
  return static_cast<size_t>(std::count_if(path.hops.begin(), path.hops.end() - 1,
                                           [](const Hop& hop) { return !hop.to.host(); }));
}

Decision decision_of(PlanPtr plan, Shares shares) {
  Decision decision;
  for (const PathShare& share : shares.paths) decision.gpus |= gpus_of(share.path->path);
  decision.plan = std::move(plan);
  decision.division = std::move(shares.division);
  decision.shares = std::move(shares.paths);
  decision.flows = std::move(shares.flows);
  decision.calls_ns = shares.calls_ns;
  return decision;
}

// A plain copy that goes as a transfer over one path, so that it is known when it is done.
DecisionPtr timed_plain(const Request& request, PlanPtr direct, FlowForecast::Flow flow) {
  Decision decision;
  decision.gpus = gpus_of(direct->paths[0].path);
  decision.shares.push_back({&direct->paths[0], {{0, request.parts.total()}}});
  decision.flows.push_back(std::move(flow));
  decision.plan = std::move(direct);
  return std::make_shared<const Decision>(std::move(decision));
}

std::string place_text(Place place) { return place.host() ? "cpu" : device_text(place.gpu); }

}  // namespace

Scheduler::Scheduler(Driver& driver, const topology::Topology* topology, int devices)
    : driver_(driver),
      topology_(topology),
      gpus_(topology != nullptr ? std::min(devices, topology->gpus()) : devices),
      reached_(gpus_ < 32 ? (uint32_t{1} << gpus_) - 1 : kAllGpus),
      board_(std::min(gpus_, topology::kMaxGpus)),
      allowed_relays_(reached_),
      under_way_(topology) {
  if (topology == nullptr) return;
  if (topology->gpus() < devices) {
    throw Error(GLAKE_INVALID_ARGUMENT, "the topology has " + std::to_string(topology->gpus()) +
                                            " GPUs, the driver " + std::to_string(devices));
  }
  planner_ = std::make_unique<Planner>(*topology);
  for (int gpu = devices; gpu < topology->gpus(); ++gpu) planner_->set_relay(gpu, false);
}

PlanPtr Scheduler::direct_plan(const Place& src, const Place& dst) {
  std::lock_guard<std::mutex> guard(direct_mutex_);
  PlanPtr& known = direct_[{src.gpu, src.node, dst.gpu, dst.node}];
  if (known != nullptr) return known;
  Path path;
  path.hops.push_back({src, dst, {}});
  if (topology_ != nullptr) path.hops[0].route = plain_route(*topology_, src, dst);
  path.worker = src.host() ? dst.gpu : src.gpu;
  path.name = place_text(src) + ">" + place_text(dst);
  TransferPlan plan;
  plan.rate = plan.plain = TransferTuning::kUnknownRate;
  plan.paths.push_back({path, TransferTuning::kUnknownRate});
  return known = std::make_shared<const TransferPlan>(std::move(plan));
}

// The direct plan of a copy that goes at `rate` beside other copies. 0: the rate is not known.
PlanPtr Scheduler::plain_plan(const Demand& demand, Rate rate) {
  PlanPtr direct = direct_plan(demand.src, demand.dst);
  if (rate <= 0) return direct;
  auto plain = std::make_shared<TransferPlan>(*direct);
  plain->plain = rate;
  return plain;
}

PlanPtr Scheduler::plan_alone(const Request& request, bool few_relays) {
  if (planner_ == nullptr) return direct_plan(request.src, request.dst);
  std::lock_guard<std::mutex> guard(mutex_);
  Demand demand = request.demand();
  demand.few_relays = few_relays;
  PlanPtr plan = planner_->find_last({demand});
  if (plan->paths.empty()) return direct_plan(request.src, request.dst);
  leave_thin_paths(&plan);
  return plan;
}

bool Scheduler::worthwhile(const Request& request, const TransferPlan& plan) const {
  return worth_splitting(plan, request.parts.total(), copy_ns());
}

bool Scheduler::pays_beside(const Request& request, std::vector<Demand> running) {
  if (planner_ == nullptr || request.parts.total() < TransferTuning::kLongCopy) return false;
  add_enqueued(&running, {request.stream_key()});
  if (running.empty()) return false;
  running.push_back(request.demand());
  std::lock_guard<std::mutex> guard(mutex_);
  return worthwhile(request, *planner_->find_last(running));
}

std::vector<PlanPtr> Scheduler::plans_beside(const Request& request, std::vector<Demand> running) {
  std::vector<PlanPtr> plans{plan_alone(request)};
  if (planner_ == nullptr) return plans;
  const auto is_long = [](const PlannedPath& path) {
    return relays_of(path.path) > TransferTuning::kFewRelays;
  };
  if (std::any_of(plans[0]->paths.begin(), plans[0]->paths.end(), is_long)) {
    plans.push_back(plan_alone(request, true));
  }
  add_enqueued(&running, {request.stream_key()});
  if (running.empty()) return plans;
  running.push_back(request.demand());
  std::lock_guard<std::mutex> guard(mutex_);
  uint32_t idle = kAllGpus;
  {
    std::lock_guard<std::mutex> small(small_mutex_);
    idle &= ~under_way_.gpus(request.stream_key());
  }
  plans.push_back(planner_->find_last(running));
  Demand aside = request.demand();
  aside.relays &= idle;
  plans.push_back(planner_->find_last({aside}));
  const auto none = [](const PlanPtr& plan) { return plan->paths.empty(); };
  plans.erase(std::remove_if(plans.begin() + 1, plans.end(), none), plans.end());
  return plans;
}

// A burst can go three ways: all copies planned together, each planned as if it were alone, or all
// plain.
Outlook Scheduler::look_ahead(const Request& request, std::vector<Demand> running,
                              const Bursts::Burst& burst) {
  Outlook outlook;
  outlook.live = burst.live;
  if (outlook.live != nullptr) {
    std::lock_guard<std::mutex> guard(small_mutex_);
    const Bursts::Copy copy{request.demand(), request.parts.total(), request.stream_key()};
    outlook.live->plan_next(copy, burst.number, planner_->version());
  }
  if (!burst.known) return outlook;
  if (burst.copies < 2) {
    std::lock_guard<std::mutex> guard(small_mutex_);
    outlook.known = !under_way_.in(request.stream_key());
    return outlook;
  }
  outlook.followed = !burst.next.empty();
  Ways ways;
  ways.joint = queues_of(request, burst);
  std::vector<StreamKey> streams;
  for (const Expected& one : ways.joint) streams.push_back(one.stream);
  add_enqueued(&running, streams);
  const bool own_follow = ways.joint.size() == 1 && !burst.next.empty();
  BurstWay way = burst.way;
  {
    std::lock_guard<std::mutex> guard(small_mutex_);
    // Copies of its own stream do not run beside it. They do not wait for its calls either: it
    // flows meanwhile.
    const bool queue = own_follow || under_way_.in(request.stream_key());
    if (queue && ways.joint.size() == 1 && running.empty()) {
      outlook.known = true;
      return outlook;
    }
    if (outlook.live != nullptr) {
      if (outlook.live->way() != BurstWay::kUnknown) way = outlook.live->way();
      ways.planned = outlook.live->plan_queues(&ways.joint);
      outlook.timed = outlook.live->timed();
    }
  }
  if (!plan_ways(std::move(running), &ways)) return outlook;
  outlook.way = way;
  const auto many = [](const Expected& one) { return one.copies > 1; };
  const bool queued = std::any_of(ways.joint.begin(), ways.joint.end(), many);
  if (outlook.way == BurstWay::kUnknown) choose_way(request, ways, queued, &outlook);
  if (queued && burst.number == 0 && outlook.live != nullptr) {
    std::lock_guard<std::mutex> guard(small_mutex_);
    outlook.live->keep_queues(outlook.way, ways.joint);
  }
  outlook.known = !own_follow;
  outlook.behind = ways.joint.size() - 1;
  if (outlook.way == BurstWay::kApart) return outlook;
  outlook.next = std::move(outlook.way == BurstWay::kPlain ? ways.plain : ways.joint);
  outlook.plan = std::move(outlook.next.front().plan);
  outlook.next.erase(outlook.next.begin());
  return outlook;
}

// Plans the copies beside `running` ones in three ways. False: one of them has no path.
bool Scheduler::plan_ways(std::vector<Demand> running, Ways* ways) {
  ways->alone = ways->plain = ways->joint;
  std::lock_guard<std::mutex> guard(mutex_);
  const size_t own = running.size();
  for (const Expected& one : ways->joint) running.push_back(one.demand);
  std::shared_ptr<const Planner::Plans> plans;
  if (!ways->planned) plans = planner_->find(running);
  for (size_t i = 0; i < ways->joint.size(); ++i) {
    PlanPtr &joint = ways->joint[i].plan, &alone = ways->alone[i].plan;
    if (plans != nullptr) joint = {plans, &(*plans)[own + i]};
    alone = planner_->find_last({ways->joint[i].demand});
    if (joint->paths.empty() || alone->paths.empty()) return false;
    leave_thin_paths(&alone);
    ways->plain[i].plan = plain_plan(ways->joint[i].demand, joint->plain);
  }
  return true;
}

// Takes the way whose last copy ends first. Where copies are `queued` behind others, copies apart
// are left out: each of them is planned beside other copies, so the forecast of them is worth
// little.
void Scheduler::choose_way(const Request& request, const Ways& ways, bool queued,
                           Outlook* outlook) {
  const size_t followers = ways.joint.size() - 1;
  const double together = TransferTuning::kHandOverNs + end_of(request, ways.joint, followers);
  const double greedy = TransferTuning::kHandOverNs + end_of(request, ways.alone, 0);
  const double simple = end_of(request, ways.plain, followers);
  const bool is_plain =
      simple <= std::min(TransferTuning::kLeastGain * together, TransferTuning::kUnsure * greedy);
  const bool is_joint = queued || together <= greedy;
  outlook->way = is_plain ? BurstWay::kPlain : is_joint ? BurstWay::kJoint : BurstWay::kApart;
  outlook->chosen = true;
  if (outlook->live == nullptr) return;
  std::lock_guard<std::mutex> guard(small_mutex_);
  outlook->live->chose(outlook->way, together, greedy, simple);
}

void Scheduler::adopt(LiveBurst* live, std::shared_ptr<BurstTrials> trials) {
  std::lock_guard<std::mutex> guard(small_mutex_);
  live->adopt(std::move(trials));
  if (planner_ != nullptr) live->settle(under_way_.begun(), planner_->version());
}

// The copies of the burst from this one on, by their streams. The first are those of the request's
// own stream. Those that its stream makes in another direction are left out.
std::vector<Expected> Scheduler::queues_of(const Request& request, const Bursts::Burst& burst) {
  const StreamKey own = request.stream_key();
  std::vector<Expected> queues{{nullptr, request.parts.total(), 1, 0, own, request.demand()}};
  for (size_t i = 0; i < burst.next.size(); ++i) {
    const Bursts::Copy& copy = burst.next[i];
    const bool ordered = copy.stream.device >= 0;
    const auto same = [&](const Expected& one) {
      return ordered && one.stream == copy.stream && one.demand == copy.demand;
    };
    const auto queue = std::find_if(queues.begin(), queues.end(), same);
    if (queue != queues.end()) {
      queue->bytes += copy.bytes;
      ++queue->copies;
    } else if (!ordered || !(copy.stream == own)) {
      queues.push_back({nullptr, copy.bytes, 1, i + 1, copy.stream, copy.demand});
    }
  }
  return queues;
}

// In how many ns the burst's copies, and those that run beside them already, are done. What is left
// of the burst's own streams comes before, whichever way the burst goes. Each copy of the burst is
// assumed to take as much of the caller's time as the first one.
double Scheduler::end_of(const Request& request, const std::vector<Expected>& burst,
                         size_t followers) {
  const uint64_t now = driver_.now_ns();
  std::lock_guard<std::mutex> guard(small_mutex_);
  const Deal how{false, followers};
  const TransferPlan& first = *burst.front().plan;
  const bool plain = first.paths.size() == 1 && first.paths[0].path.hops.size() == 1;
  const double calls =
      plain ? TransferTuning::kCallNs
            : transfer::share_out(request, first, how, copy_ns(), now, &under_way_.forecast())
                  .calls_ns;
  std::vector<FlowForecast::Flow> flows;
  size_t copies = 0;
  std::vector<StreamKey> streams;
  for (const Expected& one : burst) {
    copies += one.copies;
    streams.push_back(one.stream);
    for (FlowForecast::Flow& flow : flows_of(one, copy_ns(), under_way_.forecast())) {
      flow.delay_ns += calls * static_cast<double>(one.before);
      flows.push_back(std::move(flow));
    }
  }
  return std::max(under_way_.forecast().all_end_ns(now, flows, streams),
                  calls * static_cast<double>(copies));
}

bool Scheduler::kernels_pay(const Request& request, const TransferPlan& plan, bool batches) const {
  if (request.parts.count() < 2 || plan.plain <= 0) return false;
  const BlockCosts costs = block_costs(copy_ns());
  BlockLoad load;
  for (size_t i = 0; i < request.parts.count(); ++i) load.add(request.parts[i].bytes, costs);
  const bool between = !request.src.host() && !request.dst.host();
  const BlockWay way = best_way(load, plan.plain, costs, !between && batches, false);
  const double chunks =
      static_cast<double>(load.bytes) / static_cast<double>(TransferTuning::kMostChunk);
  const double kernels = TransferTuning::kHandOverNs + costs.copy_ns * chunks +
                         block_ns(BlockWay::kKernel, load, plan.plain, costs);
  return kernels * TransferTuning::kLeastGain < block_ns(way, load, plan.plain, costs);
}

// A plain copy in the form that the forecast takes. `rate`: where nothing is known of the links.
FlowForecast::Flow Scheduler::direct_flow(const Request& request, Rate rate) {
  FlowForecast::Flow flow;
  flow.route = route_of(direct_plan(request.src, request.dst)->paths[0].path);
  flow.rate = rate;
  flow.delay_ns = static_cast<double>(copy_ns());
  flow.bytes = static_cast<double>(request.parts.total());
  return flow;
}

void Scheduler::note_plain(const Request& request, Rate rate, const Outlook& outlook) {
  if (planner_ == nullptr || rate <= 0) return;
  if (request.parts.total() < TransferTuning::kLongCopy && !outlook.followed) return;
  const uint64_t now = driver_.now_ns();
  const auto ns = static_cast<uint64_t>(static_cast<double>(request.parts.total()) / rate);
  std::lock_guard<std::mutex> guard(small_mutex_);
  under_way_.add_plain({request.src, request.dst, 1, 0}, request.stream_key(),
                       direct_flow(request, rate), now, now + ns, outlook.live.get());
}

void Scheduler::add_enqueued(std::vector<Demand>* demands, const std::vector<StreamKey>& without) {
  const uint64_t now = driver_.now_ns();
  std::lock_guard<std::mutex> guard(small_mutex_);
  under_way_.add_demands(now, without, demands);
}

Scheduler::Chosen Scheduler::share_out(const void* key, const Request& request,
                                       const std::vector<PlanPtr>& plans, const Outlook& outlook,
                                       bool possible) {
  const uint64_t now = driver_.now_ns();
  std::lock_guard<std::mutex> guard(small_mutex_);
  const StreamKey stream = request.stream_key();
  const bool idle = under_way_.forecast().idle(now, stream);
  const bool whole = request.parts.count() == 1 && request.stripes.empty();
  const bool one_range = whole || request.by_socket;
  LiveBurst* const live = outlook.live.get();
  DivisionTrials* trials =
      live != nullptr ? live->trials_of_next(under_way_.count(), one_range) : nullptr;
  Chosen chosen;
  chosen.alone = outlook.next.empty() && idle && trials == nullptr;
  const size_t number = trials != nullptr ? live->begun() : 0;
  bool proven = false;
  if (trials == nullptr && idle && one_range) {
    trials = &decisions_.of({request.parts.total(), plans, outlook.next, outlook.known, possible,
                             outlook.side_by_side, outlook.behind});
    // What comes of a trial is not known until its copy is done. Meanwhile no others are made.
    proven = under_way_.tries(stream);
  }
  if (trials != nullptr) chosen.decision = proven ? trials->best(number) : trials->next(number);
  const bool refused = chosen.decision != nullptr && chosen.decision->plan == nullptr && !possible;
  if (chosen.decision == nullptr || refused) {
    chosen.decision = decide(request, plans, outlook, possible, now);
    if (trials != nullptr) trials->decide(number, chosen.decision);
  } else if (const DecisionPtr made = cut_again(request, *chosen.decision, whole)) {
    chosen.decision = made;
    if (!proven) trials->cut(number, made, whole);
  }
  if (chosen.decision->plan == nullptr && outlook.timed && whole) {
    FlowForecast::Flow flow = direct_flow(request, 0);
    chosen.decision = timed_plain(request, direct_plan(request.src, request.dst), std::move(flow));
  }
  if (chosen.decision->plan == nullptr) return chosen;
  chosen.alone = chosen.alone && chosen.decision->division != nullptr;
  const Demand demand{request.src, request.dst};
  under_way_.add({key, demand, stream, chosen.decision, now, chosen.alone, outlook.live});
  return chosen;
}

// Cuts a copy as it was divided before. Null: its chunks are known already.
DecisionPtr Scheduler::cut_again(const Request& request, const Decision& decision, bool whole) {
  if (decision.plan == nullptr || (whole && !decision.shares.empty())) return nullptr;
  Decision made = decision_of(decision.plan, cut(request, *decision.plan, decision.division,
                                                 copy_ns(), under_way_.forecast()));
  made.trial = decision.trial;
  return std::make_shared<const Decision>(std::move(made));
}

// Takes the plan that keeps the busiest link for the shortest time. A copy that used more of the
// links than it must would be done sooner itself, but would delay others by more than that. For a
// short copy it compares little. If its memory is on several sockets, by_rate is compared too: by
// what is free of each link, the paths from one socket end together, even if they hold up those
// from another. There it must be clearly better, because forecasts differ from what is. Callers
// hold the small lock.
DecisionPtr Scheduler::decide(const Request& request, const std::vector<PlanPtr>& plans,
                              const Outlook& outlook, bool possible, uint64_t now) {
  const std::vector<Expected>& next = outlook.next;
  for (const Expected& one : next) {
    // One of the copies of that stream, which are about as long as this one.
    const Expected first{one.plan, one.bytes / one.copies, 1, one.before, one.stream};
    under_way_.forecast().add(now, &next, flows_of(first, copy_ns(), under_way_.forecast()),
                              one.stream);
  }
  Shares best;
  PlanPtr taken;
  double least = 0, least_doubted = 0;
  const bool thorough =
      expected_ns(*plans.front(), request.parts.total(), copy_ns()) >= TransferTuning::kWorthAsking;
  const bool sockets = !request.stripes.empty();
  const size_t waiting = outlook.followers();
  for (const PlanPtr& plan : plans) {
    for (const bool by_rate : {false, true}) {
      for (const size_t followers : {waiting, waiting + 1}) {
        if (!thorough && (followers != waiting || (by_rate && !sockets))) continue;
        const Deal how{by_rate, followers};
        Shares shares =
            transfer::share_out(request, *plan, how, copy_ns(), now, &under_way_.forecast());
        const double busiest = under_way_.forecast().busiest(shares.flows, request.stream_key());
        shares.end_ns = std::max({shares.end_ns, busiest, shares.calls_ns});
        const double cost = shares.end_ns + outlook.calls_weigh() * shares.calls_ns;
        const bool fewer = outlook.known && followers != waiting;
        const double doubt = by_rate && !thorough ? TransferTuning::kUnsure
                             : fewer              ? TransferTuning::kFewerChunksGain
                                                  : 1;
        if (!best.paths.empty() && doubt * cost >= least_doubted) continue;
        best = std::move(shares);
        least = cost;
        least_doubted = doubt * cost;
        taken = plan;
      }
    }
  }
  bool plain = false;
  if (possible) {
    const bool by_relays = best.paths.size() > 1 || best.paths[0].path->path.hops.size() > 1;
    const PlanPtr direct = direct_plan(request.src, request.dst);
    const double ns =
        plain_end_ns(request, direct->paths[0], copy_ns(), now, &under_way_.forecast());
    const bool as_fast = ns <= TransferTuning::kLeastGain * least;
    plain = !by_relays || (as_fast && outlook.way != BurstWay::kJoint);
  }
  under_way_.forecast().remove(&next);
  return std::make_shared<const Decision>(plain ? Decision{}
                                                : decision_of(std::move(taken), std::move(best)));
}

Scheduler::Ended Scheduler::forget_enqueued(const void* key, const DivisionTimes& times) {
  std::lock_guard<std::mutex> guard(small_mutex_);
  const std::optional<UnderWay::Enqueued> ended = under_way_.take(key);
  if (!ended) return {};
  if (ended->alone && times.ns != 0) decisions_.saw(ended->decision->division, times);
  if (ended->live != nullptr) {
    ended->live->saw(ended->number, ended->began, times);
    ended->live->settle(under_way_.begun(), planner_->version());
  }
  return {ended->alone, ended->decision->trial};
}

// If a hop is behind its plan, although what its links carried fills none of their limits, then one
// of its links is slow. The link that is nearest to being full is taken for the slow one. Links of
// hops that run well are cleared of suspicion. A path may carry more than was planned, because
// copies share a link equally. Then a path beside it is behind, although no link is slow.
void Scheduler::learn(const std::vector<Seen>& paths) {
  if (topology_ == nullptr) return;
  std::vector<double> use(topology_->limits().size());
  std::vector<bool> cleared(use.size());
  for (const Seen& seen : paths) {
    for (size_t h = 0; h < seen.path->path.hops.size(); ++h) {
      const bool timed = h < seen.rates.size();
      const Rate rate = timed ? std::min(seen.rates[h], seen.path->rate) : 0;
      const topology::Route& route = seen.path->path.hops[h].route;
      under_way_.forecast().add_load(route, std::max(rate, seen.carried), &use);
      if (!timed || rate < TransferTuning::kRunsWell * seen.path->rate) continue;
      for (const auto& load : route) cleared[static_cast<size_t>(load.edge)] = true;
    }
  }
  std::map<int, double> lessons;
  const auto part = [&](int limit) {
    const auto index = static_cast<size_t>(limit);
    return use[index] / std::max(ours(limit), 1e-6);
  };
  for (const Seen& seen : paths) {
    for (size_t h = 0; h < seen.rates.size(); ++h) {
      if (seen.rates[h] >= TransferTuning::kRunsWell * seen.path->rate) continue;
      int slow = -1;
      bool full = false;
      for (const auto& load : seen.path->path.hops[h].route) {
        for (const auto& held : topology_->limits_of(load.edge)) {
          full = full || part(held.edge) > TransferTuning::kSharedFull;
        }
        if (cleared[static_cast<size_t>(load.edge)]) continue;
        if (slow < 0 || part(load.edge) > part(slow)) slow = load.edge;
      }
      if (slow >= 0 && !full) lessons[slow] = part(slow);
    }
  }
  std::vector<Lesson> all;
  for (const auto& [edge, scale] : lessons) all.push_back({edge, scale});
  apply(all);
}

std::vector<Demand> Scheduler::enqueued() {
  std::lock_guard<std::mutex> guard(small_mutex_);
  return under_way_.enqueued();
}

std::vector<PlanPtr> Scheduler::plan_together(const std::vector<Demand>& running) {
  if (planner_ == nullptr || running.empty()) return {};
  std::vector<Demand> demands = running;
  add_enqueued(&demands);
  std::lock_guard<std::mutex> guard(mutex_);
  const std::shared_ptr<const Planner::Plans> plans = planner_->find(demands);
  std::vector<PlanPtr> all;
  for (const TransferPlan& plan : *plans) {
    all.emplace_back(plans, &plan);
    leave_thin_paths(&all.back());
  }
  return all;
}

// Removes paths of a very small planned rate, for a client of the relay service. So that a client
// may begin at once, it has a small part even of links that are meant for other ranks. A copy over
// such a link would take more than that part, because nothing holds a copy to its planned rate.
void Scheduler::leave_thin_paths(PlanPtr* plan) const {
  if (!served_) return;
  const Rate least = TransferTuning::kThinShare * (*plan)->rate;
  *plan = without_paths(*plan, [&](const PlannedPath& path) { return path.rate < least; });
}

void Scheduler::apply(const std::vector<Lesson>& lessons) {
  if (planner_ == nullptr) return;
  const uint64_t now = driver_.now_ns();
  std::lock_guard<std::mutex> guard(mutex_);
  for (auto [edge, scale] : lessons) {
    planner_->set_scale(edge, scale);
    learnt_[edge] = {scale, now + TransferTuning::kForget};
  }
  for (auto it = learnt_.begin(); it != learnt_.end();) {
    const bool old = it->second.until <= now;
    if (old) planner_->set_scale(it->first, 1);
    it = old ? learnt_.erase(it) : std::next(it);
  }
  tell_forecast();
}

// Tells the forecast this process's part of each limit, and how fast links were found to be.
// Callers hold the lock.
void Scheduler::tell_forecast() {
  std::lock_guard<std::mutex> guard(small_mutex_);
  std::vector<double> parts = parts_;
  if (parts.empty() && !learnt_.empty()) parts.assign(topology_->limits().size(), 1);
  for (const auto& [edge, slow] : learnt_) parts[static_cast<size_t>(edge)] *= slow.scale;
  if (under_way_.forecast().set_parts(std::move(parts))) decisions_.forget();
}

// If several edges of the hop may be the slow one, this names the tightest.
std::optional<Lesson> Scheduler::lesson(const std::vector<TransferPtr>& running, const PathRun& run,
                                        size_t hop) {
  if (topology_ == nullptr) return {};
  int slowest = -1;
  double scale = 1;
  for (const auto& load : run.planned.path.hops[hop].route) {
    const Rate nominal = ours(load.edge);
    const Use use = use_of(running, load.edge, run);
    if (use.cleared || use.measured / nominal >= scale) continue;
    if (slowest >= 0 && nominal > ours(slowest)) continue;
    slowest = load.edge;
    scale = use.measured / nominal;
  }
  if (slowest < 0) return {};
  return Lesson{slowest, scale};
}

// What the runs under way carry over an edge, and whether a run other than `slow` shows that the
// edge is not slow.
Scheduler::Use Scheduler::use_of(const std::vector<TransferPtr>& running, int edge,
                                 const PathRun& slow) {
  Use use;
  for (const auto& transfer : running) {
    for (const auto& run : transfer->runs) {
      for (size_t h = 0; h < run->hops.size() && !run->closed; ++h) {
        for (const auto& load : run->planned.path.hops[h].route) {
          if (load.edge != edge) continue;
          const Rate rate = std::min(run->hops[h].rate(), run->planned.rate);
          use.measured += rate * load.share;
          const bool well = rate >= TransferTuning::kRunsWell * run->planned.rate;
          use.cleared = use.cleared || (well && run.get() != &slow && run->hops[h].completed() > 2);
        }
      }
    }
  }
  return use;
}

// This process's part of a limit. Edges are the first limits.
Rate Scheduler::ours(int limit) {
  const auto index = static_cast<size_t>(limit);
  std::lock_guard<std::mutex> guard(small_mutex_);
  return topology_->limits()[index].limit * (parts_.empty() ? 1 : parts_[index]);
}

bool Scheduler::has_parts() {
  std::lock_guard<std::mutex> guard(small_mutex_);
  return !parts_.empty();
}

void Scheduler::lend(uint32_t relays, std::vector<double> factors) {
  if (planner_ == nullptr) {
    if (factors.empty()) return;
    throw Error(GLAKE_INVALID_ARGUMENT, "the engine knows no topology to have parts of");
  }
  std::lock_guard<std::mutex> guard(mutex_);
  try {
    planner_->lend(factors);
  } catch (const PlanError& e) {
    throw Error(GLAKE_INVALID_ARGUMENT, e.what());
  }
  lent_relays_ = relays;
  allow_relays();
  if (served_) {  // the rates that were learnt are what other ranks had left of the links
    for (const auto& [edge, slow] : learnt_) planner_->set_scale(edge, 1);
    learnt_.clear();
  }
  {
    std::lock_guard<std::mutex> parts(small_mutex_);
    parts_ = std::move(factors);
  }
  tell_forecast();
}

// A GPU that this process copies to or from has its context anyway, so it may relay too. Callers
// hold the lock.
void Scheduler::allow_relays() {
  const uint32_t allowed = relays() & reached_;
  for (int gpu = 0; gpu < topology_->gpus(); ++gpu) {
    const uint32_t bit = uint32_t{1} << gpu;
    if (((allowed ^ allowed_relays_) & bit) != 0) planner_->set_relay(gpu, (allowed & bit) != 0);
  }
  allowed_relays_ = allowed;
}

void Scheduler::add_relays(uint32_t remote) {
  if (planner_ == nullptr) return;
  std::lock_guard<std::mutex> guard(mutex_);
  reached_ |= remote;
  served_ = true;
  allow_relays();
}

void Scheduler::use_gpus(const Request& request) {
  if (planner_ == nullptr || !board_.use(request)) return;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    allow_relays();
  }
  board_.signal();
}

}  // namespace glake::transfer
