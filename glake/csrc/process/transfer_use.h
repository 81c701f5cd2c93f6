// Keeps the transfer engine open while a call uses it. Throws Error if it is not open.
#pragma once

#include "process/process.h"
#include "transfer/engine.h"

namespace glake {

class TransferUse {
 public:
  TransferUse();
  ~TransferUse() { Process::instance().transfer().leave(); }
  TransferUse(const TransferUse&) = delete;
  TransferUse& operator=(const TransferUse&) = delete;
  transfer::Engine* operator->() const { return engine_; }

 private:
  transfer::Engine* engine_;
};

}  // namespace glake
