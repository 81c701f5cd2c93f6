#include "memory/contiguous_pool.h"

#include <algorithm>

#include "base/tuning.h"
#include "memory/contiguous_index.h"

namespace glake {
namespace {

// How long a cached allocation that serves a request of `need` bytes may be.
Bytes most_for(Bytes need) { return need + std::max(need / Tuning::kSlack, 2 * kGranule); }

bool ordered(const StreamClock& clock, StreamId stream, const std::vector<Ticket>& tickets) {
  return std::all_of(tickets.begin(), tickets.end(),
                     [&](Ticket t) { return clock.ordered(stream, t); });
}

// The granules that the driver has given for an allocation and has not got back.
uint64_t physical_of(const Allocation& allocation) {
  bool has =
      allocation.kind == GLAKE_CONTIGUOUS_LEGACY ? allocation.base != 0 : allocation.handle != 0;
  return has ? Granules::floor(allocation.bytes).count : 0;
}

}  // namespace

Allocation* ContiguousPool::reuse(int kind, Bytes need, StreamId stream, StreamClock& clock,
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
  Allocation* allocation = found->second;
  all.erase(found);
  cached_bytes_ -= allocation->bytes;
  allocation->tickets.clear();
  return allocation;
}

void ContiguousPool::cache(Allocation* allocation) {
  index(allocation->kind).emplace(allocation->bytes, allocation);
  cached_bytes_ += allocation->bytes;
}

Status ContiguousPool::told(const char* call, Status s) {
  if (!s.ok()) refused_ = std::string(call) + ": " + driver_.describe(s);
  return s;
}

// Makes the driver calls that the allocation still lacks. An earlier build() or take_apart() may
// have been refused halfway.
Status ContiguousPool::build(Allocation& allocation, const std::vector<int>& grants) {
  uint64_t granules = Granules::floor(allocation.bytes).count;
  Status s;
  const bool created = allocation.handle != 0 ||
                       (allocation.kind == GLAKE_CONTIGUOUS_LEGACY && allocation.base != 0);
  if (!created && driver_.creatable(device_) < allocation.bytes) {
    refused_.clear();
    return Status::no_memory();
  }
  if (allocation.kind == GLAKE_CONTIGUOUS_LEGACY) {
    if (allocation.base != 0) return s;
    s = told("cuMemAlloc", driver_.allocate_legacy(allocation.bytes, &allocation.base));
    if (s.ok()) physical_ += granules;
    return s;
  }
  if (allocation.base == 0) {
    s = told("cuMemAddressReserve", driver_.reserve(allocation.bytes, &allocation.base));
  }
  if (!s.ok()) {
    allocation.base = 0;
    return s;
  }
  if (allocation.handle == 0) {
    s = told("cuMemCreate", driver_.create(device_, &allocation.handle, allocation.bytes));
    if (!s.ok()) {
      allocation.handle = 0;
      return s;
    }
    physical_ += granules;
  }
  if (!allocation.mapped)
    s = told("cuMemMap", driver_.map(allocation.base, allocation.handle, allocation.bytes));
  allocation.mapped = s.ok();
  if (!s.ok()) return s;
  return told("cuMemSetAccess", driver_.set_access(allocation.base, allocation.bytes, grants));
}

Status ContiguousPool::take_apart(Allocation& allocation) {
  uint64_t granules = Granules::floor(allocation.bytes).count;
  Status s;
  if (allocation.kind == GLAKE_CONTIGUOUS_LEGACY) {
    if (allocation.base == 0) return s;
    s = refusals_.note("cuMemFree", driver_.free_legacy(allocation.base));
    if (!s.ok()) return s;
    physical_ -= granules;
    allocation.base = 0;
    return s;
  }
  if (allocation.mapped) {
    s = refusals_.note("cuMemUnmap", driver_.unmap(allocation.base, allocation.bytes));
    if (!s.ok()) return s;
    allocation.mapped = false;
  }
  if (allocation.handle != 0) {
    s = refusals_.note("cuMemRelease", driver_.release(allocation.handle));
    if (!s.ok()) return s;
    allocation.handle = 0;
    physical_ -= granules;
  }
  if (allocation.base != 0) {
    s = refusals_.note("cuMemAddressFree", driver_.free_range(allocation.base, allocation.bytes));
  }
  if (s.ok()) allocation.base = 0;
  return s;
}

std::vector<std::unique_ptr<Allocation>>::const_iterator ContiguousPool::find_owed(
    int kind, Bytes bytes) const {
  return std::find_if(owed_.begin(), owed_.end(), [=](const std::unique_ptr<Allocation>& c) {
    return c->kind == kind && c->bytes == bytes && physical_of(*c) != 0;
  });
}

Bytes ContiguousPool::owed_addresses() const {
  Bytes all = 0;
  for (const std::unique_ptr<Allocation>& c : owed_) all += physical_of(*c) == 0 ? c->bytes : 0;
  return all;
}

Bytes ContiguousPool::cached_pinned_bytes() const {
  Bytes all = 0;
  for (const Allocation* allocation : cached())
    all += allocation->pins != 0 ? allocation->bytes : 0;
  return all;
}

Bytes ContiguousPool::largest_kept(int kind, StreamId stream, StreamClock& clock) const {
  Bytes largest = 0;
  for (const auto& [bytes, allocation] : cached_[number(kind)]) {
    const std::vector<Ticket>& past = allocation->tickets;
    const bool has = std::all_of(past.begin(), past.end(), [&](Ticket t) {
      return clock.ordered(stream, t) || clock.can_wait(stream, t);
    });
    if (has) largest = bytes;
  }
  for (const std::unique_ptr<Allocation>& c : owed_) {
    if (c->kind == kind && physical_of(*c) != 0) largest = std::max(largest, c->bytes);
  }
  return largest;
}

Status ContiguousPool::make(int kind, Bytes bytes, const std::vector<int>& grants,
                            std::unique_ptr<Allocation>* made) {
  std::unique_ptr<Allocation> allocation;
  auto owed = find_owed(kind, bytes);
  if (owed != owed_.end()) {
    size_t at = static_cast<size_t>(owed - owed_.begin());
    allocation = std::move(owed_[at]);
    owed_.erase(owed_.begin() + static_cast<std::ptrdiff_t>(at));
    owed_physical_ -= physical_of(*allocation);
  } else {
    allocation = std::make_unique<Allocation>();
    allocation->kind = kind;
    allocation->bytes = bytes;
  }
  Status s = build(*allocation, grants);
  if (s.ok()) {
    *made = std::move(allocation);
  } else {
    unmake(std::move(allocation));
  }
  return s;
}

Granules ContiguousPool::probe(int kind, Granules most, const std::vector<int>& grants) {
  Granules gives{0};
  for (Granules next = most; gives < most; next = {most.count - (most - gives).count / 2}) {
    std::unique_ptr<Allocation> allocation;
    const Granules before = owed();
    if (make(kind, next.bytes(), grants, &allocation).ok()) {
      gives = next;
      if (!unmake(std::move(allocation)))
        break;  // now it is owed, and a request of this size takes it
    } else if (before < owed()) {
      break;  // the driver took nothing back: more tries would exceed the limit
    } else {
      most = next - Granules{1};
    }
  }
  return gives;
}

void ContiguousPool::add(std::unique_ptr<Allocation> allocation) {
  ContiguousIndex::add(allocation.get());
  allocations_.push_back(std::move(allocation));
}

std::unique_ptr<Allocation> ContiguousPool::remove(Allocation* allocation) {
  Index& all = index(allocation->kind);
  for (auto [it, end] = all.equal_range(allocation->bytes); it != end; ++it) {
    if (it->second != allocation) continue;
    all.erase(it);
    cached_bytes_ -= allocation->bytes;
    break;
  }
  ContiguousIndex::remove(allocation);
  auto mine = [allocation](const std::unique_ptr<Allocation>& c) { return c.get() == allocation; };
  auto found = std::find_if(allocations_.begin(), allocations_.end(), mine);
  std::unique_ptr<Allocation> owner = std::move(*found);
  allocations_.erase(found);
  return owner;
}

bool ContiguousPool::unmake(std::unique_ptr<Allocation> allocation) {
  if (take_apart(*allocation).ok()) return true;
  owed_physical_ += physical_of(*allocation);
  owed_.push_back(std::move(allocation));
  return false;
}

bool ContiguousPool::settle() {
  auto paid = [this](const std::unique_ptr<Allocation>& allocation) {
    uint64_t before = physical_of(*allocation);
    bool done = take_apart(*allocation).ok();
    owed_physical_ -= before - physical_of(*allocation);
    return done;
  };
  owed_.erase(std::remove_if(owed_.begin(), owed_.end(), paid), owed_.end());
  return owed_.empty();
}

std::vector<Allocation*> ContiguousPool::cached() const {
  std::vector<Allocation*> all;
  for (const Index& index : cached_) {
    for (const auto& [bytes, allocation] : index) all.push_back(allocation);
  }
  return all;
}

}  // namespace glake
