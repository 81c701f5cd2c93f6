#include "transfer/buffers/staging.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <system_error>

#include "base/transfer_tuning.h"

namespace glake::transfer {
namespace {

// The number of threads beside the caller's, which copies too.
size_t helpers() {
  return std::min(TransferTuning::kMostCopying, std::max(1u, std::thread::hardware_concurrency())) -
         1;
}

}  // namespace

void Staging::copy(const Parts& parts, Range range, Address buffer, Way way) {
  thread_local std::vector<Piece> pieces;
  Batch batch{parts, range.begin, buffer, way, 0};
  if (range.bytes() < 2 * TransferTuning::kStagedSlice || helpers() == 0)
    return copy_slice(batch, range, &pieces);
  Lock lock(mutex_);
  try {
    while (threads_.size() < helpers()) {
      const size_t number = threads_.size();
      threads_.emplace_back([this, number] { run(number); });
    }
  } catch (const std::system_error&) {
    // There are as many threads as the system permits. This thread alone is enough.
  }
  for (Bytes at = range.begin; at < range.end; at += TransferTuning::kStagedSlice) {
    slices_.push_back({&batch, {at, std::min(at + TransferTuning::kStagedSlice, range.end)}});
    ++batch.left;
  }
  work_.notify_all();
  while (batch.left != 0) {
    if (slices_.empty()) {
      done_.wait(lock);
    } else {
      // The slice may be another batch's. So no batch waits for a thread that sleeps.
      take_one(&lock, &pieces);
    }
  }
}

void Staging::take_one(Lock* lock, std::vector<Piece>* pieces) {
  const Slice slice = slices_.front();
  slices_.pop_front();
  lock->unlock();
  copy_slice(*slice.batch, slice.range, pieces);
  lock->lock();
  if (--slice.batch->left == 0) done_.notify_all();
}

void Staging::copy_slice(const Batch& batch, Range range, std::vector<Piece>* pieces) {
  batch.parts.pieces(range, pieces);
  for (const Piece& piece : *pieces) {
    void* const staged = reinterpret_cast<void*>(batch.buffer + piece.offset - batch.origin);
    if (batch.way == Way::kIn) {
      std::memcpy(staged, reinterpret_cast<const void*>(piece.src), piece.bytes);
    } else {
      std::memcpy(reinterpret_cast<void*>(piece.dst), staged, piece.bytes);
    }
  }
}

void Staging::run(size_t number) {
  const std::string name = "glake-stage-" + std::to_string(number);
  pthread_setname_np(pthread_self(), name.c_str());
  std::vector<Piece> pieces;
  Lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [&] { return stopping_ || !slices_.empty(); });
    if (stopping_) return;
    take_one(&lock, &pieces);
  }
}

void Staging::close() {
  {
    Lock lock(mutex_);
    stopping_ = true;
    work_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  stopping_ = false;
}

}  // namespace glake::transfer
