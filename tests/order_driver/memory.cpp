#include "memory.h"

#include <cstdio>

namespace order {
namespace {

std::string hex(uint64_t value) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

std::string range_text(uint64_t at, uint64_t bytes) {
  return "[" + hex(at) + ", + " + std::to_string(bytes) + ")";
}

bool overlap(uint64_t begin, uint64_t end, uint64_t other_begin, uint64_t other_end) {
  return begin < other_end && other_begin < end;
}

}  // namespace

void Memory::note(const std::string& what) {
  if (++found_ <= 8) text_ += what + "\n";
}

uint64_t Memory::reserve(uint64_t bytes) {
  if (bytes == 0 || bytes % kGranule != 0) return 0;
  const uint64_t base = next_address_;
  next_address_ += bytes + kGranule;  // a gap, so that no range continues another one
  ranges_[base] = bytes;
  return base;
}

bool Memory::free_range(uint64_t base, uint64_t bytes) {
  const auto range = ranges_.find(base);
  if (range == ranges_.end() || range->second != bytes) {
    note("freed addresses that were not reserved so: " + range_text(base, bytes));
    return false;
  }
  const auto inside = mappings_.lower_bound(base);
  if (inside != mappings_.end() && inside->first < base + bytes) {
    note("freed addresses with something mapped: " + range_text(base, bytes));
    return false;
  }
  ranges_.erase(range);
  return true;
}

uint64_t Memory::create(uint64_t bytes) {
  const uint64_t granules = bytes / kGranule;
  if (bytes == 0 || bytes % kGranule != 0 || granules > granules_ - created_) return 0;
  created_ += granules;
  handles_[next_handle_].bytes = bytes;
  return next_handle_++;
}

bool Memory::release(uint64_t handle) {
  const auto found = handles_.find(handle);
  if (found == handles_.end() || found->second.released) {
    note("released a handle twice: " + std::to_string(handle));
    return false;
  }
  found->second.released = true;
  drop_if_unused(handle);
  return true;
}

void Memory::drop_if_unused(uint64_t handle) {
  const auto found = handles_.find(handle);
  if (!found->second.released || found->second.mappings != 0) return;
  created_ -= found->second.bytes / kGranule;
  handles_.erase(found);
}

bool Memory::reserved(uint64_t at, uint64_t bytes) const {
  auto range = ranges_.upper_bound(at);
  if (range == ranges_.begin()) return false;
  --range;
  return at + bytes <= range->first + range->second;
}

// CUDA maps a handle only from its start, and does not promise that a part of it can be mapped.
bool Memory::map(uint64_t at, uint64_t bytes, uint64_t offset, uint64_t handle) {
  const auto found = handles_.find(handle);
  const auto next = mappings_.lower_bound(at);
  const bool taken = next != mappings_.end() && next->first < at + bytes;
  if (found == handles_.end() || found->second.released || offset != 0 ||
      bytes != found->second.bytes || at % kGranule != 0 || !reserved(at, bytes) || taken) {
    note("mapped what cannot be: " + range_text(at, bytes) + ", handle " + std::to_string(handle));
    return false;
  }
  ++found->second.mappings;
  mappings_[at] = {bytes, handle, false};
  return true;
}

bool Memory::set_access(uint64_t at, uint64_t bytes) {
  for (uint64_t a = at; a < at + bytes;) {
    const auto mapping = mappings_.find(a);
    if (mapping == mappings_.end() || a + mapping->second.bytes > at + bytes) {
      note("set access where nothing is mapped: " + range_text(at, bytes));
      return false;
    }
    mapping->second.accessible = true;
    a += mapping->second.bytes;
  }
  return true;
}

bool Memory::unmap(uint64_t at, uint64_t bytes) {
  for (uint64_t a = at; a < at + bytes;) {
    const auto mapping = mappings_.find(a);
    if (mapping == mappings_.end() || a + mapping->second.bytes > at + bytes) {
      note("unmapped what is not mapped so: " + range_text(at, bytes));
      return false;
    }
    HandleState& handle = handles_.at(mapping->second.handle);
    for (const auto& [block, part] : handle.live) {
      if (part.through == a) note("unmapped under live block " + std::to_string(block));
    }
    for (const Use& use : handle.uses) {
      if (use.through == a && !streams_.host().covers(use.last)) {
        note("unmapped " + hex(a) + " under unfinished work of block " + std::to_string(use.block) +
             " on stream " + std::to_string(use.last.stream));
      }
    }
    --handle.mappings;
    const uint64_t length = mapping->second.bytes, number = mapping->second.handle;
    mappings_.erase(mapping);
    drop_if_unused(number);
    a += length;
  }
  return true;
}

template <typename Visit>
void Memory::each_part(uint64_t ptr, uint64_t bytes, const std::string& who, Visit&& visit) {
  for (uint64_t a = ptr; a < ptr + bytes;) {
    auto mapping = mappings_.upper_bound(a);
    if (mapping != mappings_.begin()) --mapping;
    const bool there = mapping != mappings_.end() && mapping->first <= a &&
                       a < mapping->first + mapping->second.bytes;
    if (!there || !mapping->second.accessible) {
      note(who + " at " + hex(a) + ", where nothing is accessible");
      return;
    }
    const uint64_t end = std::min(ptr + bytes, mapping->first + mapping->second.bytes);
    visit(mapping->second.handle, Part{a - mapping->first, end - mapping->first, mapping->first});
    a = end;
  }
}

void Memory::got(uint64_t block, uint64_t ptr, uint64_t bytes) {
  const std::string who = "block " + std::to_string(block);
  each_part(ptr, bytes, who, [&](uint64_t number, const Part& part) {
    HandleState& handle = handles_.at(number);
    for (const auto& [other, theirs] : handle.live) {
      if (other == block) {
        note(who + " has handle " + std::to_string(number) + " twice");
      } else if (overlap(part.begin, part.end, theirs.begin, theirs.end)) {
        note(who + " lies on live block " + std::to_string(other) + ", in handle " +
             std::to_string(number));
      }
    }
    handle.live[block] = part;
    handles_of_[block].push_back(number);
  });
}

void Memory::use(uint64_t block, uint64_t ptr, uint64_t bytes, size_t stream) {
  const Tick tick = streams_.enqueue(stream);
  const VectorClock& now = streams_.now(stream);
  const std::string who = "work of block " + std::to_string(block);
  each_part(ptr, bytes, who, [&](uint64_t number, const Part& part) {
    HandleState& handle = handles_.at(number);
    Use* mine = nullptr;
    for (Use& use : handle.uses) {
      if (use.block == block) {
        if (use.last.stream == stream && use.through == part.through) mine = &use;
      } else if (overlap(part.begin, part.end, use.begin, use.end)) {
        if (!now.covers(use.last)) {
          note(who + " on stream " + std::to_string(stream) + " beside that of block " +
               std::to_string(use.block) + " on stream " + std::to_string(use.last.stream) +
               ", in handle " + std::to_string(number));
        } else if (use.last.stream != stream && !streams_.host().covers(use.last)) {
          ++crossings_;
        }
      }
    }
    if (mine != nullptr) {
      mine->begin = std::min(mine->begin, part.begin);
      mine->end = std::max(mine->end, part.end);
      mine->last = tick;
      return;
    }
    forget_finished(handle);
    handle.uses.push_back({block, part.begin, part.end, part.through, tick});
  });
}

void Memory::forget_finished(HandleState& handle) {
  const auto finished = [this](const Use& use) { return streams_.host().covers(use.last); };
  handle.uses.erase(std::remove_if(handle.uses.begin(), handle.uses.end(), finished),
                    handle.uses.end());
}

void Memory::gone(uint64_t block) {
  for (uint64_t number : handles_of_[block]) {
    const auto handle = handles_.find(number);
    if (handle != handles_.end()) handle->second.live.erase(block);
  }
  handles_of_.erase(block);
}

}  // namespace order
