// The process's transfer engine (csrc/transfer/). This class opens and closes it. In between any
// thread may use it, through TransferUse. Throws Error.
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
  // Keeps the engine open until leave(). Null: it is not open, and leave() must not be called.
  transfer::Engine* enter();
  void leave() { users_.fetch_sub(1); }
  void forget_stream(int device, StreamHandle stream);
  // Throws Error if a copy outside stream order uses the block.
  void refuse_copied(void* ptr);
  void refuse_copied(void* ptr, Bytes bytes);

 private:
  Process& process_;
  std::mutex mutex_;  // held while the engine is opened or closed; taken before the process's lock
  std::unique_ptr<transfer::Engine> engine_;
  std::atomic<transfer::Engine*> in_use_{nullptr};
  std::atomic<int> users_{0};
};

}  // namespace glake
