// World's private pools, checkpoints and limits.
#pragma once

#include "world.h"

namespace fuzz {

inline void World::pool_get(size_t bytes, int stream, int pool) {
  note("pool_get", {static_cast<int64_t>(bytes), stream, pool});
  exact_full_ = false;  // another pool may have what is missing
  books_[0].pooled = true;
  const int p = 1 + pool % kPools;
  auto by = [p](size_t size, int device, CUstream on) {
    return glake_pool_malloc(size, device, on, name_of(p));
  };
  allocate(bytes, static_cast<int>(stream_of(stream)), 0, p, GLAKE_STITCHED, by);
  identities();
}

inline void World::pool_get_at(int n, size_t bytes, int stream, int pool) {
  note("pool_get_at", {n, static_cast<int64_t>(bytes), stream, pool});
  int p = 1 + pool % kPools;
  auto on = static_cast<int>(stream_of(stream));
  void* at = this;
  const bool taken = n % 4 == 0 && !live_.empty();
  if (taken) {
    const Live& b = live_[pick(n / 4)];
    at = static_cast<char*>(b.ptr) + b.size / 1024 * 512;
  } else if (!gaps_.empty()) {
    const auto& gap = gaps_[static_cast<size_t>(n / 4) % gaps_.size()];
    at = gap.first;
    p = gap.second;
  }
  if (ended_[static_cast<size_t>(on)]) on = 0;
  exact_full_ = false;
  void* got = nullptr;
  int code = call([&] {
    got = glake_pool_malloc_at(at, bytes, 0, handle(on), name_of(p));
    return glake_last_error(nullptr, 0);
  });
  if (got == nullptr) {
    CHECK(code == GLAKE_INVALID_ARGUMENT || (armed_ && code == GLAKE_DRIVER_ERROR));
  } else {
    CHECK(got == at && !taken);
    born({got, bytes, 0, on, p}, GLAKE_STITCHED);
  }
  identities();
}

// While a pool has a user, memory that a graph got during its capture may only be given again on
// the graph's own stream.
inline void World::note_captured(const Live& block, const glake::Block& given) {
  for (const glake::Span* p = given.pieces; p != nullptr; p = p->piece_next) {
    for (const Captured& c : graphs_) {
      bool same = c.pool == block.pool && c.stream == block.stream;
      CHECK_TEXT(same || c.end <= p->begin || p->end() <= c.begin,
                 "memory of a graph captured in pool " + std::to_string(c.pool) + " on stream " +
                     std::to_string(c.stream) + " was given to pool " + std::to_string(block.pool) +
                     ", stream " + std::to_string(block.stream));
    }
  }
  if (armed_ || block.pool == 0 || !capturing(block.stream) || users_[block.pool] == 0) return;
  for (const glake::Span* p = given.pieces; p != nullptr; p = p->piece_next) {
    graphs_.push_back({p->begin, p->end(), block.stream, block.pool});
  }
}

inline void World::pool_users(int pool, int more) {
  note("pool_users", {pool, more});
  const int p = 1 + pool % kPools;
  if (more == 0 && users_[p] == 0) return;
  int code = call([&] {
    return more != 0 ? glake_pool_retain(0, name_of(p)) : glake_pool_release(0, name_of(p));
  });
  CHECK(code == GLAKE_OK || (armed_ && code == GLAKE_DRIVER_ERROR));
  if (code == GLAKE_OK) users_[p] += more != 0 ? 1 : -1;
  auto over = [&](const Captured& c) { return users_[c.pool] == 0; };
  graphs_.erase(std::remove_if(graphs_.begin(), graphs_.end(), over), graphs_.end());
  exact_full_ = false;
  books_[0].pooled = true;
  int users = call([&] { return glake_pool_uses(0, name_of(p)); });
  CHECK(users == users_[p] || (armed_ && users < 0));
  identities();
}

inline void World::pool_flags(int pool, int flags) {
  note("pool_flags", {pool, flags});
  const int p = 1 + pool % kPools;
  if (users_[p] == 0) return;
  OK(call([&] { return glake_pool_set_flags(0, name_of(p), static_cast<unsigned>(flags) % 4); }));
}

inline void World::pool_empty_cache(int pool) {
  note("pool_empty_cache", {pool});
  const int p = 1 + pool % kPools;
  if (users_[p] == 0) return;
  int code = call([&] { return glake_pool_empty_cache(0, name_of(p)); });
  CHECK(code == GLAKE_OK || (armed_ && (code == GLAKE_DRIVER_ERROR || code == GLAKE_MEMORY_OWED)));
  identities();
}

inline void World::drop_checkpoint() {
  glake_checkpoint_free(checkpoint_);
  checkpoint_ = nullptr;
}

inline void World::checkpoint(int pool) {
  note("checkpoint", {pool});
  drop_checkpoint();
  checkpoint_pool_ = 1 + pool % kPools;
  if (users_[checkpoint_pool_] == 0) return;
  checkpoint_ = glake_pool_checkpoint(0, name_of(checkpoint_pool_));
  CHECK(checkpoint_ != nullptr);
}

// Undoes what was freed and allocated since the checkpoint. The books follow what glake reports of
// it. A restore promises nothing about contents, so the pool's blocks are read before it.
inline void World::restore() {
  note("restore", {});
  if (checkpoint_ == nullptr) return;
  if (setup_.bytes != 0) {
    for (const Live& b : live_) {
      if (b.pool == checkpoint_pool_) read(b, b.stream);
    }
    stamps_.verify();
  }
  struct Again {
    void* ptr;
    size_t bytes;
    void* stream;
  };
  struct Said {
    std::vector<void*> freed;
    std::vector<Again> allocated;
  } said;
  owned_ = {};
  int code = call([&] {
    return glake_pool_restore(
        checkpoint_, &said,
        [](void* self, void* ptr) { static_cast<Said*>(self)->freed.push_back(ptr); },
        [](void* self, void* ptr, size_t bytes, void* stream) {
          static_cast<Said*>(self)->allocated.push_back({ptr, bytes, stream});
        });
  });
  CHECK(code == GLAKE_OK || (said.freed.empty() && said.allocated.empty()));
  for (void* ptr : said.freed) {
    size_t n = 0;
    while (n < live_.size() && live_[n].ptr != ptr) ++n;
    CHECK_TEXT(n < live_.size() && live_[n].pool == checkpoint_pool_, "restore freed a stranger");
    gone(n);
  }
  graphs_.clear();  // a restored block may lie in memory of a graph
  for (const Live& b : live_) owned_.add(glake::Process::instance().block(b.ptr, false));
  for (const Again& b : said.allocated) {
    size_t s = 0;
    while (s < streams_.size() && (ended_[s] || streams_[s] != b.stream)) ++s;
    const int on = s < streams_.size() ? static_cast<int>(s) : 0;
    born({b.ptr, b.bytes, 0, on, checkpoint_pool_}, GLAKE_STITCHED);
  }
  identities();
}

// What is held beyond a lowered limit stays; nothing grows.
inline void World::limit(int percent) {
  note("limit", {percent});
  Books& b = books_[0];
  if (!b.used) return;
  double fraction = (1 + percent % 100) / 100.0;
  auto total = static_cast<double>((setup_.limit_mib + 16) * static_cast<int64_t>(kMiB));
  auto bytes = static_cast<int64_t>(fraction * total);
  if (bytes < static_cast<int64_t>(8 * kMiB)) return;
  OK(call([&] { return glake_set_limit_fraction(0, fraction); }));
  b.limit = bytes / static_cast<int64_t>(kGranule) * static_cast<int64_t>(kGranule);
  identities();
}

}  // namespace fuzz
