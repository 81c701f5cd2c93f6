// The books of the calls: how many were made, what they would have cost, which of them are told to
// fail or to sleep, and the list of violations.
#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/option_kinds.h"
#include "symbols.h"
#include "types.h"

namespace simcuda {

// Microseconds of a call: for a mapping of one 2 MiB page, for each further page of a mapping, and
// for the first page of each further mapping. The last one matters only to calls over ranges.
struct CallCost {
  int symbol;
  double first_us, further_us, mapping_us;
};

CallCost published_cost(int symbol);

class Books {
 public:
  Books();

  // Counts a call over one mapping of `pages` 2 MiB pages, sleeps if told to, and returns the
  // injected failure if one is due for this call. Takes no lock unless a fault or a delay is armed.
  CUresult enter(Symbol symbol, uint64_t pages) {
    Entry& entry = entries_[static_cast<unsigned>(symbol)];
    entry.calls.fetch_add(1, std::memory_order_relaxed);
    const uint64_t further = pages > 1 ? pages - 1 : 0;
    const int64_t cost =
        entry.first_ns.load(std::memory_order_relaxed) +
        static_cast<int64_t>(further) * entry.further_ns.load(std::memory_order_relaxed);
    if (cost != 0) entry.cost_ns.fetch_add(cost, std::memory_order_relaxed);
    if (further != 0) entry.further_pages.fetch_add(further, std::memory_order_relaxed);
    if (!special_.load(std::memory_order_acquire)) return CUDA_SUCCESS;
    return special(symbol);
  }

  // Adds the cost of further pages, for calls that learn their size only later.
  void charge_pages(Symbol symbol, uint64_t pages) {
    Entry& entry = entries_[static_cast<unsigned>(symbol)];
    if (pages <= 1) return;
    entry.cost_ns += static_cast<int64_t>(pages - 1) * entry.further_ns;
    entry.further_pages += pages - 1;
  }

  // Charges some of the further pages as the first pages of further mappings. It is for calls over
  // ranges, which learn only later how many mappings there are.
  void charge_mappings(Symbol symbol, uint64_t mappings) {
    Entry& entry = entries_[static_cast<unsigned>(symbol)];
    if (mappings <= 1) return;
    entry.cost_ns += static_cast<int64_t>(mappings - 1) * (entry.mapping_ns - entry.further_ns);
    entry.further_mappings += mappings - 1;
  }

  // Sets the costs of calls: of the first page, of each further page (default 0) and of each
  // further mapping (default: as a further page). If there is no such call, returns false and sets
  // nothing.
  bool configure_costs(const std::vector<glake::CallTime>& costs);
  // Replaces the published table by these, except for costs that configure_costs() has set.
  void use_costs(const std::vector<CallCost>& costs);
  CallCost price(int symbol) const;
  bool configure_delays(const std::vector<glake::CallTime>& delays);  // false: no such call
  int arm(const char* symbol, int64_t k, int code, int64_t times);
  int64_t calls(const char* symbol) const;  // -1: no such symbol
  double cost_us(const char* symbol) const;
  int64_t further_pages(const char* symbol) const;     // -1: no such symbol
  int64_t further_mappings(const char* symbol) const;  // -1: no such symbol
  void reset_calls();
  void reset();

  void violation(const std::string& kind, const std::string& detail, uint64_t time_ns);
  std::string violations_json(bool clear);

 private:
  struct Entry {
    std::atomic<int64_t> calls{0}, cost_ns{0};
    std::atomic<uint64_t> further_pages{0}, further_mappings{0};  // beyond the first of each call
    std::atomic<int64_t> first_ns{0}, further_ns{0}, mapping_ns{0}, delay_us{0};
    std::atomic<bool> given{false};  // configure_costs() has set its cost
    void set(const CallCost& cost);
  };
  struct Fault {
    int symbol;  // -1: every call
    int64_t countdown, times;
    CUresult code;
  };
  struct Violation {
    std::string kind, detail;
    uint64_t time_ns;
  };

  CUresult special(Symbol symbol);
  CUresult due_fault(Symbol symbol);
  void refresh_special();

  std::array<Entry, kSymbols> entries_;
  std::atomic<bool> special_{false};  // a fault or a delay is armed somewhere
  std::mutex mutex_;
  std::vector<Fault> faults_;
  std::vector<Violation> violations_;
};

Books& books();
const char* symbol_name(Symbol symbol);
int find_symbol(std::string_view name);  // base or exported name; -1: none
std::string json_quote(const std::string& text);

}  // namespace simcuda
