#include "driver_lock.h"

#include <algorithm>

#include "books.h"
#include "options.h"

namespace simcuda {

LockSide lock_side(Symbol symbol) {
  switch (symbol) {
    case Symbol::k_cuMemFree:
    case Symbol::k_cuMemFreeHost:
    case Symbol::k_cuMemHostUnregister:
    case Symbol::k_cuModuleLoadData:
    case Symbol::k_cuModuleLoadDataEx:
    // The calls below were not measured. They are assumed to do the same.
    case Symbol::k_cuModuleLoad:
    case Symbol::k_cuModuleLoadFatBinary:
    case Symbol::k_cuLibraryLoadData:
    case Symbol::k_cuLibraryLoadFromFile:
    case Symbol::k_cuIpcCloseMemHandle:
    case Symbol::k_cuCtxCreate:
    case Symbol::k_cuCtxDestroy:
    case Symbol::k_cuCtxEnablePeerAccess:
    case Symbol::k_cuCtxDisablePeerAccess:
      return LockSide::kWaitsAndExcludes;
    case Symbol::k_cuModuleUnload:
    case Symbol::k_cuLibraryUnload:
      return LockSide::kWaits;
    case Symbol::k_cuMemAlloc:
    case Symbol::k_cuMemHostAlloc:
    case Symbol::k_cuMemAllocHost:
    case Symbol::k_cuMemHostRegister:
    case Symbol::k_cuStreamCreate:
    case Symbol::k_cuStreamCreateWithPriority:
    case Symbol::k_cuStreamDestroy:
    case Symbol::k_cuEventCreate:
      return LockSide::kExcludes;
    // On the GPU a copy from pageable memory blocked others too, for about its own time (1 MiB: 145
    // to 225 us). Here a copy's time includes the wait for its stream's work, during which no
    // blocking was seen. So copies block nobody here.
    case Symbol::k_cuMemcpyHtoD:
    case Symbol::k_cuMemcpyDtoH:
    case Symbol::k_cuMemcpyDtoD:
    case Symbol::k_cuMemcpy:
    case Symbol::k_cuMemcpyPeer:
    case Symbol::k_cuMemcpy2D:
    case Symbol::k_cuMemcpyHtoDAsync:
    case Symbol::k_cuMemcpyDtoHAsync:
    case Symbol::k_cuMemcpyDtoDAsync:
    case Symbol::k_cuMemcpyAsync:
    case Symbol::k_cuMemcpyPeerAsync:
    case Symbol::k_cuMemcpy2DAsync:
    case Symbol::k_cuMemcpy3DPeerAsync:
    case Symbol::k_cuMemcpyBatchAsync:
    case Symbol::k_cuMemsetD8:
    case Symbol::k_cuMemsetD16:
    case Symbol::k_cuMemsetD32:
    case Symbol::k_cuMemsetD8Async:
    case Symbol::k_cuMemsetD16Async:
    case Symbol::k_cuMemsetD32Async:
    case Symbol::k_cuLaunchKernel:
    case Symbol::k_cuLaunchKernelEx:
    case Symbol::k_cuLaunchCooperativeKernel:
    case Symbol::k_cuLaunchHostFunc:
    case Symbol::k_cuStreamWaitEvent:
    case Symbol::k_cuEventRecord:
    case Symbol::k_cuEventRecordWithFlags:
    case Symbol::k_cuStreamWaitValue32:
    case Symbol::k_cuStreamWaitValue64:
    case Symbol::k_cuStreamWriteValue32:
    case Symbol::k_cuStreamWriteValue64:
    case Symbol::k_cuGraphLaunch:
      return LockSide::kShared;
    default:
      return LockSide::kNone;
  }
}

DriverLock::Turn::Turn(DriverLock* owner, Lock* lock, Symbol symbol, const Load& load)
    : Turn(owner, lock, symbol, load, lock_side(symbol)) {}

DriverLock::Turn::Turn(DriverLock* owner, Lock* lock, Symbol symbol, const Load& load,
                       LockSide side)
    : owner_(owner) {
  if (side == LockSide::kNone) return;
  Waits& waits = owner->scheduler_->waits();
  const bool excludes = side == LockSide::kExcludes || side == LockSide::kWaitsAndExcludes;
  if (owner->on_) {
    if (side != LockSide::kWaits) {
      while (const OpPtr holder = owner->holder_) waits.await_end(lock, holder);
    }
    if (excludes) owner->holder_ = mine_ = std::make_shared<Op>();
    if (side == LockSide::kWaits || side == LockSide::kWaitsAndExcludes) waits.quiesce(lock);
  }
  const bool takes_time = side == LockSide::kShared || (side == LockSide::kExcludes && owner->on_);
  if (takes_time && call_time()) {
    const CallCost price = books().price(static_cast<int>(symbol));
    const double us = price.first_us +
                      static_cast<double>(load.pages > 1 ? load.pages - 1 : 0) * price.further_us;
    waits.sleep(lock, owner->wait_ns(static_cast<uint64_t>(us * 1000), load.devices));
  }
}

// For how long a call that begins now keeps its thread, if it takes `own_ns` itself.
uint64_t DriverLock::wait_ns(uint64_t own_ns, std::vector<int> devices) {
  if (!by_context_) return own_ns;
  if (devices.empty()) devices.push_back(contexts_->device());
  const uint64_t now = scheduler_->clock().now_ns();
  uint64_t until = now;
  for (const int device : devices) until = std::max(until, free_from_[device]);
  until += own_ns;
  for (const int device : devices) free_from_[device] = until;
  return until - now;
}

DriverLock::Turn::~Turn() {
  if (mine_ == nullptr) return;
  owner_->holder_ = nullptr;
  owner_->scheduler_->end(mine_);
}

}  // namespace simcuda
