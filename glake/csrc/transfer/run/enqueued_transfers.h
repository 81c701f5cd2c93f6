// Keeps the enqueued transfers (enqueued_transfer.h), from their start until they are seen done and
// their callers have released them.
#pragma once

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "transfer/call/copy.h"
#include "transfer/run/enqueued_transfer.h"
#include "transfer/run/runner.h"

namespace glake::transfer {

class EnqueuedTransfers {
 public:
  using Tools = EnqueuedTransfer::Tools;
  using Ptr = std::shared_ptr<EnqueuedTransfer>;

  EnqueuedTransfers(const Tools& tools, Scheduler& scheduler, Runner& runner)
      : tools_(tools), scheduler_(scheduler), runner_(runner) {}
  EnqueuedTransfers(const EnqueuedTransfers&) = delete;
  EnqueuedTransfers& operator=(const EnqueuedTransfers&) = delete;

  // Whether one more may be under way. Those of one stream mostly share streams and relay buffers.
  bool has_room();
  // Transfers of one call that are prepared, and not enqueued yet. Nobody else knows of them.
  class Batch {
   public:
    // Whether one of them must be enqueued before anything else is in this stream. The driver's
    // legacy stream is in order with all others of its device.
    bool precedes(const StreamKey& stream) const;
    // Whether a transfer got this id, and could not be enqueued then.
    bool lost(uint64_t id) const { return std::count(lost_.begin(), lost_.end(), id) != 0; }

   private:
    friend class EnqueuedTransfers;
    std::vector<std::pair<uint64_t, Ptr>> prepared_;  // by id
    std::vector<uint64_t> lost_;
  };
  // Begins a transfer by one of these plans, and returns its id. 0: a plain copy is `possible` and
  // does better. With `batch` it begins with the others there, in enqueue(). Throws Error when
  // nothing was enqueued.
  uint64_t begin(const Request& request, const std::vector<PlanPtr>& plans, const Outlook& outlook,
                 bool possible, Batch* batch);
  void enqueue(Batch* batch);
  Ptr find(uint64_t id);  // throws Error
  int wait(const Ptr& transfer, uint64_t timeout_ns, std::string* text);
  bool done(const Ptr& transfer);
  // The stream ends. Its handle may be that of a new stream, whose copies do not come after its.
  void forget_stream(StreamKey stream);
  void release(uint64_t id);
  Bytes landed(const Ptr& transfer);
  std::string result(const Ptr& transfer);
  std::vector<CarriedPath> paths(const Ptr& transfer);
  size_t under_way();
  // Ends all waits. The copies go on.
  void stop_waits() { stopped_ = true; }
  void allow_waits() { stopped_ = false; }
  // Waits for all of them, for at most `most_ns` each. Throws Error if one takes longer, and may be
  // called again.
  void close(uint64_t most_ns);

 private:
  void look();
  std::vector<Ptr> first_ones();
  Ptr follow(const Ptr& transfer, EnqueuedTransfer::Before* before);
  void forget(const Ptr& transfer);
  void forget_last(const Ptr& transfer);
  bool await(const Ptr& transfer, uint64_t most_ns);
  bool end_if_done(const Ptr& transfer, Status answer);
  void finish(const Ptr& transfer);

  const Tools tools_;
  Scheduler& scheduler_;
  Runner& runner_;
  std::atomic<bool> stopped_{false};
  std::mutex mutex_;  // guards what follows, and each transfer once it is enqueued
  std::unordered_map<uint64_t, Ptr> known_;
  // The transfers that were not seen done yet, by the caller's stream, in its order.
  std::map<StreamKey, std::deque<Ptr>> open_;
  // By stream, the transfer that was the last to begin. It may not be enqueued yet.
  std::map<StreamKey, Ptr> last_;
};

}  // namespace glake::transfer
