#include "transfer/run/enqueued_transfer.h"

#include <algorithm>
#include <utility>

#include "plan/plan_json.h"

namespace glake::transfer {
namespace {

// Copies that one thread enqueues sooner than it wakes others (a guess: two wake-ups).
constexpr size_t kAlone = 6;

}  // namespace

EnqueuedTransfer::EnqueuedTransfer(const Tools& tools, Request what, TransferPlan how,
                                   PlannedPath direct)
    : request(std::move(what)), plan(std::move(how)), tools_(tools), direct_(std::move(direct)) {}

EnqueuedTransfer::~EnqueuedTransfer() {
  for (const auto& path : paths_) {  // of one that could not begin: nothing uses them
    for (Lane& lane : path->lanes) tools_.lanes.give(std::move(lane));
  }
  for (const EventId event : {begun_, ended_}) {
    if (event != 0) tools_.driver.destroy_event(event);
  }
}

void EnqueuedTransfer::enqueue(const std::vector<PathShare>& shares) {
  Driver& driver = tools_.driver;
  const int device = request.stream_device;
  const auto expect_ok = [&](Status s) {
    if (!s.ok()) throw Error(GLAKE_DRIVER_ERROR, "the caller's stream: " + driver.describe(s));
  };
  // Whatever has to be made is made before any of it is enqueued.
  for (const PathShare& share : shares) {
    Carried* path = add_path(share.path);
    Bytes most = 0;
    for (const Range& range : share.chunks) most = std::max(most, range.bytes());
    open_lanes(path, share.lanes, most);
  }
  expect_ok(driver.create_timer(device, &begun_));
  expect_ok(driver.create_timer(device, &ended_));
  expect_ok(driver.record(device, begun_, request.stream));
  std::vector<PathThreads::Task> tasks;
  size_t copies = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    Carried* const path = paths_[i].get();
    const std::vector<Range>* const chunks = &shares[i].chunks;
    copies += chunks->size() * path->path.path.hops.size();
    tasks.push_back({path->path.path.worker, [this, path, chunks] { submit_here(path, *chunks); }});
  }
  if (copies > kAlone && tasks.size() > 1) {
    tools_.threads.run(tasks);
  } else {
    for (const PathThreads::Task& task : tasks) task.run();
  }
  submit_left();
  join();
}

EnqueuedTransfer::Carried* EnqueuedTransfer::add_path(const PlannedPath& path) {
  paths_.push_back(std::make_unique<Carried>());
  paths_.back()->path = path;
  return paths_.back().get();
}

// A path that cannot have them is closed, which is no fault of its links.
void EnqueuedTransfer::open_lanes(Carried* path, size_t count, Bytes most) {
  const std::vector<Hop>& hops = path->path.path.hops;
  try {
    tools_.devices.prepare(path->path.path);
    for (size_t i = 0; i < count; ++i) {
      path->lanes.push_back(tools_.lanes.take(path->path.path));
      for (size_t h = 0; h + 1 < hops.size(); ++h) {
        path->lanes.back().slots.push_back(tools_.slots.lend(hops[h].to, most));
      }
    }
  } catch (const Error& e) {
    close_path(path, e.what());
  }
}

void EnqueuedTransfer::close_path(Carried* path, const std::string& why) {
  path->closed = true;
  if (path->why.empty()) path->why = why;
}

// On the path's own thread, or the caller's.
void EnqueuedTransfer::submit_here(Carried* path, const std::vector<Range>& chunks) {
  ChunkCopier copier(tools_.driver, tools_.devices, tools_.slots, tools_.kernel, tools_.copy_ns);
  try {
    submit_all(path, chunks, &copier);
  } catch (const std::exception& e) {
    close_path(path, e.what());
  }
  gather(path, &copier);
}

void EnqueuedTransfer::submit_all(Carried* path, const std::vector<Range>& chunks,
                                  ChunkCopier* copier) {
  path->left = chunks;  // the last is the next
  std::reverse(path->left.begin(), path->left.end());
  while (!path->left.empty() && submit(path, path->left.back(), copier)) path->left.pop_back();
}

// False: it is not, and the path is closed.
bool EnqueuedTransfer::submit(Carried* path, Range range, ChunkCopier* copier) {
  if (path->closed) return false;
  Lane& lane = path->lanes[path->next_lane++ % path->lanes.size()];
  Driver& driver = tools_.driver;
  const Lane::Step &first = lane.steps.front(), &last = lane.steps.back();
  Status s;
  if (!lane.begun) {
    s = driver.wait_stream(first.device, first.stream, begun_);
  } else if (lane.crosses()) {  // its buffers are free when the chunk before it has left them
    s = driver.wait_stream(first.device, first.stream, last.event);
  }
  for (size_t hop = 0; s.ok() && hop < lane.steps.size(); ++hop) {
    Bytes enqueued = 0;
    s = submit_hop(path, &lane, hop, range, copier, &enqueued);
    if (enqueued != 0) lane.begun = true;
    if (!s.ok()) close_path(path, "copy " + std::to_string(hop + 1) + ": " + driver.describe(s));
  }
  if (!s.ok()) {
    // What is enqueued of the last hop goes on: it writes there what any other path's copy would.
    close_path(path, driver.describe(s));
    return false;
  }
  path->bytes += range.bytes();
  ++path->chunks;
  return true;
}

Status EnqueuedTransfer::submit_hop(Carried* path, Lane* lane, size_t hop, Range range,
                                    ChunkCopier* copier, Bytes* enqueued) {
  Driver& driver = tools_.driver;
  const Lane::Step& step = lane->steps[hop];
  const bool last = hop + 1 == lane->steps.size();
  Status s;
  if (hop != 0 && lane->steps[hop - 1].crossing) {
    s = driver.wait_stream(step.device, step.stream, lane->steps[hop - 1].event);
  }
  if (!s.ok()) return s;
  const Hop& way = path->path.path.hops[hop];
  ChunkHop chunk{request, way, range, 0, 0, path->path.rate, step.stream};
  if (hop != 0) chunk.from = lane->slots[hop - 1].at();
  if (!last) chunk.to = lane->slots[hop].at();
  KernelBuffers buffers;
  bool unsure = false;
  {
    DeviceScope scope(driver, step.device);
    s = scope.status();
    if (s.ok()) s = copier->copy(chunk, &buffers, enqueued, &unsure);
  }
  if (buffers.table || buffers.bounce) lane->kernels.push_back(std::move(buffers));
  const bool handed_over = step.crossing || (last && lane->crosses());
  if (s.ok() && handed_over) s = driver.record(step.device, step.event, step.stream);
  return s;
}

// What no planned path took goes over the direct one.
void EnqueuedTransfer::submit_left() {
  std::vector<Range> left;
  for (const auto& path : paths_) {
    left.insert(left.end(), path->left.rbegin(), path->left.rend());
    path->left.clear();
  }
  if (left.empty()) return;
  const auto open = std::find_if(paths_.begin(), paths_.end(), [](const auto& path) {
    return !path->closed && path->path.path.hops.size() == 1;
  });
  Carried* path = open != paths_.end() ? open->get() : add_path(direct_);
  if (path->lanes.empty()) open_lanes(path, 1, 0);
  submit_here(path, left);
  if (path->left.empty()) return;
  path->left.clear();
  error_ = "no path is left: " + path->path.path.name + ": " + path->why;
}

// Behind all of the path's copies: the event of its first lane that has any.
void EnqueuedTransfer::gather(Carried* path, ChunkCopier* copier) {
  Driver& driver = tools_.driver;
  path->end = nullptr;
  for (Lane& lane : path->lanes) {
    if (!lane.begun) continue;
    const Lane::Step& last = lane.steps.back();
    Status s = driver.record(last.device, last.event, last.stream);
    if (s.ok() && path->end != nullptr) {
      const Lane::Step& end = path->end->steps.back();
      s = driver.wait_stream(end.device, end.stream, last.event);
    }
    if (path->end == nullptr) path->end = &lane;
    if (s.ok()) continue;
    for (const Lane::Step& step : lane.steps) copier->quiesce(step.device, step.stream);
  }
  if (path->end == nullptr) return;
  const Lane::Step& end = path->end->steps.back();
  const bool alone = path->lanes.size() == 1 || !path->lanes[1].begun;
  if (alone || driver.record(end.device, end.event, end.stream).ok()) return;
  copier->quiesce(end.device, end.stream);
}

// The caller's stream goes on when all paths are done.
void EnqueuedTransfer::join() {
  Driver& driver = tools_.driver;
  ChunkCopier copier(driver, tools_.devices, tools_.slots, tools_.kernel, tools_.copy_ns);
  for (const auto& path : paths_) {
    if (path->end == nullptr) continue;
    const Lane::Step& end = path->end->steps.back();
    const Status s = driver.wait_stream(request.stream_device, request.stream, end.event);
    if (!s.ok()) copier.quiesce(end.device, end.stream);
  }
  // All of it is enqueued: without its event it is waited for here.
  const Status s = driver.record(request.stream_device, ended_, request.stream);
  if (!s.ok()) copier.quiesce(request.stream_device, request.stream);
}

// A stream is told of the copies in it that failed; an event only of those since the one before.
std::string EnqueuedTransfer::failure_of(const Carried& path) {
  for (const Lane& lane : path.lanes) {
    for (const Lane::Step& step : lane.steps) {
      bool idle = false;
      const Status s = tools_.driver.stream_idle(step.device, step.stream, &idle);
      if (!s.ok()) return tools_.driver.describe(s);
    }
  }
  return "";
}

EnqueuedTransfer::Outcome EnqueuedTransfer::outcome() {
  Outcome found;
  for (const auto& path : paths_) found.failures.push_back(failure_of(*path));
  tools_.driver.elapsed_ns(begun_, ended_, &found.time_ns);
  return found;
}

void EnqueuedTransfer::finish(const Outcome& outcome) {
  for (size_t i = 0; i < paths_.size(); ++i) {
    Carried& path = *paths_[i];
    const std::string& why = outcome.failures[i];
    if (!why.empty()) {
      close_path(&path, why);
      if (error_.empty()) error_ = "a copy over " + path.path.path.name + ": " + why;
    }
    for (Lane& lane : path.lanes) tools_.lanes.give(std::move(lane));
    path.lanes.clear();
  }
  time_ns_ = outcome.time_ns;
  over_.store(true, std::memory_order_release);
}

Bytes EnqueuedTransfer::landed() const {
  return over() && error_.empty() ? request.parts.total() : 0;
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
  out.number("planned", plan.rate).number("plain", plan.plain);
  bool relayed = false;
  std::string list;
  for (const auto& path : paths_) {
    const auto bytes = static_cast<double>(path->bytes);
    relayed = relayed || (path->path.path.hops.size() > 1 && path->bytes != 0);
    JsonText one;
    one.text("path", path->path.path.name).number("bytes", bytes);
    one.number("chunks", static_cast<double>(path->chunks)).number("planned", path->path.rate);
    one.number("rate", ns > 0 ? bytes / ns : 0).number("resent", 0);
    one.text("state", path->why.empty() ? "healthy" : "quarantined").text("why", path->why);
    list += (list.empty() ? "" : ", ") + one.done();
  }
  out.flag("relayed", relayed).flag("verified", false);
  out.raw("paths", "[" + list + "]").number("resent", 0);
  out.raw("refusals", refusals_json(plan.refusals));
  const std::string all = "[[0, " + std::to_string(request.parts.total()) + "]]";
  return out.raw("unknown", failed ? all : "[]").done();
}

}  // namespace glake::transfer
