// The relay service's work for one client. It copies between the client's host memory and buffers
// on GPUs that the client does not see. Its thread sleeps while there are no copies.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "base/transfer_tuning.h"
#include "transfer/remote/relay_buffer.h"
#include "transfer/remote/relay_gpus.h"
#include "transfer/remote/shared_memory.h"

namespace glake::transfer {

class RelayWorker {
 public:
  RelayWorker(RelayGpus& gpus, Descriptor socket);
  RelayWorker(const RelayWorker&) = delete;
  RelayWorker& operator=(const RelayWorker&) = delete;
  ~RelayWorker();  // ends it when its copies are done

  bool over() const { return over_; }  // the client is gone, or was refused

 private:
  enum Way : size_t { kInward, kOutward, kAway, kWays };
  struct Gpu {
    std::unique_ptr<RelayBuffer> buffer;
    std::array<std::array<StreamHandle, TransferTuning::kFlows>, kWays> streams{};
    std::array<size_t, kWays> turn{};
    std::vector<EventId> spare;
  };
  struct Flight {
    uint32_t order_id;
    int gpu;
    EventId event;
  };

  void run();
  void serve();
  bool await_order();
  bool take_orders();
  void obey(const Order& order, Descriptor descriptor);
  void open(const Order& order);
  void copy(const Order& order);
  Gpu& known(int gpu);
  Address in_buffer(int gpu, Bytes at, Bytes bytes);
  Address in_shared(const Order& order);
  EventId event_on(Gpu* gpu, int number);
  void look();
  void answer(uint32_t order_id, const std::string& why, Bytes bytes = 0, int descriptor = -1);
  void drain();
  void release();

  RelayGpus& gpus_;
  Driver& driver_;
  Descriptor socket_;
  Descriptor process_;  // the client's; empty: the system has no such descriptors
  bool greeted_ = false, gone_ = false;
  std::map<int, Gpu> open_;
  std::map<uint64_t, std::unique_ptr<SharedMemory>> shared_;
  std::vector<Flight> flights_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

}  // namespace glake::transfer
