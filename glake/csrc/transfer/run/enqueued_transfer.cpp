#include "transfer/run/enqueued_transfer.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/transfer_tuning.h"
#include "driver/device_scope.h"
#include "plan/plan_json.h"

namespace glake::transfer {
EnqueuedTransfer::EnqueuedTransfer(const Tools& tools, Request what, PlanPtr direct)
    : request(std::move(what)), tools_(tools), direct_(std::move(direct)) {}

EnqueuedTransfer::~EnqueuedTransfer() {
  // Gives back what a transfer that could not begin has taken. No work uses it.
  for (const auto& path : paths_) keep_timers(path.get());
  for (const EventId event : {begun_, ended_}) {
    if (event != 0) tools_.pipelines.keep_timer(request.stream_device, event);
  }
}

void EnqueuedTransfer::prepare(PlanPtr plan, const std::vector<PathShare>& shares, bool timed,
                               Before before) {
  plan_ = std::move(plan);
  Driver& driver = tools_.driver;
  const int device = request.stream_device;
  const auto expect_ok = [&](Status s) {
    if (!s.ok()) throw Error(GLAKE_DRIVER_ERROR, "the caller's stream: " + driver.describe(s));
  };
  // The stream's order says the same, unless the driver gave the handle to a new stream.
  if (before.ended != 0) expect_ok(driver.wait_stream(device, request.stream, before.ended));
  spare_ = std::move(before.lines);
  // Makes all that is needed before any of it is enqueued.
  for (const PathShare& share : shares) {
    Carried* path = add_path(*share.path);
    Bytes most = 0;
    for (const Range& range : share.chunks) most = std::max(most, range.bytes());
    path->planned = share.chunks.size();
    path->timed = timed && path->planned >= TransferTuning::kLeastTimed ? 1 : 0;
    open_path(path, {share.streams.joined, share.streams.count, share.buffers, most});
  }
  expect_ok(tools_.pipelines.timer(device, &begun_));
  expect_ok(tools_.pipelines.timer(device, &ended_));
  expect_ok(driver.record(device, begun_, request.stream));
  for (size_t i = 0; i < shares.size(); ++i) {
    paths_[i]->left.assign(shares[i].chunks.rbegin(), shares[i].chunks.rend());
  }
}

void EnqueuedTransfer::enqueue(const std::vector<EnqueuedTransfer*>& transfers) {
  std::map<int, std::vector<Own>> of_worker;
  size_t copies = 0;
  for (EnqueuedTransfer* transfer : transfers) {
    for (const auto& path : transfer->paths_) {
      copies += path->left.size() * path->path->path.hops.size();
      of_worker[path->path->path.worker].push_back({transfer, path.get()});
    }
  }
  std::vector<PathThreads::Task> tasks;
  for (const auto& [worker, paths] : of_worker) {
    tasks.push_back({worker, [paths = paths] { submit_here(paths); }});
  }
  if (copies > TransferTuning::kAlone && tasks.size() > 1) {
    transfers.front()->tools_.threads.run(tasks);
  } else {
    for (const PathThreads::Task& task : tasks) task.run();
  }
  for (EnqueuedTransfer* transfer : transfers) {
    transfer->submit_left();
    transfer->join();
  }
}

EnqueuedTransfer::Carried* EnqueuedTransfer::add_path(const PlannedPath& path) {
  paths_.push_back(std::make_unique<Carried>());
  paths_.back()->path = &path;
  return paths_.back().get();
}

// If a path cannot have what it needs, it is closed. That is not a fault of its links.
void EnqueuedTransfer::open_path(Carried* path, const Pipeline::Use& use) {
  try {
    tools_.devices.prepare(path->path->path);
    path->around.resize(path->path->path.hops.size());
    PipelinePtr line = line_for(path->path->path, use);
    path->use = use;
    for (const Pipeline::Step& step : line->steps) {
      path->use.flows = std::min(path->use.flows, step.streams.size());
    }
    path->ended.resize(path->use.flows);
    const Status s = make_timers(path);
    if (!s.ok()) throw Error(GLAKE_DRIVER_ERROR, "an event: " + tools_.driver.describe(s));
    path->steps = line->steps;
    for (Pipeline::Step& step : path->steps) step.streams.resize(path->use.flows);
    path->line = std::move(line);
  } catch (const Error& e) {
    close_path(path, e.what());
  }
}

// A pipeline with too small buffers is not passed on when another replaces it. Otherwise a queue
// that is never empty would hold one of each size. It may hold one whose hops share streams and one
// whose hops do not: if these replaced each other, it would have ever more of them.
PipelinePtr EnqueuedTransfer::line_for(const Path& path, const Pipeline::Use& use) {
  const auto take_over = [&](auto good) {
    const auto found = std::find_if(spare_.begin(), spare_.end(), good);
    if (found == spare_.end()) return PipelinePtr();
    PipelinePtr line = std::move(*found);
    spare_.erase(found);
    return line;
  };
  PipelinePtr line = take_over([&](const PipelinePtr& one) { return one->fits(path, use); });
  if (line != nullptr) {
    tools_.pipelines.widen(line.get(), use);
    return line;
  }
  line = tools_.pipelines.take(path, use);
  take_over([&](const PipelinePtr& one) { return one->joined == use.joined && one->on_way(path); });
  return line;
}

Status EnqueuedTransfer::make_timers(Carried* path) {
  const std::vector<Hop>& hops = path->path->path.hops;
  Status s;
  for (EventId& event : path->ended) {
    if (s.ok()) s = tools_.pipelines.timer(ChunkHop::device_of(hops.back()), &event);
  }
  for (size_t hop = 0; path->timed != 0 && hop < hops.size(); ++hop) {
    for (EventId& event : path->around[hop]) {
      if (s.ok()) s = tools_.pipelines.timer(ChunkHop::device_of(hops[hop]), &event);
    }
  }
  return s;
}

void EnqueuedTransfer::keep_timers(Carried* path) {
  const auto keep = [&](const Hop& hop, auto& events) {
    for (EventId& event : events) {
      const EventId kept = std::exchange(event, 0);
      if (kept != 0) tools_.pipelines.keep_timer(ChunkHop::device_of(hop), kept);
    }
  };
  const std::vector<Hop>& hops = path->path->path.hops;
  keep(hops.back(), path->ended);
  for (size_t hop = 0; hop < path->around.size(); ++hop) keep(hops[hop], path->around[hop]);
}

// A transfer of which a path was closed, or has no event behind it, passes on nothing: some of its
// work may be unknown.
EnqueuedTransfer::Before EnqueuedTransfer::for_next() const {
  Before before;
  const auto unknown = [](const auto& path) { return path->closed || !path->ends || path->unsure; };
  if (over() || unmarked_ || std::any_of(paths_.begin(), paths_.end(), unknown)) return before;
  before.ended = ended_;
  before.lines = spare_;
  for (const auto& path : paths_) before.lines.push_back(path->line);
  return before;
}

void EnqueuedTransfer::close_path(Carried* path, const std::string& why) {
  path->closed = true;
  if (path->why.empty()) path->why = why;
}

// Runs on the thread of these paths, or on the caller's. All paths begin early, because the next
// chunk is always one of the path that has the largest part of its chunks left.
void EnqueuedTransfer::submit_here(const std::vector<Own>& paths) {
  const Tools& tools = paths.front().transfer->tools_;
  ChunkCopier copier(tools.driver, tools.devices, tools.slots, tools.kernel, tools.copy_ns);
  const auto left = [](const Own& one) {
    const auto all = static_cast<double>(one.path->left.size() + one.path->chunks);
    return one.path->closed ? 0 : static_cast<double>(one.path->left.size()) / std::max(all, 1.0);
  };
  const auto less = [&](const Own& a, const Own& b) { return left(a) < left(b); };
  for (;;) {
    const auto& [transfer, path] = *std::max_element(paths.begin(), paths.end(), less);
    if (left({transfer, path}) <= 0) break;
    try {
      if (transfer->submit(path, path->left.back(), &copier)) path->left.pop_back();
    } catch (const std::exception& e) {
      transfer->close_path(path, e.what());
    }
  }
  for (const Own& one : paths) one.transfer->gather(one.path, &copier);
}

// False: the chunk was not submitted, and the path is closed. Copies that were enqueued on its last
// hop go on. They write what any other path's copy would write.
bool EnqueuedTransfer::submit(Carried* path, Range range, ChunkCopier* copier) {
  if (path->closed) return false;
  const size_t hops = path->steps.size();
  for (size_t hop = 0; hop < hops; ++hop) {
    const Status s = submit_hop(path, hop, range, copier);
    if (s.ok()) continue;
    close_path(path, "copy " + std::to_string(hop + 1) + ": " + tools_.driver.describe(s));
    ++path->tried;
    return false;
  }
  ++path->tried;
  path->bytes += range.bytes();
  ++path->chunks;
  return true;
}

// The copy waits until the buffer before the hop is full, and until the buffer behind it is empty.
Status EnqueuedTransfer::submit_hop(Carried* path, size_t hop, Range range, ChunkCopier* copier) {
  Driver& driver = tools_.driver;
  Pipeline& line = *path->line;
  const size_t chunk_number = path->tried;
  const bool last = hop + 1 == path->steps.size();
  const int device = path->steps[hop].device;
  const StreamHandle stream = path->steps[hop].streams[chunk_number % path->use.flows];
  const auto buffer = [&](size_t behind) {
    const size_t buffers = line.buffers_behind(behind, path->use);
    return &line.between[behind].buffers[chunk_number % buffers];
  };
  Pipeline::Buffer* const from = hop == 0 ? nullptr : buffer(hop - 1);
  Pipeline::Buffer* const to = last ? nullptr : buffer(hop);
  const bool comes = from != nullptr && !line.follows_in_stream(hop);     // from another stream
  const bool leaves = to != nullptr && !line.follows_in_stream(hop + 1);  // for another stream
  Status s;
  if (comes) {
    s = driver.wait_stream(device, stream, from->filled);
  } else if (hop == 0 && chunk_number < path->use.flows) {
    s = driver.wait_stream(device, stream, begun_);
  }
  if (s.ok() && leaves && chunk_number >= path->use.buffers) {
    s = driver.wait_stream(device, stream, to->emptied);
  }
  if (!s.ok()) return s;
  ChunkHop chunk{request, path->path->path.hops[hop], range, 0, 0, path->path->rate, stream};
  if (from != nullptr) chunk.from = from->slot.at();
  if (to != nullptr) chunk.to = to->slot.at();
  KernelBuffers kernel;
  Bytes enqueued = 0;
  bool unsure = false;
  const bool timed = path->timed != 0 && chunk_number == path->planned / 2;
  const auto& around = path->around[hop];
  if (timed) s = driver.record(device, around[0], stream);
  {
    DeviceScope scope(driver, device);
    if (s.ok()) s = scope.status();
    if (s.ok()) s = copier->copy(chunk, &kernel, &enqueued, &unsure);
  }
  if (s.ok() && timed) {
    s = driver.record(device, around[1], stream);
    path->timed = range.bytes();
  }
  if (kernel.table || kernel.bounce) path->kernels.push_back(std::move(kernel));
  if (s.ok() && leaves) s = driver.record(device, to->filled, stream);
  const bool filled_again = chunk_number + path->use.buffers < path->planned;
  if (s.ok() && comes && filled_again) s = driver.record(device, from->emptied, stream);
  return s;
}

// The direct path takes what no planned path took.
void EnqueuedTransfer::submit_left() {
  std::vector<Range> left;
  for (const auto& path : paths_) {
    left.insert(left.end(), path->left.rbegin(), path->left.rend());
    path->left.clear();
  }
  if (left.empty()) return;
  const auto open = std::find_if(paths_.begin(), paths_.end(), [](const auto& path) {
    return !path->closed && path->path->path.hops.size() == 1;
  });
  Carried* path = open != paths_.end() ? open->get() : add_path(direct_->paths[0]);
  if (path->line == nullptr && !path->closed) open_path(path, {});
  path->left.assign(left.rbegin(), left.rend());
  submit_here({{this, path}});
  if (path->left.empty()) return;
  path->left.clear();
  error_ = "no path is left: " + path->path->path.name + ": " + path->why;
}

// Records an event behind all of the path's copies. If a copy or an event was refused, it waits for
// the copies here, because no event is sure to be behind those of earlier hops.
void EnqueuedTransfer::gather(Carried* path, ChunkCopier* copier) {
  path->ends = false;
  if (path->line == nullptr || path->tried == 0) return;
  if (!path->closed && gather_ends(path).ok()) {
    path->ends = true;
    return;
  }
  each_stream(*path, [&](int device, StreamHandle stream) {
    if (!copier->quiesce(device, stream)) path->unsure = true;
  });
}

// Makes the first stream of the last hop wait for all others. So that stream's event is behind all
// of the copies.
Status EnqueuedTransfer::gather_ends(Carried* path) {
  const Pipeline::Step& last = path->steps.back();
  Driver& driver = tools_.driver;
  Status s;
  for (size_t i = std::min(path->tried, path->use.flows); s.ok() && i-- > 0;) {
    s = driver.record(last.device, path->ended[i], last.streams[i]);
    if (s.ok() && i != 0) s = driver.wait_stream(last.device, last.streams[0], path->ended[i]);
  }
  return s;
}

// The caller's stream goes on when all paths are done.
void EnqueuedTransfer::join() {
  Driver& driver = tools_.driver;
  ChunkCopier copier(driver, tools_.devices, tools_.slots, tools_.kernel, tools_.copy_ns);
  for (const auto& path : paths_) {
    if (!path->ends) continue;
    const Pipeline::Step& end = path->steps.back();
    const Status s = driver.wait_stream(request.stream_device, request.stream, path->ended.front());
    if (s.ok() || copier.quiesce(end.device, end.streams.front())) continue;
    path->unsure = true;
  }
  // All copies are enqueued. If the event behind them cannot be recorded, this waits for them.
  const Status s = driver.record(request.stream_device, ended_, request.stream);
  if (!s.ok()) unmarked_ = !copier.quiesce(request.stream_device, request.stream);
}

template <class Visit>
void EnqueuedTransfer::each_stream(const Carried& path, Visit&& visit) {
  for (const Pipeline::Step& step : path.steps) {
    for (const StreamHandle stream : step.streams) visit(step.device, stream);
  }
}

// Asks the path's streams. `idle`: none has work that goes on. Returns the first error, if any. A
// driver that lacks memory for the question says nothing of the copies. Any other error ends the
// work of its stream. It is kept, because a driver may tell it only once.
Status EnqueuedTransfer::ask(Carried* path, bool* idle) {
  Status first;
  *idle = true;
  each_stream(*path, [&](int device, StreamHandle stream) {
    bool over = false;
    const Status s = tools_.driver.stream_idle(device, stream, &over);
    if (first.ok()) first = s;
    if (!s.ok() && !s.out_of_memory()) {
      over = true;
      if (path->failed.empty()) path->failed = tools_.driver.describe(s);
    }
    *idle = *idle && over;
  });
  return first;
}

// Where the driver refuses the question, or no event is behind some copies, their streams are
// asked.
bool EnqueuedTransfer::done(Status answer) {
  if (answer.not_ready()) return false;
  bool done = true;
  for (const auto& path : paths_) {
    if (answer.ok() && marked() && !path->unsure) continue;
    bool idle = true;
    ask(path.get(), &idle);
    done = done && idle;
  }
  return done;
}

// The driver's answer about a stream tells of all failed copies in it. Its answer about an event
// tells only of copies since the event before. If a transfer behind this one uses the same streams,
// and a copy of it has failed already, this one is said to have failed too. That relies on CUDA
// repeating the error of a copy: a driver that told it once would tell it when all is done.
std::string EnqueuedTransfer::failure_of(Carried* path) {
  bool idle = true;
  const Status s = ask(path, &idle);
  if (!path->failed.empty()) return path->failed;
  if (!s.ok() && !s.out_of_memory()) return tools_.driver.describe(s);
  if (!path->unsure) return "";
  return (path->why.empty() ? "an event was refused" : path->why) +
         "; the driver refused to wait, so the stream did not wait for its copies";
}

// Computes how fast each hop was. If several chunks flow at once, each has an equal part of the
// rate.
void EnqueuedTransfer::time_hops(Carried* path) {
  std::vector<Rate> rates;
  for (const auto& around : path->around) {
    uint64_t ns = 0;
    if (!tools_.driver.elapsed_ns(around[0], around[1], &ns).ok()) return;
    if (ns < 2 * tools_.copy_ns) return;  // most of it is the copy's start
    rates.push_back(static_cast<double>(path->use.flows * path->timed) /
                    static_cast<double>(ns - tools_.copy_ns));
  }
  path->hop_rates = std::move(rates);
}

EnqueuedTransfer::Outcome EnqueuedTransfer::outcome() {
  Outcome found;
  for (const auto& path : paths_) {
    found.failures.push_back(failure_of(path.get()));
    if (!path->ends) continue;
    tools_.driver.elapsed_ns(begun_, path->ended.front(), &path->time_ns);
    if (path->timed > 1) time_hops(path.get());
  }
  tools_.driver.elapsed_ns(begun_, ended_, &found.time_ns);
  return found;
}

bool EnqueuedTransfer::on_time(const Outcome& outcome) const {
  const auto bytes = static_cast<double>(request.parts.total());
  return bytes >= TransferTuning::kRunsWell * plan_->rate * static_cast<double>(outcome.time_ns);
}

DivisionTimes EnqueuedTransfer::times(const Outcome& outcome) const {
  DivisionTimes times;
  times.ns = outcome.time_ns;
  for (const auto& path : paths_) times.paths.push_back({path->path, path->bytes, path->time_ns});
  return times;
}

void EnqueuedTransfer::finish(const Outcome& outcome) {
  for (size_t i = 0; i < paths_.size(); ++i) {
    Carried& path = *paths_[i];
    const std::string& why = outcome.failures[i];
    if (!why.empty()) {
      close_path(&path, why);
      if (error_.empty()) error_ = "a copy over " + path.path->path.name + ": " + why;
    }
    keep_timers(&path);
    path.kernels.clear();
    path.steps.clear();
    path.line = nullptr;
  }
  spare_.clear();
  time_ns_ = outcome.time_ns;
  over_.store(true, std::memory_order_release);
}

Bytes EnqueuedTransfer::landed() const {
  return over() && error_.empty() ? request.parts.total() : 0;
}

std::vector<CarriedPath> EnqueuedTransfer::carried_paths() const {
  std::vector<CarriedPath> found;
  for (const auto& path : paths_) {
    found.push_back({path->path->path.name, path->bytes, path->path->path.hops.size() > 1});
  }
  return found;
}

std::string EnqueuedTransfer::json() const {
  const bool done = over(), failed = done && !error_.empty();
  JsonText out;
  out.text("state", failed ? "failed" : done ? "done" : "running");
  out.text("error", failed ? error_ : "");
  const auto total = static_cast<double>(request.parts.total());
  const auto ns = static_cast<double>(time_ns_);
  out.number("bytes", total).number("landed", static_cast<double>(landed()));
  out.number("time_ns", ns).number("rate", ns > 0 && !failed ? total / ns : 0);
  out.number("planned", plan_->rate).number("plain", plan_->plain);
  bool relayed = false;
  std::string list;
  for (const auto& path : paths_) {
    const auto bytes = static_cast<double>(path->bytes);
    relayed = relayed || (path->path->path.hops.size() > 1 && path->bytes != 0);
    JsonText one;
    one.text("path", path->path->path.name).number("bytes", bytes);
    one.number("chunks", static_cast<double>(path->chunks)).number("planned", path->path->rate);
    const auto own = static_cast<double>(path->time_ns);
    one.number("rate", own > 0 ? bytes / own : 0).number("resent", 0);
    one.text("state", path->why.empty() ? "healthy" : "quarantined").text("why", path->why);
    list += (list.empty() ? "" : ", ") + one.done();
  }
  out.flag("relayed", relayed).flag("verified", false);
  out.raw("paths", "[" + list + "]").number("resent", 0);
  out.raw("refusals", refusals_json(plan_->refusals));
  const std::string all = "[[0, " + std::to_string(request.parts.total()) + "]]";
  return out.raw("unknown", failed ? all : "[]").done();
}

}  // namespace glake::transfer
