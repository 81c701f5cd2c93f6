// glake's second engine: one copy over every useful path of the node at once. The process owns it.
//
//   request    what a caller wants copied, checked
//   copy       what the caller then waits for: plain, tracked, enqueued or routed (copy.h)
//   enqueued   a transfer that gives all its copies to the driver at once (option copy_order)
//   transfer   a transfer that threads carry
//   run        one path of such a transfer, with its accounts
//   gate       what keeps a caller's stream waiting until the threads are done
//   scheduler  which paths a transfer takes; runner: how transfers begin and end
//   state      the transfers under way, what is known of their paths, and the lock of both
//   submitter  a thread per worker GPU, which claims chunks of runs and copies them
//   slot       a relay buffer, from glake's own memory
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "transfer/any_copy.h"
#include "transfer/buffers/host_pins.h"
#include "transfer/buffers/staging.h"
#include "transfer/call/plain_copies.h"
#include "transfer/call/tracked_copies.h"
#include "transfer/remote/remote_gpus.h"
#include "transfer/run/copy_kernel.h"
#include "transfer/run/enqueued_transfers.h"
#include "transfer/run/routed_copy.h"
#include "transfer/run/timing.h"

namespace glake::transfer {

class Engine {
 public:
  // `platform` is the text of a topology. If it is empty, nothing is known of the links, and copies
  // are plain. Throws Error.
  Engine(Driver& driver, std::unique_ptr<Allocator> allocator, const std::string& platform,
         const std::string& name, bool enqueue);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Begins a copy and returns its id. The copy has a place in the order of one stream, of two, or
  // of none. Throws Error.
  uint64_t begin(const glake_copy_request& request);
  // Begins several copies. If all of them are enqueued, they are planned together, and those that
  // no stream puts in an order are enqueued side by side. Sets their ids, one after the other.
  // Throws Error: none begins if a request is bad. If a copy cannot begin, those before it go on.
  void begin_all(const std::vector<glake_copy_request>& requests, uint64_t* ids);
  AnyCopy copy(uint64_t id);  // throws Error
  // Says that the calling thread has begun all copies that belong together. It waits for a copy
  // next.
  void end_burst() { bursts_.end(); }
  // As Copy::settled(). True for a transfer that was released.
  bool settled(uint64_t id);
  void stream_wait(uint64_t id, int device, StreamHandle stream);
  std::string stats();
  std::string explain(Place dst, Place src, Bytes bytes);
  HostPins& pins();
  // Opens relays on GPUs of the node that the driver does not show, by the service that listens at
  // `path`. Each pair has the GPU's number in the topology and its number at the service. Throws
  // Error.
  void open_relays(const std::string& path, const std::vector<std::pair<int, int>>& gpus);
  // Pinned host memory that such relays read and write directly. Chunks in other host memory are
  // first copied. Throws Error.
  void* allocate_shared(Bytes bytes);
  void free_shared(void* ptr);
  CopyTimer& timer() { return timer_; }
  // Whether a copy outside stream order reads or writes there.
  bool copying(Address begin, Address end) { return ranges_.use(begin, end); }
  void place_of(const void* ptr, int* device, int* pinned);
  // The caller's stream ends. Work that it has goes on.
  void forget_stream(int device, StreamHandle stream) { enqueued_.forget_stream({device, stream}); }
  // Sets which GPUs may relay, besides those that this process copies to or from, and this
  // process's part of each limit of the topology (Planner::lend). Transfers under way get new
  // plans. Throws Error.
  void lend(uint32_t relays, std::vector<double> factors);
  // The GPUs used and the transfers under way, as JSON. demands_event() is an eventfd of the
  // engine, which is readable after a change.
  std::string demands() { return scheduler_.board().json(runner_.shown_demands()); }
  int demands_event() { return scheduler_.board().event(); }
  // Cancels all transfers and waits for their copies under way. Afterwards no caller waits for a
  // transfer.
  void end_all();
  // Ends the threads and gives all memory, streams and events back. No caller may use the engine
  // any more. Throws Error when a caller's stream or a stuck copy holds it up, and may be called
  // again.
  void close();

 private:
  int gpu_of(const glake_copy_request& given) const;
  Request checked(const glake_copy_request& given);
  // `batch`: it may begin later, with the other copies there.
  using Batch = EnqueuedTransfers::Batch;
  uint64_t begin(Request request, Batch* batch);
  uint64_t begin_joined(Request request);
  bool always_plain(const Request& request);
  bool announce(std::vector<Request>* requests);
  uint64_t start(Request request, Batch* batch = nullptr);
  uint64_t start_planned(Request request, bool possible, Batch* batch);
  uint64_t start_ordered(Request request, std::vector<PlanPtr> plans, Outlook outlook,
                         bool possible, bool room, Batch* batch);
  uint64_t start_here(Request request, Rate plain);
  uint64_t start_held(Request request, const TransferPlan& plan, bool possible);
  uint64_t plain(const Request& request, bool captured, Rate rate = 0, const char* why = nullptr);
  bool captured(int device, StreamHandle stream);
  bool kernel_pays(const Request& request, const TransferPlan& plan);
  void choose_relays(Request* request);
  bool remote(const TransferPlan& plan) const;

  Driver& driver_;
  std::unique_ptr<Allocator> allocator_;
  std::unique_ptr<topology::Topology> topology_;  // null: nothing is known of the links
  Devices devices_;
  RemoteGpus remote_;
  Scheduler scheduler_;
  Bursts bursts_;
  Slots slots_;
  CopyKernel kernel_;
  Staging staging_;
  LiveRanges ranges_;
  RunState state_;
  ChunkBook book_;
  Runner runner_;
  std::atomic<bool> ending_{false};
  const bool enqueue_;  // copies in a stream's order (option copy_order)
  StreamOrder order_;
  PipelinePool pipelines_;
  PathThreads path_threads_;
  EnqueuedTransfers enqueued_;
  PlainCopies plain_;
  TrackedCopies tracked_;
  HostPins pins_;
  CopyTimer timer_;
};

}  // namespace glake::transfer
