// Decides how each copy goes, with all that is known at run time: its bytes, the other copies under
// way, and links found to be slow. It only decides. Other files that take part:
//
//   plan/planner.h   the rates of paths, from the capacity graph alone
//   share_out.h      the bytes that each path of a plan carries
//   decisions.h      keeps what was decided, for the next copy like it
//   under_way.h      the copies that are not done yet
//   bursts.h         foresees the copies that a thread will begin next
//   health_book.h    which paths have failed; the runner leaves them out
//   engine.cpp       asks the scheduler, and chooses plain, enqueued or routed copies
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/transfer_tuning.h"
#include "plan/planner.h"
#include "transfer/run/bursts.h"
#include "transfer/run/decisions.h"
#include "transfer/run/demand_board.h"
#include "transfer/run/share_out.h"
#include "transfer/run/transfer.h"
#include "transfer/run/under_way.h"

namespace glake::transfer {

// An edge that carries less, or more, than the topology says.
struct Lesson {
  int edge;
  double scale;  // of its rate
};

class Scheduler {
 public:
  // `topology` may be null: nothing is known of the links, and each copy takes its direct path.
  // `devices` is how many GPUs the driver has. Throws Error.
  Scheduler(Driver& driver, const topology::Topology* topology, int devices);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  bool knows_links() const { return planner_ != nullptr; }
  // Whether no copy has a second path: there is a single GPU, and no relay service.
  bool one_path() const { return gpus_ == 1 && !served_; }
  uint64_t copy_ns() const {
    return topology_ != nullptr ? topology_->copy_ns()
                                : static_cast<uint64_t>(TransferTuning::kCopyNs);
  }

  // The plan of a copy that runs alone. `few_relays`: as in Demand.
  PlanPtr plan_alone(const Request& request, bool few_relays = false);
  // The plan with the direct path only. It is used without a topology, and where the topology has
  // no path between the two places.
  PlanPtr direct_plan(const Place& src, const Place& dst);
  // A plan for each of `running`. The plans leave room for enqueued copies and for large plain
  // copies under way. Without plans nothing is known of the links.
  std::vector<PlanPtr> plan_together(const std::vector<Demand>& running);
  bool worthwhile(const Request& request, const TransferPlan& plan) const;
  // Whether several paths are worthwhile beside the copies that run now. It is asked if they are
  // not worthwhile for the copy alone. Plain copies keep to their own links, even where another
  // path would be better for all.
  bool pays_beside(const Request& request, std::vector<Demand> running);
  // Whether the engine's kernels would copy many blocks faster than the driver's own copies do,
  // even over one path. `batches`: the driver copies several blocks in one call.
  bool kernels_pay(const Request& request, const TransferPlan& plan, bool batches) const;
  // Plans for a copy that begins beside `running` and beside all copies that the driver has
  // already: as if it ran alone, first by any paths and then by those of few hops, which a short
  // copy may pass sooner; as if all copies began now; and by relays that no other copy passes.
  std::vector<PlanPtr> plans_beside(const Request& request, std::vector<Demand> running);
  // Which way a request that begins beside `running` should go. `burst` is what is known of the
  // request's burst.
  Outlook look_ahead(const Request& request, std::vector<Demand> running,
                     const Bursts::Burst& burst);
  // Decides which of these plans the request takes, and what each path carries. Decisions for other
  // requests take this one into account until forget_enqueued(). A decision without paths means
  // that a plain copy is better; it is made only if a plain copy is `possible`. `key` stands for
  // the transfer.
  struct Chosen {
    DecisionPtr decision;
    bool alone = false;  // nothing else is known to run
  };
  Chosen share_out(const void* key, const Request& request, const std::vector<PlanPtr>& plans,
                   const Outlook& outlook, bool possible);
  // Decisions for other requests no longer take the transfer into account. What it took improves
  // the division of the next one like it. The times have ns 0 if they show nothing.
  struct Ended {
    bool alone = false;  // no other copy ran beside it, as far as is known
    bool trial = false;  // its division was a trial
  };
  Ended forget_enqueued(const void* key, const DivisionTimes& times);
  // As Bursts::Adopt.
  void adopt(LiveBurst* live, std::shared_ptr<BurstTrials> trials);
  // What an enqueued transfer that ran alone has shown of a path. The rates say how fast each hop
  // was at most. Without rates its hops are not known. The next plans take into account links that
  // are slower than the topology says.
  struct Seen {
    const PlannedPath* path;
    std::vector<Rate> rates;
    Rate carried;  // its bytes, divided by its time
  };
  void learn(const std::vector<Seen>& paths);
  std::vector<Demand> enqueued();
  // A plain copy has been made at `rate`. If it is long, or others follow it, decisions for other
  // copies take it into account for as long as it should take.
  void note_plain(const Request& request, Rate rate, const Outlook& outlook);

  // The hop has fallen behind its plan, so one of its edges is slower than the topology says.
  // Returns that edge. Edges that another run uses at full speed are ruled out. Returns nothing if
  // that rules out all of them.
  std::optional<Lesson> lesson(const std::vector<TransferPtr>& running, const PathRun& run,
                               size_t hop);
  // The next plans take these into account.
  void apply(const std::vector<Lesson>& lessons);

  // `relays` has a bit for each GPU that may relay. The GPUs that this process copies to or from
  // may relay in any case. `factors`: this process's part of each limit of the topology. Throws
  // Error.
  void lend(uint32_t relays, std::vector<double> factors);
  // GPUs that the driver does not show may relay too. `remote` has one bit for each.
  void add_relays(uint32_t remote);
  bool has_parts();  // whether lend() was told parts of limits
  uint32_t relays() const { return lent_relays_ | board_.used(); }
  void use_gpus(const Request& request);
  DemandBoard& board() { return board_; }

 private:
  struct Use {
    Rate measured = 0;
    bool cleared = false;
  };
  DecisionPtr cut_again(const Request& request, const Decision& decision, bool whole);
  // What each stream of a burst copies from now on, planned in three ways.
  struct Ways {
    std::vector<Expected> joint, alone, plain;
    bool planned = false;  // joint was planned when the burst began
  };
  bool plan_ways(std::vector<Demand> running, Ways* ways);
  void choose_way(const Request& request, const Ways& ways, bool queued, Outlook* outlook);
  static std::vector<Expected> queues_of(const Request& request, const Bursts::Burst& burst);
  double end_of(const Request& request, const std::vector<Expected>& burst, size_t followers);
  void tell_forecast();
  DecisionPtr decide(const Request& request, const std::vector<PlanPtr>& plans,
                     const Outlook& outlook, bool possible, uint64_t now);
  static Use use_of(const std::vector<TransferPtr>& running, int edge, const PathRun& slow);
  void allow_relays();
  PlanPtr plain_plan(const Demand& demand, Rate rate);
  FlowForecast::Flow direct_flow(const Request& request, Rate rate);
  void leave_thin_paths(PlanPtr* plan) const;
  void add_enqueued(std::vector<Demand>* demands, const std::vector<StreamKey>& without = {});
  Rate ours(int limit);

  Driver& driver_;
  const topology::Topology* topology_;
  const int gpus_;
  uint32_t reached_;                 // bits of the driver's GPUs and of added ones; under mutex_
  std::atomic<bool> served_{false};  // whether add_relays() was called
  DemandBoard board_;
  std::mutex mutex_;  // guards the planner and what it was told
  std::unique_ptr<Planner> planner_;
  std::atomic<uint32_t> lent_relays_{kAllGpus};  // GPUs, as bits
  uint32_t allowed_relays_;
  struct Slow {
    double scale;
    uint64_t until;  // when the scale is forgotten
  };
  std::map<int, Slow> learnt_;                    // edges whose speed was found to differ
  std::mutex direct_mutex_;                       // guards what follows; taken last
  std::map<std::array<int, 4>, PlanPtr> direct_;  // by the places' GPUs and nodes
  std::mutex small_mutex_;                        // guards what follows; taken after mutex_
  UnderWay under_way_;
  Decisions decisions_;
  std::vector<double> parts_;  // the part of each limit that is ours; empty: all of every limit
};

}  // namespace glake::transfer
