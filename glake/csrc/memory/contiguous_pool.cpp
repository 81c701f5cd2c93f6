#include "memory/contiguous_pool.h"

#include <algorithm>

#include "base/tuning.h"
#include "memory/contiguous_index.h"

namespace glake {
namespace {

// The longest cached chunk that may serve a request.
Bytes most_for(Bytes need) { return need + std::max(need / Tuning::kSlack, 2 * kGranule); }

bool ordered(const StreamClock& clock, StreamId stream, const std::vector<Ticket>& tickets) {
  return std::all_of(tickets.begin(), tickets.end(),
                     [&](Ticket t) { return clock.ordered(stream, t); });
}

// Granules the driver has given for a chunk and not got back.
uint64_t physical_of(const Chunk& chunk) {
  bool has = chunk.kind == GLAKE_CONTIGUOUS_LEGACY ? chunk.base != 0 : chunk.handle != 0;
  return has ? Granules::floor(chunk.bytes).count : 0;
}

}  // namespace

Chunk* ContiguousPool::reuse(int kind, Bytes need, StreamId stream, StreamClock& clock,
                             bool may_wait) {
  Index& all = index(kind);
  auto end = all.upper_bound(most_for(need));
  auto found = end;
  for (auto it = all.lower_bound(need); it != end && found == end; ++it) {
    if (ordered(clock, stream, it->second->tickets)) found = it;
  }
  for (auto it = all.lower_bound(need); may_wait && it != end && found == end; ++it) {
    bool waited = true;
    for (Ticket t : it->second->tickets) waited = waited && clock.wait(stream, Tickets(t));
    if (waited) found = it;
  }
  if (found == end) return nullptr;
  Chunk* chunk = found->second;
  all.erase(found);
  cached_bytes_ -= chunk->bytes;
  chunk->tickets.clear();
  return chunk;
}

void ContiguousPool::cache(Chunk* chunk) {
  index(chunk->kind).emplace(chunk->bytes, chunk);
  cached_bytes_ += chunk->bytes;
}

Status ContiguousPool::told(const char* call, Status s) {
  if (!s.ok()) refused_ = std::string(call) + ": " + driver_.describe(s);
  return s;
}

// Goes on where an earlier attempt, or taking the chunk apart, was refused.
Status ContiguousPool::build(Chunk& chunk, const std::vector<int>& grants) {
  uint64_t granules = Granules::floor(chunk.bytes).count;
  Status s;
  const bool created =
      chunk.handle != 0 || (chunk.kind == GLAKE_CONTIGUOUS_LEGACY && chunk.base != 0);
  if (!created && driver_.creatable(device_) < chunk.bytes) {
    refused_.clear();
    return Status::no_memory();
  }
  if (chunk.kind == GLAKE_CONTIGUOUS_LEGACY) {
    if (chunk.base != 0) return s;
    s = told("cuMemAlloc", driver_.allocate_legacy(chunk.bytes, &chunk.base));
    if (s.ok()) physical_ += granules;
    return s;
  }
  if (chunk.base == 0) {
    s = told("cuMemAddressReserve", driver_.reserve(chunk.bytes, &chunk.base));
  }
  if (!s.ok()) {
    chunk.base = 0;
    return s;
  }
  if (chunk.handle == 0) {
    s = told("cuMemCreate", driver_.create(device_, &chunk.handle, chunk.bytes));
    if (!s.ok()) {
      chunk.handle = 0;
      return s;
    }
    physical_ += granules;
  }
  if (!chunk.mapped) s = told("cuMemMap", driver_.map(chunk.base, chunk.handle, chunk.bytes));
  chunk.mapped = s.ok();
  if (!s.ok()) return s;
  return told("cuMemSetAccess", driver_.set_access(chunk.base, chunk.bytes, grants));
}

Status ContiguousPool::take_apart(Chunk& chunk) {
  uint64_t granules = Granules::floor(chunk.bytes).count;
  Status s;
  if (chunk.kind == GLAKE_CONTIGUOUS_LEGACY) {
    if (chunk.base == 0) return s;
    s = refusals_.note("cuMemFree", driver_.free_legacy(chunk.base));
    if (!s.ok()) return s;
    physical_ -= granules;
    chunk.base = 0;
    return s;
  }
  if (chunk.mapped) {
    s = refusals_.note("cuMemUnmap", driver_.unmap(chunk.base, chunk.bytes));
    if (!s.ok()) return s;
    chunk.mapped = false;
  }
  if (chunk.handle != 0) {
    s = refusals_.note("cuMemRelease", driver_.release(chunk.handle));
    if (!s.ok()) return s;
    chunk.handle = 0;
    physical_ -= granules;
  }
  if (chunk.base != 0) {
    s = refusals_.note("cuMemAddressFree", driver_.free_range(chunk.base, chunk.bytes));
  }
  if (s.ok()) chunk.base = 0;
  return s;
}

std::vector<std::unique_ptr<Chunk>>::const_iterator ContiguousPool::find_owed(int kind,
                                                                              Bytes bytes) const {
  return std::find_if(owed_.begin(), owed_.end(), [=](const std::unique_ptr<Chunk>& c) {
    return c->kind == kind && c->bytes == bytes && physical_of(*c) != 0;
  });
}

Bytes ContiguousPool::owed_addresses() const {
  Bytes all = 0;
  for (const std::unique_ptr<Chunk>& c : owed_) all += physical_of(*c) == 0 ? c->bytes : 0;
  return all;
}

Bytes ContiguousPool::cached_pinned_bytes() const {
  Bytes all = 0;
  for (const Chunk* chunk : cached()) all += chunk->pins != 0 ? chunk->bytes : 0;
  return all;
}

Bytes ContiguousPool::largest_kept(int kind, StreamId stream, StreamClock& clock) const {
  Bytes largest = 0;
  for (const auto& [bytes, chunk] : cached_[number(kind)]) {
    const std::vector<Ticket>& past = chunk->tickets;
    const bool has = std::all_of(past.begin(), past.end(), [&](Ticket t) {
      return clock.ordered(stream, t) || clock.can_wait(stream, t);
    });
    if (has) largest = bytes;
  }
  for (const std::unique_ptr<Chunk>& c : owed_) {
    if (c->kind == kind && physical_of(*c) != 0) largest = std::max(largest, c->bytes);
  }
  return largest;
}

Status ContiguousPool::make(int kind, Bytes bytes, const std::vector<int>& grants,
                            std::unique_ptr<Chunk>* made) {
  std::unique_ptr<Chunk> chunk;
  auto owed = find_owed(kind, bytes);
  if (owed != owed_.end()) {
    size_t at = static_cast<size_t>(owed - owed_.begin());
    chunk = std::move(owed_[at]);
    owed_.erase(owed_.begin() + static_cast<std::ptrdiff_t>(at));
    owed_physical_ -= physical_of(*chunk);
  } else {
    chunk = std::make_unique<Chunk>();
    chunk->kind = kind;
    chunk->bytes = bytes;
  }
  Status s = build(*chunk, grants);
  if (s.ok()) {
    *made = std::move(chunk);
  } else {
    unmake(std::move(chunk));
  }
  return s;
}

Granules ContiguousPool::probe(int kind, Granules most, const std::vector<int>& grants) {
  Granules gives{0};
  for (Granules next = most; gives < most; next = {most.count - (most - gives).count / 2}) {
    std::unique_ptr<Chunk> chunk;
    const Granules before = owed();
    if (make(kind, next.bytes(), grants, &chunk).ok()) {
      gives = next;
      if (!unmake(std::move(chunk))) break;  // owed, and so there for a request of just that size
    } else if (before < owed()) {
      break;  // the driver keeps what it gave for this size: more sizes would pass the limit
    } else {
      most = next - Granules{1};
    }
  }
  return gives;
}

void ContiguousPool::add(std::unique_ptr<Chunk> chunk) {
  ContiguousIndex::add(chunk.get());
  chunks_.push_back(std::move(chunk));
}

std::unique_ptr<Chunk> ContiguousPool::remove(Chunk* chunk) {
  Index& all = index(chunk->kind);
  for (auto [it, end] = all.equal_range(chunk->bytes); it != end; ++it) {
    if (it->second != chunk) continue;
    all.erase(it);
    cached_bytes_ -= chunk->bytes;
    break;
  }
  ContiguousIndex::remove(chunk);
  auto mine = [chunk](const std::unique_ptr<Chunk>& c) { return c.get() == chunk; };
  auto found = std::find_if(chunks_.begin(), chunks_.end(), mine);
  std::unique_ptr<Chunk> owner = std::move(*found);
  chunks_.erase(found);
  return owner;
}

bool ContiguousPool::unmake(std::unique_ptr<Chunk> chunk) {
  if (take_apart(*chunk).ok()) return true;
  owed_physical_ += physical_of(*chunk);
  owed_.push_back(std::move(chunk));
  return false;
}

bool ContiguousPool::settle() {
  auto paid = [this](const std::unique_ptr<Chunk>& chunk) {
    uint64_t before = physical_of(*chunk);
    bool done = take_apart(*chunk).ok();
    owed_physical_ -= before - physical_of(*chunk);
    return done;
  };
  owed_.erase(std::remove_if(owed_.begin(), owed_.end(), paid), owed_.end());
  return owed_.empty();
}

std::vector<Chunk*> ContiguousPool::cached() const {
  std::vector<Chunk*> all;
  for (const Index& index : cached_) {
    for (const auto& [bytes, chunk] : index) all.push_back(chunk);
  }
  return all;
}

}  // namespace glake
