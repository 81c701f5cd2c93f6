// What this process tells the relay service (glake/transfer/relay): which GPUs it copies to or
// from, and between which places its transfers under way go.
#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <set>
#include <string>

#include "transfer/call/request.h"

namespace glake::transfer {

class DemandBoard {
 public:
  // The GPU and node of the source, and those of the destination. Transfers between the same places
  // are one demand.
  using Demands = std::set<std::array<int, 4>>;

  explicit DemandBoard(int gpus) : gpus_(gpus) {}
  DemandBoard(const DemandBoard&) = delete;
  DemandBoard& operator=(const DemandBoard&) = delete;
  ~DemandBoard();

  static std::array<int, 4> demand_of(const Demand& demand);
  static std::array<int, 4> demand_of(const Request& request) {
    return demand_of(Demand{request.src, request.dst});
  }
  // True if the process copies to or from one of these GPUs for the first time.
  bool use(const Request& request);
  uint32_t used() const { return used_.load(); }  // GPUs, as bits
  // Sets the present demands. Signals if they have changed.
  void tell(Demands now);
  void signal();
  // An eventfd that is readable after a change. Throws Error.
  int event();
  std::string json(const Demands& now) const;
  std::string gpus_text(uint32_t bits) const;

 private:
  const int gpus_;  // the number that the driver and the topology have
  std::atomic<uint32_t> used_{0};
  std::mutex mutex_;  // guards what follows
  Demands told_;
  int event_ = -1;
};

}  // namespace glake::transfer
