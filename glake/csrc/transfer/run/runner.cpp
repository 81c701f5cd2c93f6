#include "transfer/run/runner.h"

#include <algorithm>

#include "base/json_text.h"

namespace glake::transfer {

uint64_t Runner::add(const TransferPtr& transfer, Rate plain) {
  Lock lock(mutex());
  const uint64_t id = next_id_++;
  transfer->plan.plain = plain;
  transfers_[id] = transfer;
  const bool runs = transfer->state == State::kRunning && !transfer->listed;
  if (runs) {
    transfer->listed = true;
    running_.push_back(transfer);
  }
  lock.unlock();
  if (runs) replan();
  return id;
}

void Runner::begin(const TransferPtr& transfer) {
  {
    Lock lock(mutex());
    if (transfer->over()) return;
    transfer->state = State::kRunning;
    transfer->listed = true;
    running_.push_back(transfer);
    transfer->changed.notify_all();
  }
  replan();
}

TransferPtr Runner::find(uint64_t id) {
  if (TransferPtr transfer = known(id)) return transfer;
  throw Error(GLAKE_INVALID_ARGUMENT,
              "no transfer has the id " + std::to_string(id) + "; it may have been released");
}

TransferPtr Runner::known(uint64_t id) {
  Lock lock(mutex());
  auto found = transfers_.find(id);
  return found != transfers_.end() ? found->second : nullptr;
}

void Runner::cancel(const TransferPtr& transfer) {
  Lock lock(mutex());
  if (transfer->over()) return;
  transfer->cancelled = true;
  conclude(&lock, transfer);
}

void Runner::fail(Lock* lock, const TransferPtr& transfer, int code, const std::string& text) {
  transfer->fail(code, text);
  conclude(lock, transfer);
}

void Runner::release(uint64_t id, const TransferPtr& transfer) {
  Lock lock(mutex());
  transfer->released = transfer->over() && transfer->unfinished != 0;
  if (!transfer->released) transfers_.erase(id);
}

bool Runner::settled(const TransferPtr& transfer) {
  Lock lock(mutex());
  return transfer->over() && !unfinished(&lock, *transfer);
}

void Runner::end(const TransferPtr& transfer) {
  cancel(transfer);
  Lock lock(mutex());
  transfer->changed.wait(lock, [&] { return transfer->over(); });
}

std::vector<TransferPtr> Runner::all() {
  Lock lock(mutex());
  std::vector<TransferPtr> all;
  for (auto& [id, transfer] : transfers_) all.push_back(transfer);
  all.insert(all.end(), running_.begin(), running_.end());
  return all;
}

std::vector<Demand> Runner::demands() {
  Lock lock(mutex());
  std::vector<Demand> demands;
  for (const auto& transfer : running_) {
    demands.push_back(transfer->request.demand());
  }
  return demands;
}

DemandBoard::Demands Runner::shown_demands() {
  Lock lock(mutex());
  DemandBoard::Demands all;
  for (const auto& transfer : running_) all.insert(DemandBoard::demand_of(transfer->request));
  for (const Demand& demand : scheduler_.enqueued()) all.insert(DemandBoard::demand_of(demand));
  return all;
}

void Runner::show_demands() { scheduler_.board().tell(shown_demands()); }

void Runner::count(const EnqueuedTransfer& transfer) {
  Lock lock(mutex());
  ++finished_;
  const bool failed = !transfer.error().empty();
  failed_ += failed;
  for (const auto& path : transfer.paths()) {
    const std::string& name = path->path->path.name;
    PathHealth& health = health_.of(name);
    if (!path->why.empty()) {
      health.fail(tools_.driver.now_ns(), path->why);
      continue;
    }
    health.succeed();
    bytes_ += path->bytes;
    auto& [chunks, bytes] = carried_[name];
    chunks += path->chunks;
    bytes += path->bytes;
  }
}

void Runner::avoid_failed(PlanPtr* plan) {
  Lock lock(mutex());
  const auto failed = [&](const PlannedPath& path) {
    const PathHealth& health = health_.of(path.path.name);
    const bool rests = health.state() == PathState::kQuarantined;
    return health.state() == PathState::kSuspect ||
           (rests && !health.may_probe(tools_.driver.now_ns()));
  };
  const std::vector<PlannedPath>& paths = (*plan)->paths;
  if (!std::all_of(paths.begin(), paths.end(), failed)) *plan = without_paths(*plan, failed);
}

// Called under the lock, when a transfer has begun or ended.
void Runner::tell_demands() {
  DemandBoard::Demands all;
  for (const auto& transfer : running_) all.insert(DemandBoard::demand_of(transfer->request));
  for (const Demand& demand : scheduler_.enqueued()) all.insert(DemandBoard::demand_of(demand));
  scheduler_.board().tell(std::move(all));
}

// A transfer without a path may have nothing under way that would end it, so it is ended here.
void Runner::replan() {
  for (const auto& transfer : plan_anew()) {
    Lock lock(mutex());
    conclude(&lock, transfer);
  }
}

// Returns the transfers that are left without a path.
std::vector<TransferPtr> Runner::plan_anew() {
  std::lock_guard<std::mutex> guard(replan_mutex_);
  std::vector<TransferPtr> all, stranded;
  std::vector<std::pair<int, double>> lessons;
  {
    Lock lock(mutex());
    all = running_;
    lessons = scheduler_.take_lessons();
  }
  std::vector<Demand> demands;
  for (const auto& transfer : all) {
    demands.push_back(transfer->request.demand());
  }
  scheduler_.apply(lessons);
  const std::vector<PlanPtr> plans = scheduler_.plan_together(demands);
  Lock lock(mutex());
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i]->over()) continue;
    const bool none = plans.empty() || plans[i]->paths.empty();
    const PlanPtr plan =
        none ? scheduler_.direct_plan(all[i]->request.src, all[i]->request.dst) : plans[i];
    all[i]->replan(*plan, &health_);
    if (all[i]->stranded()) {
      reopen_runs(all[i]);
    } else {
      enlist(all[i]);
    }
    if (all[i]->stranded()) stranded.push_back(all[i]);
  }
  scheduler_.shares().measure(running_);
  tell_demands();
  wake(tools_.driver.now_ns());
  return stranded;
}

void Runner::enlist(const TransferPtr& transfer) {
  for (const auto& run : transfer->runs) {
    if (run->closed) continue;
    scheduler_.shares().join(run.get());
    submitter(run->planned.path.worker).add(transfer, run.get());
  }
}

// Called under the lock. All paths of the plan have failed. Paths that the plan left to others are
// better than none, unless their relays are lent to other processes. The same holds for the plain
// copy's path.
void Runner::reopen_runs(const TransferPtr& transfer) {
  const uint32_t relays = scheduler_.relays();
  for (const auto& run : transfer->runs) {
    const std::vector<Hop>& hops = run->planned.path.hops;
    const bool ours = std::all_of(hops.begin(), hops.end() - 1, [&](const Hop& hop) {
      return hop.to.host() || (relays >> hop.to.gpu & 1) != 0;
    });
    if (run->withdrawn && ours) run->closed = run->withdrawn = false;
  }
  const auto direct = [](const auto& run) { return !run->relayed(); };
  if (std::none_of(transfer->runs.begin(), transfer->runs.end(), direct)) {
    const PlanPtr direct = scheduler_.direct_plan(transfer->request.src, transfer->request.dst);
    transfer->add_run(direct->paths[0], &health_);
  }
  enlist(transfer);
  scheduler_.shares().measure(running_);
}

// Called after anything happened to a transfer. Ends it if nothing more will happen.
void Runner::conclude(Lock* lock, const TransferPtr& transfer) {
  if (transfer->stranded()) reopen_runs(transfer);
  if (!transfer->over() && transfer->ready()) {
    if (running_.size() == 1 && running_[0] == transfer) {
      lock->unlock();
      tools_.slots.trim();  // before anybody is told that all is done
      lock->lock();
    }
    if (!transfer->over()) finish(transfer.get());
  }
  const bool again = scheduler_.learnt() || (transfer->over() && !running_.empty());
  if (again) {
    lock->unlock();
    replan();
    lock->lock();
  }
  wake(tools_.driver.now_ns());
}

void Runner::finish(Transfer* transfer) {
  transfer->end(tools_.driver.now_ns());
  auto same = [&](const auto& other) { return other.get() == transfer; };
  running_.erase(std::remove_if(running_.begin(), running_.end(), same), running_.end());
  for (auto& [gpu, submitter] : submitters_) submitter->remove(transfer);
  tell_demands();
  ++finished_;
  failed_ += transfer->state == State::kFailed;
  for (const auto& run : transfer->runs) {
    bytes_ += run->landed;
    resent_ += run->resent;
    auto& [chunks, bytes] = carried_[run->name()];
    chunks += run->chunks;
    bytes += run->landed;
  }
}

// Wakes the threads that have something to do.
void Runner::wake(uint64_t now) {
  for (auto& [gpu, submitter] : submitters_) {
    if (submitter->wanted(now)) submitter->wake();
  }
}

// The memory of a transfer in stream order needs no guard until one of its copies is given up.
void Runner::given_up(const TransferPtr& transfer) {
  if (!transfer->request.ordered) return;  // it has been guarded from its start
  ranges_.add(transfer->request.parts, [this, transfer] { return settled(transfer); });
}

// Called under the lock. Whether copies of the transfer that were given up may still read and
// write.
bool Runner::unfinished(Lock* lock, const Transfer& transfer) {
  if (transfer.unfinished != 0) look_for_lost(lock);
  return transfer.unfinished != 0;
}

// Called under the lock, which is released for the questions to the driver.
void Runner::look_for_lost(Lock* lock) {
  for (auto& [gpu, submitter] : submitters_) {
    if (submitter->look_for_lost(lock)) submitter->wake();
  }
  for (auto it = transfers_.begin(); it != transfers_.end();) {
    const bool gone = it->second->released && it->second->unfinished == 0;
    it = gone ? transfers_.erase(it) : std::next(it);
  }
}

// Called under the lock.
Submitter& Runner::submitter(int gpu) {
  std::unique_ptr<Submitter>& one = submitters_[gpu];
  ChunkListener& listener = *this;
  if (one == nullptr) one = std::make_unique<Submitter>(tools_, listener, gpu);
  return *one;
}

std::string Runner::stop() {
  std::string left;
  for (auto& [gpu, submitter] : submitters_) {
    const std::string one = submitter->stop();
    if (!one.empty()) left += (left.empty() ? "" : "; ") + one;
  }
  submitters_.clear();
  return left;
}

void Runner::describe(JsonText* out) {
  Lock lock(mutex());
  auto number = [&](const char* key, uint64_t value) {
    out->number(key, static_cast<double>(value));
  };
  number("transfers", finished_);
  number("failed", failed_);
  number("bytes", bytes_);
  number("resent", resent_);
  number("running", running_.size());
  number("threads", submitters_.size());
  std::string list;
  for (const auto& [name, health] : health_.all()) {
    JsonText one;
    one.text("path", name).text("state", path_state_name(health.state()));
    one.text("why", health.why()).number("failures", static_cast<double>(health.failures()));
    const auto& [chunks, bytes] = carried_[name];
    one.number("chunks", static_cast<double>(chunks)).number("bytes", static_cast<double>(bytes));
    list += (list.empty() ? "" : ", ") + one.done();
  }
  out->raw("paths", "[" + list + "]");
}

}  // namespace glake::transfer
