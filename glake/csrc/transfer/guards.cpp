// A copy in no stream's order is not waited for by anybody: what it uses must not be freed, or
// another would be given the memory it writes to.
#include <algorithm>

#include "core/process.h"
#include "transfer/engine.h"
#include "transfer/plain.h"

namespace glake::transfer {
namespace {

constexpr size_t kMany = 16;  // guards, of which the copies may be done

}  // namespace

Engine::Guard Engine::guard_of(const Parts& parts) {
  Guard range{parts[0].dst, parts[0].dst, parts[0].src, parts[0].src, nullptr, nullptr, 0};
  for (size_t i = 0; i < parts.count(); ++i) {
    const Part& part = parts[i];
    range.dst = std::min(range.dst, part.dst);
    range.dst_end = std::max(range.dst_end, part.dst + part.bytes);
    range.src = std::min(range.src, part.src);
    range.src_end = std::max(range.src_end, part.src + part.bytes);
  }
  return range;
}

void Engine::guard(const Guard& given, uint64_t id) {
  Guard range = given;
  if (Marks::is(id)) {
    range.mark = marks_.find(id);
  } else if (PlainId(id).valid()) {
    range.plain = id;
  } else {
    range.transfer = find(id);
  }
  guard(std::move(range));
}

void Engine::guard(Guard range) {
  std::lock_guard<std::mutex> lock(guard_mutex_);
  if (guards_.size() >= kMany) {
    auto over = [&](const Guard& one) { return !guarded(one); };
    guards_.erase(std::remove_if(guards_.begin(), guards_.end(), over), guards_.end());
  }
  guards_.push_back(std::move(range));
  process_.set_detour(kCopied, true);
}

bool Engine::guarded(const Guard& guard) {
  if (guard.mark != nullptr) return !marks_.done(*guard.mark);
  if (guard.plain != 0) return !done(guard.plain);
  Lock lock(mutex_);
  return !guard.transfer->over() || unfinished(&lock, *guard.transfer);
}

// Under the lock. Whether copies of it that were given up may still read and write.
bool Engine::unfinished(Lock* lock, const Transfer& transfer) {
  if (transfer.unfinished != 0) look_for_lost(lock);
  return transfer.unfinished != 0;
}

// Under the lock, but for the questions to the driver.
void Engine::look_for_lost(Lock* lock) {
  for (auto& [gpu, submitter] : submitters_) {
    if (submitter->look_for_lost(lock)) submitter->wake();
  }
  for (auto it = transfers_.begin(); it != transfers_.end();) {
    const bool gone = it->second->released && it->second->unfinished == 0;
    it = gone ? transfers_.erase(it) : std::next(it);
  }
}

bool Engine::settled(uint64_t id) {
  if (PlainId(id).valid() || Marks::is(id)) return done(id);
  Lock lock(mutex_);
  const auto known = transfers_.find(id);
  if (known == transfers_.end()) return true;
  const std::shared_ptr<Transfer> transfer = known->second;
  return transfer->over() && !unfinished(&lock, *transfer);
}

bool Engine::copying(Address begin, Address end) {
  std::lock_guard<std::mutex> lock(guard_mutex_);
  bool used = false;
  for (size_t i = 0; i < guards_.size();) {
    if (!guarded(guards_[i])) {
      guards_[i] = std::move(guards_.back());
      guards_.pop_back();
      continue;
    }
    const Guard& one = guards_[i++];
    used = used || (one.dst < end && begin < one.dst_end) || (one.src < end && begin < one.src_end);
  }
  if (guards_.empty()) process_.set_detour(kCopied, false);
  return used;
}

}  // namespace glake::transfer
