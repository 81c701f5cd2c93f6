#include "transfer/buffers/host_pins.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/transfer_tuning.h"
#include "driver/device_scope.h"
#include "transfer/buffers/host_access.h"

namespace glake::transfer {
namespace {

// Makes the kernel provide the pages. That takes longer than pinning them, but several threads can
// do it at once. If the kernel refuses, the driver will provide them, or say why not.
void populate(Address begin, Address end) {
  const auto page = static_cast<Address>(sysconf(_SC_PAGESIZE));
  begin = round_down(begin, page);
  end = round_up(end, page);
  const unsigned count = std::min<unsigned>(
      {TransferTuning::kMostTouching, std::max(1u, std::thread::hardware_concurrency()),
       static_cast<unsigned>(1 + (end - begin) / TransferTuning::kTouched)});
  const Bytes share = round_up((end - begin) / count + 1, page);
  std::vector<std::thread> threads;
  auto touch = [&](Address from) {
    madvise(reinterpret_cast<void*>(from), std::min(share, end - from), MADV_POPULATE_WRITE);
  };
  for (Address at = begin + share; at < end; at += share) threads.emplace_back(touch, at);
  touch(begin);
  for (std::thread& thread : threads) thread.join();
}

// A driver refuses missing memory without a reason. It may pin read-only memory, but only for
// reading. So both are refused here.
void require_writable(Address at, Bytes bytes) {
  const Reach reach = HostAccess(true).reach(at, bytes);
  if (reach.limit == Reach::Limit::kNone) return;
  const std::string range = std::to_string(bytes) + " bytes at " + hex(at);
  if (reach.limit == Reach::Limit::kProtected) {
    throw Error(GLAKE_INVALID_ARGUMENT,
                range + " cannot be pinned: the memory at " + hex(reach.end) +
                    " may not be written to, as it is mapped (mmap, mprotect), and the driver "
                    "pins what may be");
  }
  const bool cut = reach.limit == Reach::Limit::kNoPage;
  throw Error(GLAKE_INVALID_POINTER,
              range + " cannot be pinned: " + hex(reach.end) +
                  (cut ? " is mapped, but has no page (was a mapped file cut short?)"
                       : " is no memory of this process"));
}

}  // namespace

// Pieces end at page boundaries, because a page cannot be pinned twice.
Address HostPins::piece_end(const Range& range, Address begin) {
  return std::min(range.base + range.bytes,
                  round_down(begin + TransferTuning::kPinPiece, TransferTuning::kPinPiece));
}

void HostPins::add(void* base, Bytes bytes, bool background) {
  const auto at = reinterpret_cast<Address>(base);
  if (at == 0 || bytes == 0 || bytes > kMaxRequest || bytes > UINT64_MAX - at) {
    throw Error(GLAKE_INVALID_ARGUMENT, "pinning " + std::to_string(bytes) + " bytes at " +
                                            hex(at) + ": a range has an address and 1 to " +
                                            std::to_string(kMaxRequest) + " bytes");
  }
  require_writable(at, bytes);
  auto range = std::make_shared<Range>();
  range->base = at;
  range->bytes = bytes;
  {
    Lock lock(mutex_);
    for (const auto& [other, known] : ranges_) {
      if (at < other + known->bytes && other < at + bytes) {
        throw Error(GLAKE_INVALID_ARGUMENT, hex(at) + " overlaps the " +
                                                std::to_string(known->bytes) + " bytes at " +
                                                hex(other) + ", which are registered already");
      }
    }
    ranges_[at] = range;
    if (background) {
      range->thread = std::thread([this, range] {
        pthread_setname_np(pthread_self(), "glake-pin");
        pin(range);
      });
      return;
    }
  }
  pin(range);
  std::string text;
  const int code = wait(base, UINT64_MAX, &text);
  if (code == GLAKE_OK) return;
  remove(base);
  throw Error(static_cast<glake_status>(code), text);
}

void HostPins::pin(const RangePtr& range) {
  std::string error;
  for (Address at = range->base; at < range->base + range->bytes && error.empty();) {
    {
      Lock lock(mutex_);
      if (range->stop) break;
    }
    const Address end = piece_end(*range, at);
    populate(at, end);
    Status s;
    {
      DeviceScope scope(driver_, device_);
      s = scope.status();
      if (s.ok()) s = driver_.register_host(reinterpret_cast<void*>(at), end - at);
    }
    if (!s.ok()) {
      error = "the driver does not pin " + std::to_string(end - at) + " bytes at " + hex(at) +
              ": " + driver_.describe(s);
    } else {
      Lock lock(mutex_);
      range->pinned = end - range->base;
      changed_.notify_all();
    }
    at = end;
  }
  Lock lock(mutex_);
  range->error = error;
  range->over = true;
  changed_.notify_all();
}

HostPins::RangePtr HostPins::find(void* base, bool take) {
  Lock lock(mutex_);
  auto found = ranges_.find(reinterpret_cast<Address>(base));
  if (found == ranges_.end()) {
    throw Error(GLAKE_INVALID_POINTER, hex(base) + " is no start of registered host memory");
  }
  const RangePtr range = found->second;
  if (take) {
    range->stop = true;
    ranges_.erase(found);
  }
  return range;
}

int HostPins::wait(void* base, uint64_t timeout_ns, std::string* text) {
  const RangePtr range = find(base, false);
  Lock lock(mutex_);
  auto over = [&] { return range->over || range->stop; };
  if (timeout_ns >= UINT64_MAX / 4) {
    changed_.wait(lock, over);
  } else if (!changed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), over)) {
    *text = std::to_string(range->pinned) + " of " + std::to_string(range->bytes) +
            " bytes are pinned after " + std::to_string(timeout_ns) + " ns";
    return GLAKE_BUSY_TIMEOUT;
  }
  *text = !range->error.empty() ? range->error : "it was unregistered before all was pinned";
  if (!range->error.empty()) return GLAKE_DRIVER_ERROR;
  return range->pinned == range->bytes ? GLAKE_OK : GLAKE_COPY_CANCELLED;
}

void HostPins::progress(void* base, Bytes* pinned, Bytes* total) {
  const RangePtr range = find(base, false);
  Lock lock(mutex_);
  *pinned = range->pinned;
  *total = range->bytes;
}

// Unpins the last piece first. If the driver refuses a piece, what stays pinned is still a range
// from the base on.
Status HostPins::unpin(Range* range) {
  DeviceScope scope(driver_, device_);
  if (!scope.status().ok()) return scope.status();
  while (range->pinned != 0) {
    Address begin = range->base;
    for (Address end = piece_end(*range, begin); end < range->base + range->pinned;) {
      begin = end;
      end = piece_end(*range, begin);
    }
    const Status s = driver_.unregister_host(reinterpret_cast<void*>(begin));
    if (!s.ok()) return s;
    range->pinned = begin - range->base;
  }
  return {};
}

void HostPins::remove(void* base) {
  const RangePtr range = find(base, true);
  if (range->thread.joinable()) range->thread.join();
  const Status s = unpin(range.get());
  changed_.notify_all();
  if (s.ok()) return;
  Lock lock(mutex_);
  ranges_[range->base] = range;
  throw Error(GLAKE_DRIVER_ERROR,
              "the driver does not unpin " + hex(base) + ": " + driver_.describe(s));
}

void HostPins::close() {
  for (;;) {
    void* first = nullptr;
    {
      Lock lock(mutex_);
      if (ranges_.empty()) return;
      first = reinterpret_cast<void*>(ranges_.begin()->first);
    }
    remove(first);
  }
}

}  // namespace glake::transfer
