#include "transfer/run/runner.h"

#include <algorithm>

#include "base/json_text.h"

namespace glake::transfer {

uint64_t Runner::add(const TransferPtr& transfer, Rate plain) {
  Lock lock = state_.lock();
  transfer->plan.plain = plain;
  const uint64_t id = state_.enter(transfer);
  const bool runs = transfer->state == State::kRunning && !transfer->listed;
  if (runs) state_.run(transfer);
  lock.unlock();
  if (runs) replan();
  return id;
}

void Runner::begin(const TransferPtr& transfer) {
  {
    const Lock lock = state_.lock();
    if (transfer->over()) return;
    transfer->state = State::kRunning;
    state_.run(transfer);
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
  Lock lock = state_.lock();
  return state_.known(id);
}

void Runner::cancel(const TransferPtr& transfer) {
  Lock lock = state_.lock();
  if (transfer->over()) return;
  transfer->cancelled = true;
  conclude(&lock, transfer);
}

void Runner::fail(Lock* lock, const TransferPtr& transfer, int code, const std::string& text) {
  transfer->fail(code, text);
  conclude(lock, transfer);
}

void Runner::release(uint64_t id, const TransferPtr& transfer) {
  Lock lock = state_.lock();
  state_.release(id, transfer.get());
}

bool Runner::settled(const TransferPtr& transfer) {
  Lock lock = state_.lock();
  return transfer->over() && !unfinished(&lock, *transfer);
}

void Runner::end(const TransferPtr& transfer) {
  cancel(transfer);
  Lock lock = state_.lock();
  transfer->changed.wait(lock, [&] { return transfer->over(); });
}

std::vector<TransferPtr> Runner::all() {
  Lock lock = state_.lock();
  return state_.all();
}

std::vector<Demand> Runner::demands() {
  Lock lock = state_.lock();
  std::vector<Demand> demands;
  for (const auto& transfer : state_.running()) {
    demands.push_back(transfer->request.demand());
  }
  return demands;
}

DemandBoard::Demands Runner::shown_demands() {
  const Lock lock = state_.lock();
  return demands_now();
}

void Runner::show_demands() { scheduler_.board().tell(shown_demands()); }

void Runner::count(const EnqueuedTransfer& transfer) {
  const Lock lock = state_.lock();
  state_.count(transfer, tools_.driver.now_ns());
}

void Runner::avoid_failed(PlanPtr* plan) {
  Lock lock = state_.lock();
  const auto failed = [&](const PlannedPath& path) {
    const PathHealth& health = state_.health().of(path.path.name);
    const bool rests = health.state() == PathState::kQuarantined;
    return health.state() == PathState::kSuspect ||
           (rests && !health.may_probe(tools_.driver.now_ns()));
  };
  const std::vector<PlannedPath>& paths = (*plan)->paths;
  if (!std::all_of(paths.begin(), paths.end(), failed)) *plan = without_paths(*plan, failed);
}

// Called under the lock.
DemandBoard::Demands Runner::demands_now() {
  DemandBoard::Demands all;
  for (const auto& transfer : state_.running()) {
    all.insert(DemandBoard::demand_of(transfer->request));
  }
  for (const Demand& demand : scheduler_.enqueued()) all.insert(DemandBoard::demand_of(demand));
  return all;
}

// A transfer without a path may have nothing under way that would end it, so it is ended here.
void Runner::replan() {
  for (const auto& transfer : plan_anew()) {
    Lock lock = state_.lock();
    conclude(&lock, transfer);
  }
}

// Returns the transfers that are left without a path.
std::vector<TransferPtr> Runner::plan_anew() {
  std::lock_guard<std::mutex> guard(replan_mutex_);
  std::vector<TransferPtr> all, stranded;
  std::vector<Lesson> lessons;
  {
    Lock lock = state_.lock();
    all = state_.running();
    lessons = state_.take_lessons();
  }
  std::vector<Demand> demands;
  for (const auto& transfer : all) {
    demands.push_back(transfer->request.demand());
  }
  scheduler_.apply(lessons);
  const std::vector<PlanPtr> plans = scheduler_.plan_together(demands);
  Lock lock = state_.lock();
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i]->over()) continue;
    const bool none = plans.empty() || plans[i]->paths.empty();
    const PlanPtr plan =
        none ? scheduler_.direct_plan(all[i]->request.src, all[i]->request.dst) : plans[i];
    all[i]->replan(*plan, &state_.health());
    if (all[i]->stranded()) {
      reopen_runs(all[i]);
    } else {
      enlist(all[i]);
    }
    if (all[i]->stranded()) stranded.push_back(all[i]);
  }
  state_.shares().measure(state_.running());
  scheduler_.board().tell(demands_now());
  wake(tools_.driver.now_ns());
  return stranded;
}

void Runner::enlist(const TransferPtr& transfer) {
  for (const auto& run : transfer->runs) {
    if (run->closed) continue;
    state_.shares().join(run.get());
    submitter(run->planned.path.worker).add(transfer, run.get());
  }
}

// Called under the lock. All paths of the plan have failed. Opens the paths that the plan no longer
// has, and the direct path: they are better than none. Paths stay closed if their relays are lent
// to other processes.
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
    transfer->add_run(direct->paths[0], &state_.health());
  }
  enlist(transfer);
  state_.shares().measure(state_.running());
}

// Called after anything happened to a transfer. Ends it if nothing more will happen.
void Runner::conclude(Lock* lock, const TransferPtr& transfer) {
  if (transfer->stranded()) reopen_runs(transfer);
  if (!transfer->over() && transfer->ready()) {
    const std::vector<TransferPtr>& running = state_.running();
    if (running.size() == 1 && running[0] == transfer) {
      lock->unlock();
      tools_.slots.trim();  // before any caller is told that the transfer is done
      lock->lock();
    }
    if (!transfer->over()) finish(transfer.get());
  }
  const bool again = state_.learnt() || (transfer->over() && !state_.running().empty());
  if (again) {
    lock->unlock();
    replan();
    lock->lock();
  }
  wake(tools_.driver.now_ns());
}

void Runner::finish(Transfer* transfer) {
  transfer->end(tools_.driver.now_ns());
  state_.finish(transfer);
  for (auto& [gpu, submitter] : submitters_) submitter->remove(transfer);
  scheduler_.board().tell(demands_now());
}

// Wakes the threads that have something to do.
void Runner::wake(uint64_t now) {
  for (auto& [gpu, submitter] : submitters_) {
    if (submitter->wanted(now)) submitter->wake();
  }
}

void Runner::fell_behind(const PathRun& run, size_t hop) {
  const std::optional<Lesson> lesson = scheduler_.lesson(state_.running(), run, hop);
  if (lesson.has_value()) state_.note(*lesson);
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
  state_.forget_released();
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
  Lock lock = state_.lock();
  state_.describe_counts(out);
  out->number("threads", static_cast<double>(submitters_.size()));
  state_.describe_paths(out);
}

}  // namespace glake::transfer
