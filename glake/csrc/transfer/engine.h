// glake's second engine: one copy over every useful path of the node at once. Owned by Process.
//
//   request    what a caller wants copied, checked
//   transfer   a request under way; a lane: one path of it, with its accounts
//   submitter  a thread per worker GPU, which claims chunks of lanes and copies them
//   slot       a relay buffer, from glake's own memory
//   hold       what keeps a caller's stream waiting until the transfer is done
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "transfer/block_ways.h"
#include "transfer/copy_kernel.h"
#include "transfer/host_pins.h"
#include "transfer/marks.h"
#include "transfer/planner.h"
#include "transfer/staging.h"
#include "transfer/submitter.h"
#include "transfer/timing.h"

namespace glake::transfer {

class Engine {
 public:
  // `platform` is a topology's text; empty: nothing is known of the links, and copies are plain.
  Engine(Driver& driver, Process& process, HostPool& host, const std::string& platform,
         const std::string& name);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine();

  Request read(const glake_copy_request& given) {
    return make_request(driver_, topology_.get(), given,
                        some_device(given.dst_device, given.src_device));
  }
  // Throw Error. Ids of plain copies: see plain.h, marks.h.
  uint64_t begin(Request request);  // of one stream or two
  // GLAKE_OK, GLAKE_BUSY_TIMEOUT, or what ended the transfer, with its text.
  int wait(uint64_t id, uint64_t timeout_ns, std::string* text);
  bool done(uint64_t id);
  void stream_wait(uint64_t id, int device, StreamHandle stream);
  void cancel(uint64_t id);
  void release(uint64_t id);
  // Whether it is over, and no copy of it that was given up may still read or write.
  bool settled(uint64_t id);
  void progress(uint64_t id, Bytes* done, Bytes* total);
  std::string result(uint64_t id);
  std::string stats();
  std::string explain(Place dst, Place src, Bytes bytes);
  HostPins& pins();
  CopyTimer& timer() { return timer_; }
  // Whether a copy of no stream's order reads or writes there.
  bool copying(Address begin, Address end);
  void place_of(const void* ptr, int* device, int* pinned);
  // Which GPUs may relay, besides those this process copies to or from, and its part of each limit
  // of the topology (Planner::lend). Transfers under way are planned anew. Throws Error.
  void lend(uint32_t relays, std::vector<double> factors);
  // GPUs used and transfers under way, as JSON; an eventfd of the engine's, readable after a
  // change.
  std::string demands();
  int demands_event();
  // Cancels all transfers and waits for their copies under way: after it nobody waits for one.
  void end_all();
  // Ends the threads and gives all back; nobody uses the engine any more. Throws Error, and may be
  // tried again, when a caller's stream or a stuck copy holds it up.
  void close();

 private:
  friend class CopyTimer;
  friend class Submitter;
  using Lock = std::unique_lock<std::mutex>;
  // What a copy of no stream's order reads and writes.
  struct Guard {
    Address dst = 0, dst_end = 0, src = 0, src_end = 0;
    std::shared_ptr<Transfer> transfer;
    Marks::MarkPtr mark;
    uint64_t plain = 0;  // its id, if it is neither
  };
  static Guard guard_of(const Parts& parts);
  struct Gate;  // tells the engine that a caller's stream has come to its transfer

  // joining.cpp
  int some_device(int first, int second);
  void follow(int device, StreamHandle stream, int other_device, StreamHandle other);
  uint64_t start(Request request);
  // guards.cpp
  void guard(const Guard& given, uint64_t id);
  void guard(Guard range);
  bool guarded(const Guard& guard);
  bool unfinished(Lock* lock, const Transfer& transfer);
  void look_for_lost(Lock* lock);
  // plain.cpp
  // `why`: the reason it is not more, where that is not the copy's own.
  uint64_t plain(const Request& request, bool captured, const char* why = nullptr);
  void open_device(int device);
  bool plain_possible(const Request& request);
  StreamHandle plain_stream(int device, bool outward);
  Status submit_plain(const Request& request, StreamHandle stream);
  Status copy_in_stretches(const Request& request, const Part& part, StreamHandle stream,
                           Status refused);
  // ordering.cpp
  bool order(const std::shared_ptr<Transfer>& transfer);
  void open_gate(const std::shared_ptr<Transfer>& transfer);
  void shut_gates();
  bool reap_passed(uint64_t timeout_ns);
  void await_gate(Lock* lock, const std::shared_ptr<Transfer>& transfer);
  // Waiting for plain copies.
  int wait_plain(uint64_t id, std::string* text);
  // planning.cpp
  TransferPlan plan_alone(const Request& request);
  bool worthwhile(const Request& request, const TransferPlan& plan) const;
  bool kernel_pays(const Request& request, const TransferPlan& plan);
  bool pays_beside_others(const Request& request);
  void note_plain(const Request& request, Rate rate);
  void add_plain(std::vector<Demand>* demands);
  void replan();
  std::vector<std::shared_ptr<Transfer>> plan_anew();
  TransferPlan direct_plan(const Request& request) const;
  void adopt(const std::shared_ptr<Transfer>& transfer, const TransferPlan& plan);
  void enlist(const std::shared_ptr<Transfer>& transfer);
  void last_resort(const std::shared_ptr<Transfer>& transfer);
  struct Use {
    Rate measured = 0;
    bool cleared = false;
  };
  void learn(Lane* lane, size_t hop);
  Use use_of(int edge, const Lane& slow) const;
  void prepare(const Path& path);
  bool reach(int gpu, int from);
  Submitter& submitter(int gpu);

  // link_shares.cpp
  std::map<int, double> loads_of(const topology::Route& route) const;
  void measure_links();
  bool coupled(const LinkUse& one, const LinkUse& other, const std::vector<double>& taken) const;
  void share_links(Transfer* transfer, const std::vector<double>& taken);
  std::vector<int> full_limits(const Lane& lane, const std::vector<double>& taken) const;

  // lending.cpp
  using Demands = std::set<std::array<int, 4>>;  // GPU and node of the source, of the destination
  void allow_relays();
  void use_gpus(const Request& request);
  Rate ours(int edge) const;
  Demands demands_now() const;
  void tell_demands();
  void signal_demands();
  std::string gpus_text(uint32_t bits) const;

  std::shared_ptr<Transfer> find(uint64_t id);
  void finish(Transfer* transfer);
  void end_one(const std::shared_ptr<Transfer>& transfer);
  void rouse(uint64_t now);
  void conclude(Lock* lock, const std::shared_ptr<Transfer>& transfer);
  BlockCosts block_costs() const {
    BlockCosts costs;
    costs.copy_ns = static_cast<double>(copy_ns());
    return costs;
  }
  uint64_t copy_ns() const { return topology_ != nullptr ? topology_->copy_ns() : 8000; }

  Driver& driver_;
  Process& process_;
  std::unique_ptr<topology::Topology> topology_;
  std::mutex plan_mutex_;  // of the planner; taken before mutex_
  std::unique_ptr<Planner> planner_;
  std::atomic<uint32_t> lent_relays_{kAllGpus};  // GPUs, as bits
  uint32_t allowed_relays_ = kAllGpus;
  std::atomic<uint32_t> own_{0};    // those of this process's copies; set under plan_mutex_
  std::map<int, uint64_t> learnt_;  // edges whose speed was found to differ, and until when
  std::mutex prepare_mutex_;        // of what has been opened for paths
  std::set<std::string> prepared_;
  std::map<std::pair<int, int>, bool> reached_;
  std::mutex mutex_;  // of all below, and of transfers, lanes and path states
  std::map<uint64_t, std::shared_ptr<Transfer>> transfers_;
  std::vector<std::shared_ptr<Transfer>> running_;
  std::vector<std::pair<Demand, uint64_t>> plain_;  // large plain copies, and when they should end
  std::vector<std::shared_ptr<Gate>> gates_;
  std::vector<EventId> passed_;  // behind holds, on callers' streams
  std::map<int, std::unique_ptr<Submitter>> submitters_;
  std::map<std::array<int, 4>, std::shared_ptr<LinkUse>> uses_;  // by places of hops
  HealthBook health_;
  Slots slots_;
  CopyKernel kernel_;
  Staging staging_;
  Holds holds_;
  Marks marks_;
  HostPins pins_;
  CopyTimer timer_{*this};
  std::mutex guard_mutex_;
  std::vector<Guard> guards_;
  uint64_t next_id_ = 1;
  std::vector<double> lent_;  // our part of each limit; empty: all
  Demands told_;
  int demands_event_ = -1;
  std::vector<std::pair<int, double>> lessons_;  // edges and their scale, for replan()
  // Statistics.
  std::atomic<uint64_t> plain_copies_{0}, plain_bytes_{0};
  uint64_t finished_ = 0, failed_ = 0, bytes_ = 0, resent_ = 0;
  std::map<std::string, std::pair<uint64_t, Bytes>> carried_;   // by path: chunks, bytes
  std::unique_ptr<std::atomic<StreamHandle>[]> plain_streams_;  // of devices: in, out
  std::unique_ptr<std::atomic<bool>[]> opened_;
  const int devices_;
};

}  // namespace glake::transfer
