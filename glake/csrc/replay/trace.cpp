#include "trace.h"

#include <algorithm>
#include <map>
#include <utility>

namespace glake::replay {

uint32_t TraceBuilder::tag_number(std::string_view tag) {
  if (tag.empty()) return 0;
  const auto [found, fresh] =
      tag_numbers_.emplace(std::string(tag), static_cast<uint32_t>(trace_.tags.size()));
  if (fresh) trace_.tags.push_back(found->first);
  return found->second;
}

void TraceBuilder::fact(std::string_view key, std::string_view value) {
  trace_.header.emplace_back(std::string(key), std::string(value));
}

void TraceBuilder::event(const ParsedEvent& event) {
  Event kept{event.bytes, event.index, event.stream, event.op, 0};
  switch (event.op) {
    case Op::kAlloc:
      if (event.index >= tag_of_index_.size()) tag_of_index_.resize(event.index + size_t{1});
      kept.tag = tag_of_index_[event.index] = tag_number(event.tag);
      trace_.indices = std::max(trace_.indices, event.index + 1);
      ++trace_.allocations;
      trace_.end_live_bytes += event.bytes;
      if (trace_.end_live_bytes > trace_.peak_live_bytes) {
        trace_.peak_live_bytes = trace_.end_live_bytes;
        trace_.peak_live_event = trace_.events.size();
      }
      break;
    case Op::kFree:
      kept.tag = tag_of_index_[event.index];
      ++trace_.frees;
      trace_.end_live_bytes -= event.bytes;
      break;
    case Op::kRecordStream:
      kept.value = 0;
      break;
    case Op::kStep:
      kept.value = event.id;
      ++trace_.steps;
      break;
  }
  trace_.events.push_back(kept);
}

namespace {

// The tags that hold a block, the largest holder first. `by_tag` has an entry for each tag, in the
// order of Trace::tags.
std::vector<Holder> largest_first(std::vector<Holder> by_tag) {
  std::vector<Holder> holding;
  for (uint32_t tag = 0; tag < by_tag.size(); ++tag) {
    by_tag[tag].tag = tag;
    if (by_tag[tag].blocks > 0) holding.push_back(by_tag[tag]);
  }
  std::stable_sort(holding.begin(), holding.end(),
                   [](const Holder& a, const Holder& b) { return a.bytes > b.bytes; });
  return holding;
}

}  // namespace

std::vector<Holder> Trace::holders_after(uint64_t count) const {
  std::vector<Holder> by_tag(tags.size());
  for (uint64_t i = 0; i < std::min<uint64_t>(count, events.size()); ++i) {
    const Event& event = events[i];
    Holder& holder = by_tag[event.tag];
    if (event.op == Op::kAlloc) {
      holder.bytes += event.value;
      ++holder.blocks;
    } else if (event.op == Op::kFree) {
      holder.bytes -= event.value;
      --holder.blocks;
    }
  }
  return largest_first(std::move(by_tag));
}

std::vector<Holder> Trace::lasting_after(uint64_t count) const {
  const uint64_t end = std::min<uint64_t>(count, events.size());
  // For each index, the place in the trace where its live block was allocated, counted from 1; 0:
  // no such block.
  std::vector<uint64_t> allocated_at(indices, 0);
  uint64_t step_began_at = 0;
  for (uint64_t i = 0; i < end; ++i) {
    if (events[i].op == Op::kAlloc) allocated_at[events[i].index] = i + 1;
    if (events[i].op == Op::kFree) allocated_at[events[i].index] = 0;
    if (events[i].op == Op::kStep) step_began_at = i + 1;
  }
  for (uint64_t i = end; i < events.size() && events[i].op != Op::kStep; ++i) {
    if (events[i].op != Op::kFree) continue;
    uint64_t& at = allocated_at[events[i].index];
    if (at > step_began_at) at = 0;
  }
  std::vector<Holder> by_tag(tags.size());
  for (const uint64_t at : allocated_at) {
    if (at == 0) continue;
    Holder& holder = by_tag[events[at - 1].tag];
    holder.bytes += events[at - 1].value;
    ++holder.blocks;
  }
  return largest_first(std::move(by_tag));
}

std::vector<std::pair<uint64_t, uint64_t>> Trace::live_timeline(size_t points) const {
  std::vector<std::pair<uint64_t, uint64_t>> timeline;
  const size_t most = std::max<size_t>(points, 1);
  const size_t run = std::max<size_t>((events.size() + most - 1) / most, 1);
  uint64_t live = 0;
  for (size_t i = 0; i < events.size(); ++i) {
    if (events[i].op == Op::kAlloc) live += events[i].value;
    if (events[i].op == Op::kFree) live -= events[i].value;
    if (i % run == 0) timeline.emplace_back(i, 0);
    timeline.back().second = std::max(timeline.back().second, live);
  }
  return timeline;
}

std::vector<std::pair<uint64_t, uint64_t>> Trace::sizes() const {
  std::map<uint64_t, uint64_t> counts;
  for (const Event& event : events) {
    if (event.op == Op::kAlloc) ++counts[event.value];
  }
  return {counts.begin(), counts.end()};
}

}  // namespace glake::replay
