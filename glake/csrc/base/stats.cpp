#include "base/stats.h"

namespace glake {
namespace {

void merge_one(Stat& s, int64_t added, int64_t removed, int64_t highest) {
  s.peak = std::max(s.peak, s.current + highest);
  s.allocated += added;
  s.freed += removed;
  s.current += added - removed;
  s.peak = std::max(s.peak, s.current);
}

void merge_pool(PoolStat& s, bool small, int64_t added, int64_t removed, int64_t highest) {
  merge_one(s.all, added, removed, highest);
  merge_one(small ? s.small : s.large, added, removed, highest);
}

}  // namespace

void Stats::merge(bool small, const StatDelta& d) {
  for (PoolStat* count : {&allocation, &active}) {
    merge_pool(*count, small, d.allocations, d.frees, d.highest_count);
  }
  for (PoolStat* sum : {&allocated_bytes, &active_bytes}) {
    merge_pool(*sum, small, d.bytes_allocated, d.bytes_freed, d.highest_bytes);
  }
  merge_pool(requested_bytes, small, d.requested_allocated, d.requested_freed, d.highest_requested);
}

void Stats::reset_peaks() {
  for (PoolStat* s : all()) s->reset_peak();
}

void Stats::reset_accumulated() {
  for (PoolStat* s : all()) s->reset_accumulated();
  alloc_retries = ooms = device_syncs = 0;
}

void append_number(std::string& json, const std::string& key, int64_t value) {
  json += json.size() > 1 ? ", \"" : "\"";
  json += key;
  json += "\": ";
  json += std::to_string(value);
}

void append_stat(std::string& json, const std::string& name, const PoolStat& stat) {
  auto one = [&](const char* pool, const Stat& s) {
    append_number(json, name + "." + pool + ".current", s.current);
    append_number(json, name + "." + pool + ".peak", s.peak);
    append_number(json, name + "." + pool + ".allocated", s.allocated);
    append_number(json, name + "." + pool + ".freed", s.freed);
  };
  one("all", stat.all);
  one("small_pool", stat.small);
  one("large_pool", stat.large);
}

}  // namespace glake
