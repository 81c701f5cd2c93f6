#include "transfer/run/run_state.h"

#include <algorithm>
#include <atomic>

namespace glake::transfer {
namespace {

// A number that is never given twice in the process, not even by another engine.
std::atomic<uint64_t> next_number{1};

}  // namespace

uint64_t RunState::enter(const TransferPtr& transfer) {
  const uint64_t id = next_number.fetch_add(1);
  transfers_[id] = transfer;
  return id;
}

TransferPtr RunState::known(uint64_t id) const {
  auto found = transfers_.find(id);
  return found != transfers_.end() ? found->second : nullptr;
}

void RunState::release(uint64_t id, Transfer* transfer) {
  transfer->released = transfer->over() && transfer->unfinished != 0;
  if (!transfer->released) transfers_.erase(id);
}

void RunState::forget_released() {
  for (auto it = transfers_.begin(); it != transfers_.end();) {
    const bool gone = it->second->released && it->second->unfinished == 0;
    it = gone ? transfers_.erase(it) : std::next(it);
  }
}

void RunState::run(const TransferPtr& transfer) {
  transfer->listed = true;
  running_.push_back(transfer);
}

void RunState::finish(const Transfer* transfer) {
  auto same = [&](const auto& other) { return other.get() == transfer; };
  running_.erase(std::remove_if(running_.begin(), running_.end(), same), running_.end());
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

std::vector<TransferPtr> RunState::all() const {
  std::vector<TransferPtr> all;
  for (const auto& [id, transfer] : transfers_) all.push_back(transfer);
  all.insert(all.end(), running_.begin(), running_.end());
  return all;
}

void RunState::count(const EnqueuedTransfer& transfer, uint64_t now) {
  ++finished_;
  const bool failed = !transfer.error().empty();
  failed_ += failed;
  for (const auto& path : transfer.paths()) {
    const std::string& name = path->path->path.name;
    PathHealth& health = health_.of(name);
    if (path->why.empty()) {
      health.succeed();
    } else {
      health.fail(now, path->why);
      // A path that refused a chunk has carried those before. If a copy failed, the driver does not
      // say which bytes of its path have arrived.
      if (failed) continue;
    }
    bytes_ += path->bytes;
    auto& [chunks, bytes] = carried_[name];
    chunks += path->chunks;
    bytes += path->bytes;
  }
}

void RunState::describe_counts(JsonText* out) const {
  out->number("transfers", static_cast<double>(finished_));
  out->number("failed", static_cast<double>(failed_));
  out->number("bytes", static_cast<double>(bytes_));
  out->number("resent", static_cast<double>(resent_));
  out->number("running", static_cast<double>(running_.size()));
}

void RunState::describe_paths(JsonText* out) {
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
