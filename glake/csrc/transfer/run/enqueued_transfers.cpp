#include "transfer/run/enqueued_transfers.h"

#include <algorithm>
#include <utility>

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
  return under_way() < TransferTuning::kMostUnderWay &&
         tools_.pipelines.lent() < TransferTuning::kMostPipelines;
}

uint64_t EnqueuedTransfers::begin(const Request& request, const std::vector<PlanPtr>& plans,
                                  const Outlook& outlook, bool possible, Batch* batch) {
  PlanPtr direct = scheduler_.direct_plan(request.src, request.dst);
  auto transfer = std::make_shared<EnqueuedTransfer>(
      tools_, by_socket(request, tools_.driver.has_rows()), std::move(direct));
  const void* const key = transfer.get();
  try {
    const Scheduler::Chosen chosen =
        scheduler_.share_out(key, transfer->request, plans, outlook, possible);
    const Decision& decision = *chosen.decision;
    if (decision.plan == nullptr) return 0;
    EnqueuedTransfer::Before before;
    const Ptr last = follow(transfer, &before);  // keeps `before` valid
    transfer->prepare(decision.plan, decision.shares, chosen.alone, std::move(before));
  } catch (...) {
    forget(transfer);
    throw;
  }
  const uint64_t id = enqueued_id(next_number.fetch_add(1));
  Batch alone;
  (batch != nullptr ? batch : &alone)->prepared_.emplace_back(id, std::move(transfer));
  if (batch == nullptr) enqueue(&alone);
  return id;
}

bool EnqueuedTransfers::Batch::precedes(const StreamKey& stream) const {
  constexpr StreamHandle kLegacy = 0;
  return std::any_of(prepared_.begin(), prepared_.end(), [&](const auto& one) {
    const StreamKey own = one.second->request.stream_key();
    if (own.device != stream.device) return false;
    return own.stream == stream.stream || own.stream == kLegacy || stream.stream == kLegacy;
  });
}

void EnqueuedTransfers::enqueue(Batch* batch) {
  const auto prepared = std::exchange(batch->prepared_, {});
  if (prepared.empty()) return;
  try {
    std::vector<EnqueuedTransfer*> transfers;
    for (const auto& [id, transfer] : prepared) transfers.push_back(transfer.get());
    EnqueuedTransfer::enqueue(transfers);
    std::lock_guard<std::mutex> guard(mutex_);
    for (const auto& [id, transfer] : prepared) {
      known_.emplace(id, transfer);
      open_[transfer->request.stream_key()].push_back(transfer);
    }
  } catch (...) {
    for (const auto& [id, transfer] : prepared) {
      batch->lost_.push_back(id);
      forget(transfer);
    }
    throw;
  }
  runner_.show_demands();
}

// The transfer does not begin.
void EnqueuedTransfers::forget(const Ptr& transfer) {
  scheduler_.forget_enqueued(transfer.get(), {});
  std::lock_guard<std::mutex> guard(mutex_);
  forget_last(transfer);
}

// Makes the transfer the last one of its stream. Returns the one that was the last, and says what
// may be taken over from it. That is nothing if it is not enqueued yet.
EnqueuedTransfers::Ptr EnqueuedTransfers::follow(const Ptr& transfer,
                                                 EnqueuedTransfer::Before* before) {
  const StreamKey stream = transfer->request.stream_key();
  std::lock_guard<std::mutex> guard(mutex_);
  Ptr last = std::exchange(last_[stream], transfer);
  const auto open = open_.find(stream);
  if (open == open_.end()) return nullptr;
  const std::deque<Ptr>& queue = open->second;
  if (std::find(queue.begin(), queue.end(), last) == queue.end()) return nullptr;
  *before = last->for_next();
  return last;
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
    await(transfer, slice);
  }
  std::lock_guard<std::mutex> guard(mutex_);
  if (transfer->error().empty()) return GLAKE_OK;
  *text = transfer->error() +
          ": it is not known which bytes of the destination were written, and some may be those of "
          "an earlier copy";
  return GLAKE_COPY_FAILED;
}

// Returns whether it is done, after at most `most_ns`. A driver that refuses to wait is asked again
// and again.
bool EnqueuedTransfers::await(const Ptr& transfer, uint64_t most_ns) {
  const uint64_t begin = tools_.driver.now_ns();
  for (;;) {
    const uint64_t passed = std::min(tools_.driver.now_ns() - begin, most_ns);
    const Status answer = tools_.driver.wait_event(transfer->ended(), most_ns - passed);
    if (end_if_done(transfer, answer)) return true;
    if (answer.not_ready() || passed == most_ns) return false;
    tools_.driver.sleep(TransferTuning::kLongestSleep);  // or until another thread has ended it
  }
}

bool EnqueuedTransfers::done(const Ptr& transfer) {
  return transfer->over() || end_if_done(transfer, tools_.driver.query(transfer->ended()));
}

// `answer` is the driver's, about the event behind the transfer.
bool EnqueuedTransfers::end_if_done(const Ptr& transfer, Status answer) {
  if (answer.not_ready() || !transfer->claim_end()) return transfer->over();
  if (transfer->done(answer)) {
    finish(transfer);
  } else {
    transfer->drop_claim();
  }
  return transfer->over();
}

void EnqueuedTransfers::forget_last(const Ptr& transfer) {
  const auto last = last_.find(transfer->request.stream_key());
  if (last != last_.end() && last->second == transfer) last_.erase(last);
}

void EnqueuedTransfers::forget_stream(StreamKey stream) {
  std::lock_guard<std::mutex> guard(mutex_);
  last_.erase(stream);
}

// Finishes the transfers whose copies are done, because perhaps no caller waits for them. Those of
// one stream end one after the other.
void EnqueuedTransfers::look() {
  std::vector<Ptr> waiting;
  for (std::vector<Ptr> first = first_ones(); !first.empty(); first = first_ones()) {
    const auto known = [&](const Ptr& one) {
      return std::find(waiting.begin(), waiting.end(), one) != waiting.end();
    };
    first.erase(std::remove_if(first.begin(), first.end(), known), first.end());
    if (first.empty()) return;
    for (const Ptr& transfer : first) {
      if (!done(transfer)) waiting.push_back(transfer);
    }
  }
}

// The first transfer of each stream.
std::vector<EnqueuedTransfers::Ptr> EnqueuedTransfers::first_ones() {
  std::lock_guard<std::mutex> guard(mutex_);
  std::vector<Ptr> first;
  for (const auto& [stream, queue] : open_) first.push_back(queue.front());
  return first;
}

// The caller has the claim to end it.
void EnqueuedTransfers::finish(const Ptr& transfer) {
  const EnqueuedTransfer::Outcome outcome = transfer->outcome();
  bool idle = false;
  const bool whole = none_failed(outcome);
  const Scheduler::Ended ended = scheduler_.forget_enqueued(
      transfer.get(), whole ? transfer->times(outcome) : DivisionTimes{});
  if (ended.alone && whole) {
    std::vector<Scheduler::Seen> seen;
    for (const auto& path : transfer->paths()) {
      if (ended.trial || transfer->on_time(outcome)) break;  // no link is known to be slow
      const auto bytes = static_cast<double>(path->bytes);
      const Rate carried = path->time_ns > 0 ? bytes / static_cast<double>(path->time_ns) : 0;
      seen.push_back({path->path, path->hop_rates, carried});
    }
    scheduler_.learn(seen);
  }
  {
    std::lock_guard<std::mutex> guard(mutex_);
    transfer->finish(outcome);
    const StreamKey stream = transfer->request.stream_key();
    std::deque<Ptr>& queue = open_[stream];
    queue.erase(std::find(queue.begin(), queue.end(), transfer));
    if (queue.empty()) open_.erase(stream);
    forget_last(transfer);
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
  size_t count = 0;
  for (const auto& [stream, queue] : open_) count += queue.size();
  return count;
}

void EnqueuedTransfers::close(uint64_t most_ns) {
  for (;;) {
    Ptr transfer;
    {
      std::lock_guard<std::mutex> guard(mutex_);
      if (open_.empty()) break;
      transfer = open_.begin()->second.front();
    }
    if (!await(transfer, most_ns)) {
      throw Error(GLAKE_BUSY_TIMEOUT,
                  "a stream still has work before a transfer it was given; synchronise it, then "
                  "close the transfer engine again");
    }
  }
  std::lock_guard<std::mutex> guard(mutex_);
  known_.clear();
}

}  // namespace glake::transfer
