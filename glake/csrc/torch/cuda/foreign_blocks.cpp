#include "torch/cuda/foreign_blocks.h"

#include <algorithm>

#include "torch/cuda/on_device.h"

namespace glake::adapter {

namespace {
// The values of c10/core/AllocatorConfig.h.
constexpr size_t kSmallSegment = 2 * kMiB;
constexpr size_t kLargeSegment = 20 * kMiB;
// Larger requests, and those of this size, get a segment of their own.
constexpr size_t kOwnSegment = 10 * kMiB;
constexpr size_t kSegmentUnit = 2 * kMiB;
}  // namespace

size_t ForeignBlocks::segment_size(const ForeignRequest& request) {
  if (!request.large()) return kSmallSegment;
  if (request.bytes < kOwnSegment) return kLargeSegment;
  return round_up(request.bytes, kSegmentUnit);
}

ForeignBlocks::Fit ForeignBlocks::fit(char* where, const ForeignBlock& block) {
  const ForeignSegment& in = *block.segment;
  return {in.device, in.pool, in.stream, in.large, block.bytes, where};
}

void ForeignBlocks::insert_free(Blocks::iterator at, Splits* splits) {
  free_.insert(fit(at->first, at->second));
  if (at->second.whole()) return;
  ++splits->blocks;
  splits->bytes += static_cast<int64_t>(at->second.bytes);
}

void ForeignBlocks::remove_free(Blocks::iterator at, Splits* splits) {
  free_.erase(fit(at->first, at->second));
  if (at->second.whole()) return;
  --splits->blocks;
  splits->bytes -= static_cast<int64_t>(at->second.bytes);
}

void ForeignBlocks::count_splits(const ForeignSegment& segment, const Splits& splits) {
  Stats& stats = stats_[segment.device];
  change(stats.inactive_split, segment.large, splits.blocks);
  change(stats.inactive_split_bytes, segment.large, splits.bytes);
}

void* ForeignBlocks::take(const ForeignRequest& request, const Context& context) {
  const bool large = request.large();
  auto found = free_.lower_bound(
      {request.device, request.pool, request.stream, large, request.bytes, nullptr});
  if (found == free_.end() || std::tie(found->device, found->pool, found->stream, found->large) !=
                                  std::tie(request.device, request.pool, request.stream, large)) {
    return nullptr;
  }
  auto at = blocks_.find(found->where);
  Splits splits;
  remove_free(at, &splits);
  ForeignBlock& block = at->second;
  // A large block keeps a remainder of 1 MiB or less.
  const size_t rest = block.bytes - request.bytes;
  if (request.split && (large ? rest > kSmallLimit : rest >= kAlignment)) {
    block.bytes = request.bytes;
    ForeignBlock remainder;
    remainder.segment = block.segment;
    remainder.bytes = rest;
    insert_free(blocks_.emplace(at->first + request.bytes, std::move(remainder)).first, &splits);
  }
  block.live = true;
  block.requested = request.bytes;
  block.context = context;
  count_splits(*block.segment, splits);
  Stats& stats = stats_[request.device];
  const auto bytes = static_cast<int64_t>(block.bytes);
  change(stats.allocation, large, 1);
  change(stats.allocated_bytes, large, bytes);
  change(stats.active, large, 1);
  change(stats.active_bytes, large, bytes);
  change(stats.requested_bytes, large, static_cast<int64_t>(block.requested));
  return at->first;
}

void ForeignBlocks::add(const ForeignRequest& request, void* base, size_t bytes) {
  auto* where = static_cast<char*>(base);
  ForeignSegment& segment = segments_[where];
  segment = {request.device, request.pool, where, bytes, request.stream, request.large()};
  ForeignBlock block;
  block.segment = &segment;
  block.bytes = bytes;
  Splits none;
  insert_free(blocks_.emplace(where, std::move(block)).first, &none);
  Stats& stats = stats_[request.device];
  change(stats.segment, segment.large, 1);
  change(stats.reserved_bytes, segment.large, static_cast<int64_t>(bytes));
  ++stats.num_device_alloc;
}

ForeignBlock* ForeignBlocks::find(const void* ptr) {
  auto found = blocks_.find(static_cast<const char*>(ptr));
  return found == blocks_.end() ? nullptr : &found->second;
}

void ForeignBlocks::give(void* ptr, ForeignBlock& block, bool capturing) {
  auto* where = static_cast<char*>(ptr);
  block.live = false;
  block.context.reset();
  Stats& stats = stats_[block.segment->device];
  change(stats.allocation, block.segment->large, -1);
  change(stats.allocated_bytes, block.segment->large, -static_cast<int64_t>(block.bytes));
  if (block.recorded.empty()) {
    free_now(blocks_.find(where));
    return;
  }
  block.awaited = true;
  if (capturing) {
    unmarked_.push_back(where);
  } else {
    mark(where, block);
  }
}

// Records an event on each stream that uses the block. If that fails, the block stays pending.
void ForeignBlocks::mark(char* where, ForeignBlock& block) {
  OnDevice on(block.segment->device);
  for (cudaStream_t stream : block.recorded) {
    cudaEvent_t event = nullptr;
    ++block.events;
    if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) != cudaSuccess ||
        cudaEventRecord(event, stream) != cudaSuccess) {
      (void)cudaGetLastError();
      if (event != nullptr) (void)cudaEventDestroy(event);
      continue;
    }
    marks_[stream].emplace_back(event, where);
  }
  block.recorded.clear();
}

void ForeignBlocks::settle(bool wait) {
  for (char* where : unmarked_) mark(where, blocks_.find(where)->second);
  unmarked_.clear();
  for (auto of_stream = marks_.begin(); of_stream != marks_.end();) {
    auto& marks = of_stream->second;
    while (!marks.empty()) {
      auto [event, where] = marks.front();
      if ((wait ? cudaEventSynchronize(event) : cudaEventQuery(event)) != cudaSuccess) {
        (void)cudaGetLastError();  // not ready
        break;
      }
      (void)cudaEventDestroy(event);
      marks.pop_front();
      auto at = blocks_.find(where);
      if (--at->second.events == 0) free_now(at);
    }
    of_stream = marks.empty() ? marks_.erase(of_stream) : std::next(of_stream);
  }
}

// Frees the block and joins it with the free blocks before and after it.
void ForeignBlocks::free_now(Blocks::iterator at) {
  ForeignBlock& block = at->second;
  const ForeignSegment& segment = *block.segment;
  Stats& stats = stats_[segment.device];
  change(stats.active, segment.large, -1);
  change(stats.active_bytes, segment.large, -static_cast<int64_t>(block.bytes));
  change(stats.requested_bytes, segment.large, -static_cast<int64_t>(block.requested));
  block.awaited = false;
  block.requested = 0;
  Splits splits;
  auto joins = [&](Blocks::iterator other) {
    return other->second.segment == &segment && !other->second.active();
  };
  if (auto next = std::next(at); next != blocks_.end() && joins(next)) {
    remove_free(next, &splits);
    block.bytes += next->second.bytes;
    blocks_.erase(next);
  }
  if (at != blocks_.begin() && joins(std::prev(at))) {
    auto before = std::prev(at);
    remove_free(before, &splits);
    before->second.bytes += block.bytes;
    blocks_.erase(at);
    at = before;
  }
  insert_free(at, &splits);
  count_splits(segment, splits);
}

bool ForeignBlocks::any(int device, c10::MempoolId_t pool) const {
  return std::any_of(segments_.begin(), segments_.end(), [&](const auto& each) {
    return each.second.device == device && each.second.pool == pool;
  });
}

}  // namespace glake::adapter
