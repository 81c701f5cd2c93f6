#include "transfer/engine.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "core/process.h"
#include "transfer/plain.h"
#include "transfer/text.h"

namespace glake::transfer {
namespace {

constexpr Bytes kAlwaysPlain = kMiB;  // below it no plan is asked for

}  // namespace

Engine::Engine(Driver& driver, Process& process, HostPool& host, const std::string& platform,
               const std::string& name)
    : driver_(driver),
      process_(process),
      slots_(driver, process),
      kernel_(driver),
      holds_(host),
      marks_(driver),
      pins_(driver),
      devices_(driver.device_count()) {
  const auto count = static_cast<size_t>(devices_);
  plain_streams_ = std::make_unique<std::atomic<StreamHandle>[]>(2 * count);
  opened_ = std::make_unique<std::atomic<bool>[]>(count);
  for (size_t i = 0; i < count; ++i) {
    plain_streams_[2 * i] = plain_streams_[2 * i + 1] = 0;
    opened_[i] = false;
  }
  if (platform.empty()) return;
  try {
    topology_ = std::make_unique<topology::Topology>(topology::Topology::parse(platform, name));
  } catch (const topology::TopologyError& e) {
    throw Error(GLAKE_INVALID_ARGUMENT, std::string("the topology: ") + e.what());
  }
  if (topology_->gpus() < devices_) {
    throw Error(GLAKE_INVALID_ARGUMENT, "the topology has " + std::to_string(topology_->gpus()) +
                                            " GPUs, the driver " + std::to_string(devices_));
  }
  planner_ = std::make_unique<Planner>(*topology_);
  slots_.know(topology_.get());
  for (int gpu = devices_; gpu < topology_->gpus(); ++gpu) planner_->set_relay(gpu, false);
}

Engine::~Engine() {
  if (demands_event_ >= 0) ::close(demands_event_);
}

uint64_t Engine::start(Request request) {
  const bool wanted = (request.flags & (kRelayed | kChecksum)) != 0,
             simple = (request.flags & kDirect) != 0;
  const bool local = !request.src.host() && request.src.gpu == request.dst.gpu;
  const bool possible = plain_possible(request);
  const bool small = request.parts.total() < kAlwaysPlain;
  if (local && (request.flags & kChecksum) != 0) {
    throw Error(GLAKE_COPY_REFUSED, "checksums are of copies between two places, not within " +
                                        device_text(request.src.gpu));
  }
  if (possible && ((small && !wanted) || simple || local)) return plain(request, false);
  if (local || simple) {
    throw Error(GLAKE_COPY_REFUSED, device_text(request.stream_device) +
                                        ", whose stream it is, does not reach the memory");
  }
  open_device(request.stream_device);
  bool captured = false;
  if (request.ordered) {
    Status s = driver_.is_capturing(request.stream_device, request.stream, &captured);
    if (!s.ok()) throw Error(GLAKE_DRIVER_ERROR, "asking about the stream: " + driver_.describe(s));
  }
  if (captured && (wanted || !possible)) {
    throw Error(
        GLAKE_COPY_REFUSED,
        "the stream is being captured: a graph can hold one plain copy, no relays, no checksums");
  }
  if (captured) return plain(request, true);
  const TransferPlan plan = plan_alone(request);
  if (possible && !request.pageable && !wanted && !worthwhile(request, plan) &&
      !pays_beside_others(request) && !kernel_pays(request, plan)) {
    const uint64_t id = plain(request, false);
    note_plain(request, plan.plain);
    return id;
  }
  auto transfer = std::make_shared<Transfer>(std::move(request));
  if (transfer->request.ordered && !order(transfer)) {
    const char* const why = "the driver has no stream that waits for a value";
    if (!possible) throw Error(GLAKE_COPY_REFUSED, std::string(why) + ": copy without a stream");
    return plain(transfer->request, false, why);
  }
  Lock lock(mutex_);
  const uint64_t id = next_id_++;
  transfer->plan.plain = plan.plain;
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

// Wakes the threads that have something to do.
void Engine::rouse(uint64_t now) {
  for (auto& [gpu, submitter] : submitters_) {
    if (submitter->wanted(now)) submitter->wake();
  }
}

// After anything happened to a transfer: ends it if nothing more will.
void Engine::conclude(Lock* lock, const std::shared_ptr<Transfer>& transfer) {
  if (transfer->stranded()) last_resort(transfer);
  if (!transfer->over() && transfer->ready()) {
    if (running_.size() == 1 && running_[0] == transfer) {
      lock->unlock();
      slots_.trim();  // before anybody is told that all is done
      lock->lock();
    }
    if (!transfer->over()) finish(transfer.get());
  }
  const bool again = !lessons_.empty() || (transfer->over() && !running_.empty());
  if (again) {
    lock->unlock();
    replan();
    lock->lock();
  }
  rouse(driver_.now_ns());
}

void Engine::finish(Transfer* transfer) {
  transfer->end(driver_.now_ns());
  auto same = [&](const auto& other) { return other.get() == transfer; };
  running_.erase(std::remove_if(running_.begin(), running_.end(), same), running_.end());
  for (auto& [gpu, submitter] : submitters_) submitter->remove(transfer);
  tell_demands();
  ++finished_;
  failed_ += transfer->state == State::kFailed;
  for (const auto& lane : transfer->lanes) {
    bytes_ += lane->landed;
    resent_ += lane->resent;
    auto& [chunks, bytes] = carried_[lane->name()];
    chunks += lane->chunks;
    bytes += lane->landed;
  }
}

std::shared_ptr<Transfer> Engine::find(uint64_t id) {
  Lock lock(mutex_);
  auto found = transfers_.find(id);
  if (found != transfers_.end()) return found->second;
  throw Error(GLAKE_INVALID_ARGUMENT,
              "no transfer has the id " + std::to_string(id) + "; it may have been released");
}

int Engine::wait(uint64_t id, uint64_t timeout_ns, std::string* text) {
  if (PlainId(id).valid()) return wait_plain(id, text);
  if (Marks::is(id)) return marks_.wait(id, timeout_ns, text);
  using Clock = std::chrono::steady_clock;
  const std::shared_ptr<Transfer> transfer = find(id);
  const bool bounded = timeout_ns < UINT64_MAX / 4;
  const auto until = Clock::now() + std::chrono::nanoseconds(bounded ? timeout_ns : 0);
  Lock lock(mutex_);
  while (!transfer->over()) {
    if (bounded && Clock::now() >= until) {
      *text = "transfer " + std::to_string(id) + " is not done after " +
              std::to_string(timeout_ns) + " ns";
      return GLAKE_BUSY_TIMEOUT;
    }
    if (transfer->state == State::kWaiting) {
      await_gate(&lock, transfer);
    } else if (bounded) {
      transfer->changed.wait_until(lock, until);
    } else {
      transfer->changed.wait(lock);
    }
  }
  if (transfer->state == State::kDone) return GLAKE_OK;
  *text = transfer->state == State::kFailed
              ? transfer->error_text
              : "the transfer was cancelled: " + transfer->destination_state();
  return transfer->state == State::kFailed ? transfer->error : GLAKE_COPY_CANCELLED;
}

bool Engine::done(uint64_t id) {
  if (PlainId(id).valid()) {
    const PlainId plain(id);
    bool idle = plain.captured();
    if (!idle) driver_.stream_idle(plain.device(), plain.stream(), &idle);
    return idle;
  }
  if (Marks::is(id)) return marks_.done(id);
  const std::shared_ptr<Transfer> transfer = find(id);
  Lock lock(mutex_);
  const EventId passed = transfer->state == State::kWaiting ? transfer->passed : 0;
  const bool over = transfer->over();
  lock.unlock();
  if (passed != 0) driver_.query(passed);  // time moves where it is the driver's
  return over;
}

void Engine::cancel(uint64_t id) {
  if (PlainId(id).valid() || Marks::is(id)) return;  // it is the driver's
  const std::shared_ptr<Transfer> transfer = find(id);
  Lock lock(mutex_);
  if (transfer->over()) return;
  transfer->cancelled = true;
  conclude(&lock, transfer);
}

// Nobody asks for it any more; it goes on.
void Engine::release(uint64_t id) {
  if (PlainId(id).valid()) return;
  if (Marks::is(id)) return marks_.release(id);
  const std::shared_ptr<Transfer> transfer = find(id);
  Lock lock(mutex_);
  transfer->released = transfer->over() && transfer->unfinished != 0;
  if (!transfer->released) transfers_.erase(id);
  if (transfer->passed != 0) passed_.push_back(std::exchange(transfer->passed, 0));
}

void Engine::progress(uint64_t id, Bytes* done, Bytes* total) {
  *done = *total = 0;
  if (PlainId(id).valid()) return;
  if (Marks::is(id)) {
    *total = marks_.bytes(id);
    *done = marks_.done(id) ? *total : 0;
    return;
  }
  const std::shared_ptr<Transfer> transfer = find(id);
  Lock lock(mutex_);
  *done = transfer->landed.bytes();
  *total = transfer->total();
}

std::string Engine::result(uint64_t id) {
  if (PlainId(id).valid() || Marks::is(id)) {
    JsonText out;
    out.text("state", done(id) ? "done" : "running").flag("relayed", false);
    std::string refusals;
    if (Marks::is(id)) {
      out.number("bytes", static_cast<double>(marks_.bytes(id)));
      if (const char* why = marks_.why(id)) {
        refusals = JsonText().text("path", "*").text("reason", why).done();
      }
    }
    out.flag("captured", PlainId(id).valid() && PlainId(id).captured());
    return out.raw("paths", "[]").raw("refusals", "[" + refusals + "]").done();
  }
  const std::shared_ptr<Transfer> transfer = find(id);
  Lock lock(mutex_);
  return transfer->json(driver_.now_ns());
}

std::string Engine::stats() {
  Lock lock(mutex_);
  JsonText out;
  auto number = [&](const char* key, uint64_t value) {
    out.number(key, static_cast<double>(value));
  };
  number("plain_copies", plain_copies_.load());
  number("plain_bytes", plain_bytes_.load());
  number("transfers", finished_);
  number("failed", failed_);
  number("bytes", bytes_);
  number("resent", resent_);
  number("running", running_.size());
  number("waiting", gates_.size());
  number("threads", submitters_.size());
  number("slots", slots_.count());
  number("kernel_launches", kernel_.launches());
  out.text("without_kernels", kernel_.why());
  out.flag("lent", !lent_.empty());
  if (planner_ != nullptr) out.raw("relays", gpus_text(lent_relays_ | own_.load()));
  std::string list;
  for (const auto& [name, health] : health_.all()) {
    JsonText one;
    one.text("path", name).text("state", path_state_name(health.state()));
    one.text("why", health.why()).number("failures", static_cast<double>(health.failures()));
    const auto& [chunks, bytes] = carried_[name];
    one.number("chunks", static_cast<double>(chunks)).number("bytes", static_cast<double>(bytes));
    list += (list.empty() ? "" : ", ") + one.done();
  }
  return out.raw("paths", "[" + list + "]").done();
}

std::string Engine::explain(Place dst, Place src, Bytes bytes) {
  Request request(Parts({{1, 1, bytes}}));
  request.dst = dst;
  request.src = src;
  const TransferPlan plan = plan_alone(request);
  JsonText out;
  out.number("bytes", static_cast<double>(bytes))
      .number("rate", plan.rate)
      .number("plain", plan.plain);
  out.flag("worthwhile", worthwhile(request, plan));
  std::string list;
  for (const PlannedPath& path : plan.paths) {
    JsonText one;
    one.text("path", path.path.name).number("rate", path.rate);
    list += (list.empty() ? "" : ", ") + one.done();
  }
  out.raw("paths", "[" + list + "]");
  list.clear();
  for (const Refusal& refusal : plan.refusals) {
    JsonText one;
    one.text("path", refusal.path).text("reason", refusal.reason);
    list += (list.empty() ? "" : ", ") + one.done();
  }
  return out.raw("refusals", "[" + list + "]").done();
}

}  // namespace glake::transfer
