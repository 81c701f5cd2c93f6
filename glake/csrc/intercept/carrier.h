// Carries copies through the engine, in their places in their streams. It keeps what a program
// relies on afterwards: waits, frees and errors are as after the driver's copy.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "intercept/account.h"
#include "intercept/copy.h"
#include "intercept/engine.h"

namespace glake::intercept {

class Carrier {
 public:
  static Carrier& instance();

  // Returns kNone if the copy is carried. Then *result is what the driver would have returned.
  Reason carry(Copy copy, CUresult* result);
  void left(Reason reason, uint64_t bytes) { account_.left(reason, bytes); }

  // CUDA_SUCCESS, or the error that every call returns once a carried copy has failed.
  CUresult sticky() const { return static_cast<CUresult>(sticky_.load()); }
  bool flying() const { return count_.load(std::memory_order_acquire) != 0; }

  // Which carried copies a driver call waits for.
  enum class Wait { kStream, kContext, kNone };
  // The number of the last copy that was carried. It is read before the driver waits, because the
  // wait does not concern copies that start later.
  uint64_t latest() const { return sequence_.load(); }
  // Called after the driver's wait has succeeded. Returns what the program gets: an error if one of
  // the copies that it waited for has failed.
  CUresult waited(Wait which, CUstream stream, uint64_t latest);

  // shut() and reopen() are called around a driver call that waits for all work. In between, no
  // carried copy is in flight, and none starts.
  void shut();
  void reopen();
  // The program has taken a reference to a primary context.
  void retained(CUdevice device);
  // Each passes on a call of the program that may end a primary context, and returns what the
  // driver returned. The context ends as without glake, because the engine gives back its
  // references first. The next copy opens the engine again.
  using ContextCall = CUresult (*)(CUdevice);
  CUresult released(CUdevice device, ContextCall driver);
  CUresult reset(CUdevice device, ContextCall driver);
  // Called when the program opens an engine of its own (glake.transfer). Closes the carrier's
  // engine.
  void yield();
  void wait_all();
  // Waits until the engine is open, which may never happen.
  void await_open();

  std::string json() { return account_.json(); }
  void at_exit();
  void before_fork();
  void after_fork(bool child);

  // Whether this thread is inside one of the carrier's own calls of the driver.
  static bool inside();

 private:
  // A copy under way. `mutex` lets one thread at a time handle its end.
  struct Flight {
    uint64_t id = 0, number = 0, bytes = 0;
    CUstream stream = nullptr;
    int device = -1;
    std::mutex mutex;
    bool settled = false, dropped = false;
  };
  using FlightPtr = std::shared_ptr<Flight>;
  // A non-blocking stream that carries the copies of a device's legacy stream. Two events join the
  // two streams.
  struct SideStream {
    std::mutex mutex;
    CUstream stream = nullptr;
    CUevent before = nullptr, after = nullptr;
  };

  bool ready();
  CUresult end_context(CUdevice device, ContextCall driver);
  void say_off(const std::string& why);
  bool enter();
  void leave(const FlightPtr& flight);
  uint64_t start(const Copy& copy, CUstream stream);
  uint64_t start_legacy(const Copy& copy);
  SideStream* side_stream(int device);
  std::vector<FlightPtr> flights(const std::function<bool(const Flight&)>& wanted);
  void settle(const FlightPtr& flight, bool wait);
  void account_for(uint64_t id);
  void drop(const FlightPtr& flight);
  void close_at_exit();

  Engine engine_;
  Account account_;
  std::mutex opening_;
  std::atomic<int> state_{0};  // 0: not opened, 1: open, 2: off
  std::atomic<bool> forked_{false}, reset_{false}, exited_{false};
  std::atomic<bool> ended_{false};  // the process ends, and the engine is not called any more
  std::atomic<int> sticky_{CUDA_SUCCESS};

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<FlightPtr> flying_;
  std::map<int, std::unique_ptr<SideStream>> side_streams_;
  std::map<CUdevice, int> references_;  // of the program to each primary context
  int starting_ = 0, shut_ = 0;
  std::atomic<size_t> count_{0};
  std::atomic<uint64_t> sequence_{0};
};

}  // namespace glake::intercept
