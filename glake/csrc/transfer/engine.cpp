#include "transfer/engine.h"

#include <algorithm>
#include <exception>

#include "base/transfer_tuning.h"
#include "driver/device_scope.h"
#include "plan/estimate.h"
#include "plan/plan_json.h"

namespace glake::transfer {
namespace {

constexpr uint64_t kForever = UINT64_MAX;

// Whether the relay service is told of the copy. A rank that sees one GPU tells it of large copies
// even if they have only one path now. Otherwise the service would assume that the path's links are
// idle, and lend them to other processes.
bool told(RemoteGpus& remote, const Request& request) {
  return remote.opened() != 0 && request.relays == kAllGpus &&
         request.parts.total() >= TransferTuning::kLongCopy;
}

// A topology says nothing of peer access over PCIe, so the driver is asked. Of GPUs that it does
// not show, only those under one PCIe switch are taken for peers.
void ask_for_peers(Driver& driver, topology::Topology* topology) {
  const int shown = driver.device_count();
  const auto reaches = [&](int from, int to) {
    bool yes = false;
    return driver.can_access_peer(from, to, &yes).ok() && yes;
  };
  for (int b = 1; b < topology->gpus(); ++b) {
    for (int a = 0; a < b; ++a) {
      if (topology->linked(a, b) || !topology->peers(a, b)) continue;
      const bool peers = b < shown ? reaches(a, b) && reaches(b, a) : topology->same_switch(a, b);
      if (!peers) topology->refuse_peers(a, b);
    }
  }
}

std::unique_ptr<topology::Topology> parsed(Driver& driver, const std::string& platform,
                                           const std::string& name) {
  if (platform.empty()) return nullptr;
  try {
    auto topology = std::make_unique<topology::Topology>(topology::Topology::parse(platform, name));
    ask_for_peers(driver, topology.get());
    return topology;
  } catch (const topology::TopologyError& e) {
    throw Error(GLAKE_INVALID_ARGUMENT, std::string("the topology: ") + e.what());
  }
}

std::string end_text(int device) {
  return device >= 0 ? device_text(device) : device == GLAKE_HOST ? "cpu" : "memory";
}

}  // namespace

Engine::Engine(Driver& driver, std::unique_ptr<Allocator> allocator, const std::string& platform,
               const std::string& name, bool enqueue)
    : driver_(driver),
      allocator_(std::move(allocator)),
      topology_(parsed(driver, platform, name)),
      devices_(driver, *allocator_),
      remote_(driver, devices_.count()),
      scheduler_(driver, topology_.get(), devices_.count()),
      bursts_([this](LiveBurst* live, std::shared_ptr<BurstTrials> trials) {
        scheduler_.adopt(live, std::move(trials));
      }),
      slots_(driver, *allocator_, topology_.get(), remote_),
      kernel_(driver),
      ranges_(*allocator_),
      state_(topology_.get(), scheduler_.copy_ns()),
      book_(state_, driver, scheduler_.copy_ns()),
      runner_({driver, devices_, slots_, staging_, kernel_, remote_, book_, scheduler_.copy_ns()},
              state_, scheduler_, ranges_),
      enqueue_(enqueue),
      order_(driver, allocator_->host(), state_, runner_),
      pipelines_(driver, slots_),
      path_threads_(driver),
      enqueued_(
          {driver, devices_, slots_, kernel_, pipelines_, path_threads_, scheduler_.copy_ns()},
          scheduler_, runner_),
      plain_(driver, devices_),
      tracked_(driver, devices_.count()),
      pins_(driver),
      timer_(driver, devices_, slots_, topology_.get()) {}

AnyCopy Engine::copy(uint64_t id) {
  switch (kind_of(id)) {
    case CopyKind::kPlain:
      if (PlainId(id).device() >= devices_.count()) {
        throw Error(GLAKE_INVALID_ARGUMENT, "no copy has the id " + std::to_string(id));
      }
      return AnyCopy(PlainCopy(driver_, devices_, PlainId(id)));
    case CopyKind::kTracked:
      return AnyCopy(TrackedCopy(driver_, devices_, tracked_, id));
    case CopyKind::kEnqueued:
      return AnyCopy(EnqueuedCopy(driver_, devices_, enqueued_, id));
    case CopyKind::kRouted:
      break;
  }
  return AnyCopy(RoutedCopy(driver_, devices_, state_, runner_, order_, id));
}

bool Engine::settled(uint64_t id) {
  const bool released = kind_of(id) == CopyKind::kRouted && runner_.known(id) == nullptr;
  return released || copy(id)->settled();
}

void Engine::stream_wait(uint64_t id, int device, StreamHandle stream) {
  devices_.require(device, " for the stream");
  if (enqueue_ && kind_of(id) == CopyKind::kRouted) {
    // The stream goes on, whatever happened to the copy.
    std::string text;
    copy(id)->wait(kForever, &text);
    return;
  }
  copy(id)->make_stream_wait(device, stream);
}

uint64_t Engine::begin(const glake_copy_request& given) { return begin(checked(given), nullptr); }

void Engine::begin_all(const std::vector<glake_copy_request>& given, uint64_t* ids) {
  // Says in the text of an error which of the copies it is about.
  const auto naming = [&](int dst, int src, auto&& step) {
    try {
      return step();
    } catch (const Error& e) {
      if (given.size() < 2) throw;
      throw Error(e.code(), end_text(src) + " to " + end_text(dst) + ": " + e.what());
    }
  };
  std::vector<Request> requests;
  for (const glake_copy_request& one : given) {
    requests.push_back(naming(one.dst_device, one.src_device, [&] { return checked(one); }));
  }
  const bool announced = announce(&requests);
  Batch batch;
  // Whether the prepared copies must be enqueued before this one begins. A plain copy of host
  // memory may hold up the caller, if the memory is pageable.
  const auto comes_behind = [&](const Request& request) {
    const bool host = request.src.host() || request.dst.host();
    return request.also_ordered || batch.precedes(request.stream_key()) ||
           (host && always_plain(request));
  };
  std::exception_ptr failed;
  const auto tried = [&](auto&& step) {
    try {
      step();
    } catch (...) {
      if (failed == nullptr) failed = std::current_exception();
    }
  };
  uint64_t* const first = ids;
  tried([&] {
    for (Request& request : requests) {
      if (ending_) throw Error(GLAKE_TRANSFER_CLOSED, "the transfer engine was closed");
      if (comes_behind(request)) enqueued_.enqueue(&batch);
      *ids++ = naming(request.dst.gpu, request.src.gpu,
                      [&] { return begin(std::move(request), announced ? &batch : nullptr); });
    }
  });
  if (announced) bursts_.end();
  tried([&] { enqueued_.enqueue(&batch); });
  if (failed == nullptr) return;
  std::replace_if(first, ids, [&](uint64_t id) { return batch.lost(id); }, 0);
  std::rethrow_exception(failed);
}

// A GPU that the copy uses, as far as is known before its memory is looked up; -1: none is.
int Engine::gpu_of(const glake_copy_request& given) const {
  for (const int named : {given.dst_device, given.src_device}) {
    if (named >= 0) return named;
  }
  if (given.count != 0 && given.parts != nullptr) {
    for (const Address at : {given.parts[0].dst, given.parts[0].src}) {
      const int device = allocator_->owned(at).device;
      if (device >= 0) return device;
    }
  }
  return given.ordered != 0 ? given.stream_device : -1;
}

// The driver is asked about the memory in a context of a GPU that the copy uses: that of another
// GPU may be lost to an error of its work.
Request Engine::checked(const glake_copy_request& given) {
  Request request =
      make_request(driver_, *allocator_, topology_.get(), given, devices_.some(gpu_of(given)));
  if (request.also_ordered) devices_.require(request.also_device, " for the second stream");
  scheduler_.use_gpus(request);
  return request;
}

// Tells `bursts_` which copies come now. False: there are not two that are enqueued, or one of them
// makes the caller wait, so they do not come at once.
bool Engine::announce(std::vector<Request>* requests) {
  if (!enqueue_ || scheduler_.one_path()) return false;
  std::vector<Bursts::Copy> copies;
  for (Request& request : *requests) {
    if (always_plain(request)) continue;
    if (!request.ordered || request.pageable || (request.flags & kChecksum) != 0) return false;
    devices_.open(request.stream_device);
    choose_relays(&request);
    if (told(remote_, request)) return false;
    if (captured(request.stream_device, request.stream)) continue;
    copies.push_back({request.demand(), request.parts.total(), request.stream_key()});
  }
  return copies.size() > 1 && bursts_.announce(copies);
}

uint64_t Engine::begin(Request request, Batch* batch) {
  if (!request.ordered) {
    const Parts parts = request.parts;
    const uint64_t id = start(std::move(request));
    ranges_.add(parts, [copy = copy(id)]() mutable { return copy->settled(); });
    return id;
  }
  const bool same =
      request.also_stream == request.stream && request.also_device == request.stream_device;
  if (!request.also_ordered || same) return start(std::move(request), batch);
  return begin_joined(std::move(request));
}

// Begins one copy in the order of two streams. A copy between two GPUs begins after the work of
// both streams, and both wait for it.
uint64_t Engine::begin_joined(Request request) {
  const int device = request.stream_device, other = request.also_device;
  const StreamHandle stream = request.stream, also = request.also_stream;
  devices_.open(device);
  devices_.open(other);
  if (captured(device, stream) != captured(other, also)) {
    throw Error(GLAKE_COPY_REFUSED,
                "one of the two GPUs' streams is being captured, the other is not: capture both, "
                "or name the stream the copy belongs to");
  }
  follow(driver_, device, stream, other, also);
  const uint64_t id = start(std::move(request));
  try {
    stream_wait(id, other, also);
  } catch (const Error&) {
    // The copy is under way and cannot be undone. It is released, so that nobody holds it.
    std::string text;
    copy(id)->wait(kForever, &text);
    copy(id)->release();
    throw;
  }
  return id;
}

bool Engine::captured(int device, StreamHandle stream) {
  bool captured = false;
  const Status s = driver_.is_capturing(device, stream, &captured);
  if (!s.ok()) {
    throw Error(GLAKE_DRIVER_ERROR, "asking about the stream " + hex(Address{stream}) + " of " +
                                        device_text(device) + ": " + driver_.describe(s) +
                                        " (was it destroyed?)");
  }
  return captured;
}

// Whether the copy is a plain one, without any plan.
bool Engine::always_plain(const Request& request) {
  const bool wanted = (request.flags & (kRelayed | kChecksum)) != 0;
  const bool small = request.parts.total() < TransferTuning::kAlwaysPlain;
  const bool plainly = (small && !wanted) || (request.flags & kDirect) != 0 || request.local();
  return plainly && plain_.possible(request);
}

uint64_t Engine::start(Request request, Batch* batch) {
  const bool wanted = (request.flags & (kRelayed | kChecksum)) != 0;
  const bool local = request.local();
  if (local && (request.flags & kChecksum) != 0) {
    throw Error(GLAKE_COPY_REFUSED,
                "a checksum needs a copy between two places; this copy is within " +
                    device_text(request.src.gpu));
  }
  if (always_plain(request)) return plain(request, false);
  if (local || (request.flags & kDirect) != 0) {
    throw Error(GLAKE_COPY_REFUSED, device_text(request.stream_device) +
                                        ", whose stream it is, does not reach the memory");
  }
  devices_.open(request.stream_device);
  choose_relays(&request);
  const bool possible = plain_.possible(request);
  if (request.ordered && captured(request.stream_device, request.stream)) {
    if (!wanted && possible) return plain(request, true);
    throw Error(
        GLAKE_COPY_REFUSED,
        "the stream is being captured: a graph can hold one plain copy, no relays, no checksums");
  }
  return start_planned(std::move(request), possible, batch);
}

// Plans the copy, and begins it: as a plain copy, enqueued, or carried by threads. The copies that
// followed a copy like this one the last time are expected to follow it again (bursts.h).
uint64_t Engine::start_planned(Request request, bool possible, Batch* batch) {
  const bool in_order = request.ordered && enqueue_;
  const Bytes bytes = request.parts.total();
  const bool wanted = (request.flags & (kRelayed | kChecksum)) != 0;
  // The driver's copy of pageable memory makes the caller wait for the stream. The caller must not
  // wait for a stream that itself waits for glake's threads.
  const bool staged =
      request.pageable && (bytes > TransferTuning::kPlainPageable || request.parts.count() > 1 ||
                           (request.ordered && !enqueue_));
  const bool may_be_plain = possible && !staged && !wanted && !told(remote_, request);
  if (may_be_plain && scheduler_.one_path() && request.parts.count() == 1) {
    return plain(request, false, scheduler_.plan_alone(request)->plain);
  }
  Bursts::Burst burst;
  if (in_order)
    burst = bursts_.begin({request.demand(), bytes, request.stream_key()}, driver_.now_ns());
  // has_room() also finds the copies that are done, so that they do not count as running beside
  // this one.
  bool room = in_order && enqueued_.has_room();
  if (in_order && !room && batch != nullptr) {
    enqueued_.enqueue(batch);
    room = enqueued_.has_room();
  }
  Outlook outlook;
  if (in_order && scheduler_.knows_links()) {
    outlook = scheduler_.look_ahead(request, runner_.demands(), burst);
    if (outlook.chosen) bursts_.decided(outlook.way);
  }
  const bool apart = outlook.way == BurstWay::kApart;
  const PlanPtr plan = apart ? scheduler_.plan_alone(request) : outlook.plan;
  const double ns = expected_ns(*plan, bytes, scheduler_.copy_ns());
  const auto worthwhile = [&] {
    if (!apart) return outlook.way == BurstWay::kJoint;
    return scheduler_.worthwhile(request, *plan) ||
           scheduler_.pays_beside(request, runner_.demands());
  };
  const bool simple = may_be_plain && !worthwhile() && !kernel_pays(request, *plan);
  uint64_t id = 0;
  if (simple && !(outlook.timed && request.parts.count() == 1)) {
    id = plain(request, false, plan->plain);
    scheduler_.note_plain(request, plan->plain, outlook);
  } else if (in_order) {
    std::vector<PlanPtr> plans{plan};
    if (simple) {
      plans = {scheduler_.direct_plan(request.src, request.dst)};
    } else if (apart) {
      plans = scheduler_.plans_beside(request, runner_.demands());
    }
    outlook.side_by_side = batch != nullptr;
    id = start_ordered(std::move(request), std::move(plans), outlook, possible, room, batch);
  } else {
    id = start_held(std::move(request), *plan, possible);
  }
  if (in_order) bursts_.begun(driver_.now_ns(), ns);
  return id;
}

// Begins a transfer that the engine's threads carry. The stream is held until they are done.
uint64_t Engine::start_held(Request request, const TransferPlan& plan, bool possible) {
  auto transfer = std::make_shared<Transfer>(std::move(request));
  if (transfer->request.ordered && !order_.place(transfer)) {
    const char* const why = "the driver has no stream that waits for a value";
    if (!possible) throw Error(GLAKE_COPY_REFUSED, std::string(why) + ": copy without a stream");
    return plain(transfer->request, false, plan.plain, why);
  }
  return runner_.add(transfer, plan.plain);
}

// `possible`: one plain copy could also do it. With pageable memory or checksums a thread works
// between the copies, so the caller waits for such a transfer. A stream that is held until a thread
// is done could wait for ever (simcuda/driver/driver_lock.h).
uint64_t Engine::start_ordered(Request request, std::vector<PlanPtr> plans, Outlook outlook,
                               bool possible, bool room, Batch* batch) {
  // The caller also waits if relays of other processes take part, which cannot be chained to this
  // process's streams.
  const bool waits =
      told(remote_, request) ||
      std::any_of(plans.begin(), plans.end(), [&](const PlanPtr& plan) { return remote(*plan); });
  if (request.pageable || waits || (request.flags & kChecksum) != 0) {
    return start_here(std::move(request), plans.front()->plain);
  }
  const std::vector<PlanPtr> before = plans;
  for (PlanPtr& plan : plans) runner_.avoid_failed(&plan);
  if (plans != before) outlook.live = nullptr;  // what its bursts took does not hold now
  if (room) {
    // kernel_pays() knows how long many blocks take as plain copies.
    const bool either = possible && (request.flags & kRelayed) == 0 && request.parts.count() == 1;
    const Rate rate = plans.front()->plain;
    const uint64_t id = enqueued_.begin(request, plans, outlook, either, batch);
    if (id != 0) return id;
    const uint64_t made = plain(request, false, rate);
    scheduler_.note_plain(request, rate, outlook);
    return made;
  }
  const char* const why = "too many transfers in streams' order are under way";
  if (possible) return plain(request, false, plans.front()->plain, why);
  throw Error(GLAKE_COPY_REFUSED, std::string(why) + ": wait for some of them first");
}

// Waits for the stream's work, then for the transfer.
uint64_t Engine::start_here(Request request, Rate plain_rate) {
  const int device = request.stream_device;
  EventId come = 0;
  Status s = driver_.create_event(device, &come, true);
  if (s.ok()) {
    s = driver_.record(device, come, request.stream);
    if (s.ok()) s = driver_.wait_event(come, kForever);
    driver_.destroy_event(come);
  }
  if (!s.ok())
    throw Error(GLAKE_DRIVER_ERROR,
                "waiting for the stream's earlier work: " + driver_.describe(s));
  const uint64_t id = runner_.add(std::make_shared<Transfer>(std::move(request)), plain_rate);
  std::string text;  // the result is not used here: the caller asks the handle for it
  copy(id)->wait(kForever, &text);
  return id;
}

// `rate` is the planned rate; 0: there is no plan. `why` says why the copy is a plain one, where
// the copy itself does not show it.
uint64_t Engine::plain(const Request& request, bool captured, Rate rate, const char* why) {
  const int device = request.stream_device;
  const StreamHandle stream = plain_.stream_for(request);
  const bool tracked = (request.flags & kTracked) != 0 && !captured;
  if (!tracked && !PlainId::fits(stream)) {
    throw Error(GLAKE_INTERNAL, "a stream's handle has more than 53 bits");
  }
  TrackedCopies::TrackPtr track = tracked ? tracked_.make(request, rate) : nullptr;
  plain_.submit(request, stream);
  if (!tracked && !request.ordered) {
    return PlainId::of_engine(device, !request.src.host(), devices_.number()).id();
  }
  if (!tracked) return PlainId(device, stream, captured).id();
  return tracked_.put(std::move(track), stream, why);
}

// Whether the engine's kernels copy many blocks faster, on GPUs that run them.
bool Engine::kernel_pays(const Request& request, const TransferPlan& plan) {
  if (!scheduler_.kernels_pay(request, plan, driver_.has_batches())) return false;
  const int gpu = request.src.host() ? request.dst.gpu : request.src.gpu;
  devices_.open(gpu);
  DeviceScope scope(driver_, gpu);
  return scope.status().ok() && kernel_.ready(gpu);
}

void Engine::lend(uint32_t relays, std::vector<double> factors) {
  scheduler_.lend(relays, std::move(factors));
  runner_.replan();
}

// Decides whether the relay service's GPUs may carry the copy. They can if it has one range, with
// host memory at one end. If the service does not reach that memory, the bytes pass through memory
// that it does reach.
void Engine::choose_relays(Request* request) {
  const uint32_t remote = remote_.opened();
  if (remote == 0) return;
  const bool host = request->src.host() || request->dst.host();
  if (!host || request->parts.count() != 1 || (request->flags & kChecksum) != 0) {
    request->relays = ~remote;
    return;
  }
  const Part& part = request->parts[0];
  const Address at = request->src.host() ? part.src : part.dst;
  request->unshared = !remote_.reaches(at, part.bytes);
}

bool Engine::remote(const TransferPlan& plan) const {
  return std::any_of(plan.paths.begin(), plan.paths.end(),
                     [&](const PlannedPath& path) { return remote_.on_way(path.path); });
}

void Engine::open_relays(const std::string& path, const std::vector<std::pair<int, int>>& gpus) {
  const int known = topology_ == nullptr ? 0 : topology_->gpus();
  for (const auto& [gpu, there] : gpus) {
    if (gpu < devices_.count() || gpu >= known) {
      throw Error(GLAKE_INVALID_DEVICE,
                  device_text(gpu) +
                      " cannot be a relay of the service: it lends GPUs of the topology (" +
                      counted(static_cast<uint64_t>(known), "GPU") +
                      ") that the driver does not show to this process");
    }
  }
  if (devices_.count() != 1) {
    throw Error(GLAKE_COPY_REFUSED,
                "relays of the service are for a process that sees one GPU; this one sees " +
                    counted(static_cast<uint64_t>(devices_.count()), "GPU"));
  }
  devices_.open(0);
  std::vector<RemoteGpus::Relay> relays;
  for (const auto& [gpu, there] : gpus) {
    relays.push_back({gpu, there, topology_->linked(gpu, 0) || topology_->same_switch(gpu, 0)});
  }
  remote_.open(path, 0, relays);
  scheduler_.add_relays(remote_.opened());
  runner_.replan();
}

void* Engine::allocate_shared(Bytes bytes) {
  const int device = devices_.some();
  return reinterpret_cast<void*>(remote_.allocate_host(bytes, device));
}

void Engine::free_shared(void* ptr) { remote_.free_host(reinterpret_cast<Address>(ptr)); }

HostPins& Engine::pins() {
  pins_.use(devices_.some());
  return pins_;
}

void Engine::place_of(const void* ptr, int* device, int* pinned) {
  const Owned owned = allocator_->owned(reinterpret_cast<Address>(ptr));
  if (!owned.paused.empty()) {
    throw Error(GLAKE_REGION_PAUSED, hex(ptr) + " lies in " + owned.paused);
  }
  if (owned.bytes != 0) {
    *device = owned.device;
    *pinned = 1;
    return;
  }
  DeviceScope scope(driver_, devices_.some());
  PointerFacts facts;
  Status s = scope.status();
  if (s.ok()) s = driver_.pointer_facts(reinterpret_cast<Address>(ptr), &facts);
  if (!s.ok())
    throw Error(GLAKE_DRIVER_ERROR, "asking about " + hex(ptr) + ": " + driver_.describe(s));
  using Kind = PointerFacts::Kind;
  const bool on_gpu = facts.kind == Kind::kDevice || facts.kind == Kind::kManaged;
  *device = on_gpu ? facts.device : GLAKE_HOST;
  *pinned = facts.kind != Kind::kUnregistered;
}

std::string Engine::stats() {
  JsonText out;
  auto number = [&](const char* key, uint64_t value) {
    out.number(key, static_cast<double>(value));
  };
  number("plain_copies", plain_.count());
  number("plain_bytes", plain_.bytes());
  out.text("without_access", devices_.refusals());
  runner_.describe(&out);
  number("waiting", order_.waiting());
  number("enqueued", enqueued_.under_way());
  number("slots", slots_.count());
  number("kernel_launches", kernel_.launches());
  out.text("without_kernels", kernel_.why());
  out.flag("lent", scheduler_.has_parts());
  if (scheduler_.knows_links()) {
    out.raw("relays", scheduler_.board().gpus_text(scheduler_.relays()));
  }
  return out.done();
}

std::string Engine::explain(Place dst, Place src, Bytes bytes) {
  // A topology may have GPUs that the process does not see. Without a topology such GPUs must be
  // refused here.
  for (const int gpu : {dst.gpu, src.gpu}) {
    if (gpu >= 0 && !scheduler_.knows_links()) {
      devices_.require(gpu, ", which the copy to plan names");
    }
  }
  Request request(Parts({{1, 1, bytes}}));
  request.dst = dst;
  request.src = src;
  const PlanPtr plan = scheduler_.plan_alone(request);
  JsonText out;
  out.number("bytes", static_cast<double>(bytes))
      .number("rate", plan->rate)
      .number("plain", plan->plain);
  out.flag("worthwhile", scheduler_.worthwhile(request, *plan));
  std::string list;
  for (const PlannedPath& path : plan->paths) {
    JsonText one;
    one.text("path", path.path.name).number("rate", path.rate);
    list += (list.empty() ? "" : ", ") + one.done();
  }
  return out.raw("paths", "[" + list + "]").raw("refusals", refusals_json(plan->refusals)).done();
}

void Engine::end_all() {
  ending_ = true;
  tracked_.stop_waits();
  enqueued_.stop_waits();
  for (const TransferPtr& transfer : runner_.all()) {
    runner_.end(transfer);
    order_.retire(transfer);
  }
}

void Engine::close() {
  end_all();
  // Nobody waits or is in begin_all() any more. If something fails, the engine stays open.
  ending_ = false;
  tracked_.allow_waits();
  enqueued_.allow_waits();
  order_.shut();
  tracked_.close(TransferTuning::kHoldUp);
  if (!order_.reap(TransferTuning::kHoldUp)) {
    throw Error(GLAKE_BUSY_TIMEOUT,
                "a stream still has work before a transfer it was given; synchronise it, then "
                "close the transfer engine again");
  }
  enqueued_.close(TransferTuning::kHoldUp);
  path_threads_.close();
  const std::string left = runner_.stop();
  staging_.close();
  if (!left.empty()) {
    throw Error(GLAKE_DRIVER_ERROR, left +
                                        ". What they use stays in use until the process ends; "
                                        "closing again gives back the rest");
  }
  devices_.close();
  ranges_.close();
  tracked_.free_events();
  pins_.close();
  timer_.close();
  slots_.close();
  remote_.close();
  kernel_.close();
  order_.close();
  pipelines_.close();
}

}  // namespace glake::transfer
