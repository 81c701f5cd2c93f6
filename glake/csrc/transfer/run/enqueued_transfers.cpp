#include "transfer/run/enqueued_transfers.h"

#include <algorithm>
#include <thread>

#include "base/transfer_tuning.h"
#include "transfer/call/copy_ids.h"

namespace glake::transfer {
namespace {

bool none_failed(const EnqueuedTransfer::Outcome& outcome) {
  return std::all_of(outcome.failures.begin(), outcome.failures.end(),
                     [](const std::string& why) { return why.empty(); });
}

// A number that is never given twice in the process, not even by another engine.
std::atomic<uint64_t> next_number{1};

}  // namespace

bool EnqueuedTransfers::has_room() {
  look();
  std::lock_guard<std::mutex> guard(mutex_);
  return open_.size() < TransferTuning::kMostUnderWay;
}

uint64_t EnqueuedTransfers::begin(const Request& request, const std::vector<PlanPtr>& plans,
                                  const Outlook& outlook, bool possible) {
  PlanPtr direct = scheduler_.direct_plan(request.src, request.dst);
  auto transfer = std::make_shared<EnqueuedTransfer>(tools_, by_socket(request), std::move(direct));
  const void* const key = transfer.get();
  try {
    const Scheduler::Chosen chosen =
        scheduler_.share_out(key, transfer->request, plans, outlook, possible);
    const Decision& decision = *chosen.decision;
    if (decision.plan == nullptr) return 0;
    transfer->enqueue(decision.plan, decision.shares, chosen.alone);
  } catch (...) {
    scheduler_.forget_enqueued(key, {});
    throw;
  }
  const uint64_t id = enqueued_id(next_number.fetch_add(1));
  {
    std::lock_guard<std::mutex> guard(mutex_);
    known_.emplace(id, transfer);
    open_.push_back(transfer);
  }
  runner_.show_demands();
  return id;
}

EnqueuedTransfers::Ptr EnqueuedTransfers::find(uint64_t id) {
  std::lock_guard<std::mutex> guard(mutex_);
  const auto found = known_.find(id);
  if (found != known_.end()) return found->second;
  throw Error(GLAKE_INVALID_ARGUMENT,
              "no copy has the id " + std::to_string(id) + "; it may have been released");
}

int EnqueuedTransfers::wait(const Ptr& transfer, uint64_t timeout_ns, std::string* text) {
  const uint64_t begin = tools_.driver.now_ns();
  while (!transfer->over()) {
    const uint64_t passed = tools_.driver.now_ns() - begin;
    if (passed >= timeout_ns) {
      *text = "the copy is not done after " + std::to_string(timeout_ns) + " ns";
      return GLAKE_BUSY_TIMEOUT;
    }
    if (stopped_) {
      *text = "the transfer engine was closed; the copy goes on in its stream";
      return GLAKE_TRANSFER_CLOSED;
    }
    const uint64_t slice = std::min(TransferTuning::kWaitSlice, timeout_ns - passed);
    if (!tools_.driver.wait_event(transfer->ended(), slice).not_ready()) finish(transfer);
  }
  std::lock_guard<std::mutex> guard(mutex_);
  if (transfer->error().empty()) return GLAKE_OK;
  *text = transfer->error() + ": it is not known which bytes of the destination were written";
  return GLAKE_COPY_FAILED;
}

bool EnqueuedTransfers::done(const Ptr& transfer) {
  if (!transfer->over() && !tools_.driver.query(transfer->ended()).not_ready()) finish(transfer);
  return transfer->over();
}

// Finishes the transfers whose copies are done, because perhaps no caller waits for them.
void EnqueuedTransfers::look() {
  std::vector<Ptr> open;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    open = open_;
  }
  for (const Ptr& transfer : open) done(transfer);
}

void EnqueuedTransfers::finish(const Ptr& transfer) {
  if (!transfer->claim_end()) {
    std::this_thread::yield();  // another thread ends it
    return;
  }
  const EnqueuedTransfer::Outcome outcome = transfer->outcome();
  bool idle = false;
  const bool whole = none_failed(outcome);
  const Scheduler::Ended ended = scheduler_.forget_enqueued(
      transfer.get(), whole ? transfer->times(outcome) : DivisionTimes{});
  if (ended.alone && whole) {
    std::vector<Scheduler::Seen> seen;
    for (const auto& path : transfer->paths()) {
      if (ended.trial || transfer->on_time(outcome)) break;  // no link is known to be slow
      seen.push_back({path->path, path->hop_rates});
    }
    scheduler_.learn(seen);
  }
  {
    std::lock_guard<std::mutex> guard(mutex_);
    transfer->finish(outcome);
    open_.erase(std::find(open_.begin(), open_.end(), transfer));
    idle = open_.empty();
  }
  runner_.count(*transfer);
  if (idle && runner_.demands().empty()) tools_.slots.trim();
  runner_.show_demands();
}

void EnqueuedTransfers::release(uint64_t id) {
  Ptr last;  // its events are destroyed outside the lock
  std::lock_guard<std::mutex> guard(mutex_);
  const auto found = known_.find(id);
  if (found == known_.end()) return;
  last = std::move(found->second);
  known_.erase(found);
}

Bytes EnqueuedTransfers::landed(const Ptr& transfer) {
  done(transfer);
  std::lock_guard<std::mutex> guard(mutex_);
  return transfer->landed();
}

std::string EnqueuedTransfers::result(const Ptr& transfer) {
  done(transfer);
  std::lock_guard<std::mutex> guard(mutex_);
  return transfer->json();
}

std::vector<CarriedPath> EnqueuedTransfers::paths(const Ptr& transfer) {
  done(transfer);
  std::lock_guard<std::mutex> guard(mutex_);
  return transfer->carried_paths();
}

size_t EnqueuedTransfers::under_way() {
  std::lock_guard<std::mutex> guard(mutex_);
  return open_.size();
}

void EnqueuedTransfers::close(uint64_t most_ns) {
  stopped_ = false;  // nobody waits any more
  for (;;) {
    Ptr transfer;
    {
      std::lock_guard<std::mutex> guard(mutex_);
      if (open_.empty()) break;
      transfer = open_.front();
    }
    if (tools_.driver.wait_event(transfer->ended(), most_ns).not_ready()) {
      throw Error(GLAKE_BUSY_TIMEOUT,
                  "a stream still has work before a transfer it was given; synchronise it, then "
                  "close the transfer engine again");
    }
    finish(transfer);
  }
  std::lock_guard<std::mutex> guard(mutex_);
  known_.clear();
}

}  // namespace glake::transfer
