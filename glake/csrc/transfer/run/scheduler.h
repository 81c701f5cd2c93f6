// Which paths a copy takes, and what has been learnt of the links. It decides; the runner acts.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/transfer_tuning.h"
#include "plan/planner.h"
#include "transfer/run/bursts.h"
#include "transfer/run/decisions.h"
#include "transfer/run/demand_board.h"
#include "transfer/run/link_shares.h"
#include "transfer/run/share_out.h"

namespace glake::transfer {

class Scheduler {
 public:
  // `topology` may be null: nothing is known of the links, and each copy has its direct path.
  // `devices`: that the driver has. Throws Error.
  Scheduler(Driver& driver, const topology::Topology* topology, int devices);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  bool knows_links() const { return planner_ != nullptr; }
  uint64_t copy_ns() const {
    return topology_ != nullptr ? topology_->copy_ns()
                                : static_cast<uint64_t>(TransferTuning::kCopyNs);
  }

  PlanPtr plan_alone(const Request& request);
  // The one copy there is without a topology, and where it names no path.
  PlanPtr direct_plan(const Place& src, const Place& dst);
  // A plan for each, and large plain copies under way reckoned with. No plans: nothing is known of
  // the links.
  std::vector<PlanPtr> plan_together(const std::vector<Demand>& running);
  bool worthwhile(const Request& request, const TransferPlan& plan) const;
  // Whether more paths are worthwhile, but only because other copies run. Plain copies among these
  // keep to their own links, even where another path would be better for all.
  bool pays_beside(const Request& request, std::vector<Demand> running);
  // Whether many blocks would go better by the engine's kernels than as the driver's own copies,
  // over one path as well. `batches`: the driver copies several blocks in one call.
  bool kernels_pay(const Request& request, const TransferPlan& plan, bool batches) const;
  // Plans for one that begins beside these and beside all that the driver has already: alone, as if
  // all began now, and by relays that no other copy passes.
  std::vector<PlanPtr> plans_beside(const Request& request, std::vector<Demand> running);
  // How a request should go that begins beside `running`, where `burst` is known of its burst.
  Outlook look_ahead(const Request& request, std::vector<Demand> running,
                     const Bursts::Burst& burst);
  // Which of these plans the request takes, and what each path carries. Other requests reckon with
  // that until forget_enqueued(). Without any path a plain copy does better, which must be
  // `possible`. `key`: the transfer.
  struct Chosen {
    DecisionPtr decision;
    bool alone = false;  // nothing else is known to run
  };
  Chosen share_out(const void* key, const Request& request, const std::vector<PlanPtr>& plans,
                   const Outlook& outlook, bool possible);
  // Others reckon with it no longer. True if it ran alone, as far as is known.
  bool forget_enqueued(const void* key);
  // What such a one has shown: of a path, how fast each hop was at most; empty: not known. The next
  // plans reckon with a link that is slower than the topology says.
  struct Seen {
    const PlannedPath* path;
    std::vector<Rate> rates;
  };
  void learn(const std::vector<Seen>& paths);
  std::vector<Demand> enqueued();
  // A plain copy has been made; others reckon with it for as long as it should take, if it is
  // long or `followed` by others.
  void note_plain(const Request& request, Rate rate, bool followed);

  // Under the engine's lock. A hop falls behind its plan: one of its edges is slower than the
  // topology says, and no other run that runs well takes it. The next plans reckon with that.
  void learn(const std::vector<TransferPtr>& running, const PathRun& run, size_t hop);
  bool learnt() const { return !lessons_.empty(); }  // under the engine's lock, too
  void apply(const std::vector<std::pair<int, double>>& lessons);
  std::vector<std::pair<int, double>> take_lessons() { return std::move(lessons_); }
  LinkShares& shares() { return shares_; }

  // Which GPUs may relay, besides those this process copies to or from, and its part of each limit
  // of the topology. Throws Error.
  void lend(uint32_t relays, std::vector<double> factors);
  // GPUs beyond the driver's that may relay, too, as bits.
  void add_relays(uint32_t remote);
  bool has_parts();  // it has been lent some
  uint32_t relays() const { return lent_relays_ | board_.used(); }
  void use_gpus(const Request& request);
  DemandBoard& board() { return board_; }

 private:
  struct Use {
    Rate measured = 0;
    bool cleared = false;
  };
  struct Enqueued {
    const void* key;
    Demand demand;
    uint32_t gpus;       // that its paths pass, as bits
    uint64_t beginning;  // alone: the number of copies begun with it; else 0
  };
  double end_of(const Request& request, const std::vector<Expected>& burst, size_t followers);
  void tell_forecast();
  Decision decide(const Request& request, const std::vector<PlanPtr>& plans, const Outlook& outlook,
                  bool possible, uint64_t now);
  static Use use_of(const std::vector<TransferPtr>& running, int edge, const PathRun& slow);
  void allow_relays();
  PlanPtr plain_plan(const Demand& demand, Rate rate);
  void leave_thin_paths(PlanPtr* plan) const;
  uint32_t busy_gpus();
  void add_enqueued(std::vector<Demand>* demands);
  Rate ours(int limit);

  Driver& driver_;
  const topology::Topology* topology_;
  const int gpus_;
  uint32_t reached_;                 // GPUs of the driver's, and those added; under mutex_
  std::atomic<bool> served_{false};  // some were added
  DemandBoard board_;
  LinkShares shares_;
  std::vector<std::pair<int, double>> lessons_;  // edges and their scale; the engine's lock
  std::mutex mutex_;                             // of the planner and of what it was told
  std::unique_ptr<Planner> planner_;
  std::atomic<uint32_t> lent_relays_{kAllGpus};  // GPUs, as bits
  uint32_t allowed_relays_;
  struct Slow {
    double scale;
    uint64_t until;  // it is believed
  };
  std::map<int, Slow> learnt_;                      // edges whose speed was found to differ
  std::mutex direct_mutex_;                         // of what follows; taken last
  std::map<std::array<int, 4>, PlanPtr> direct_;    // by the places' GPUs and nodes
  std::mutex small_mutex_;                          // of what follows; taken after mutex_
  std::vector<std::pair<Demand, uint64_t>> plain_;  // large plain copies, and when they should end
  std::vector<Enqueued> enqueued_;
  FlowForecast forecast_;  // of them, and of large plain copies
  Decisions decisions_;
  uint64_t begun_ = 0;         // of them
  std::vector<double> parts_;  // of each limit that is ours; empty: all
};

}  // namespace glake::transfer
