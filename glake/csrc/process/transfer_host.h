// The process's transfer engine (csrc/transfer/): opened and closed by its owner, used by any
// thread between, through TransferUse. Throws Error.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "base/types.h"

namespace glake {

class Process;

namespace transfer {
class Engine;
}

class TransferHost {
 public:
  explicit TransferHost(Process& process);
  ~TransferHost();
  TransferHost(const TransferHost&) = delete;
  TransferHost& operator=(const TransferHost&) = delete;

  void open(const std::string& topology, const std::string& name);
  void close();
  // Keeps the engine open until leave(); null: it is not open, and there is nothing to leave.
  transfer::Engine* enter();
  void leave() { users_.fetch_sub(1); }
  // Throws Error if a copy of no stream's order uses the block.
  void refuse_copied(void* ptr);
  void refuse_copied(void* ptr, Bytes bytes);

 private:
  Process& process_;
  std::mutex mutex_;  // of opening and closing it; taken before the process's
  std::unique_ptr<transfer::Engine> engine_;
  std::atomic<transfer::Engine*> in_use_{nullptr};
  std::atomic<int> users_{0};
};

}  // namespace glake
