// Call counts, modelled cost, injected faults and delays, and the list of violations.
#include "books.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string_view>
#include <thread>
#include <unordered_map>

namespace simcuda {
namespace {

struct Row {
  const char* base;
  const char* exported;
  double first_us, further_us;
};

constexpr Row kRows[] = {
#define X(base, exported, since, first, further) {#base, #exported, first, further},
    SIMCUDA_CALLS(X)
#undef X
};

int64_t nanoseconds(double us) { return static_cast<int64_t>(us * 1000 + 0.5); }

// False for calls whose return code says nothing about the driver. "*" does not make them fail.
bool may_fail(Symbol symbol) {
  return symbol != Symbol::k_cuGetErrorName && symbol != Symbol::k_cuGetErrorString &&
         symbol != Symbol::k_cuGetProcAddress && symbol != Symbol::k_cuDriverGetVersion;
}

bool all_known(const std::vector<glake::CallTime>& times) {
  return std::all_of(times.begin(), times.end(),
                     [](const glake::CallTime& each) { return find_symbol(each.call) >= 0; });
}

}  // namespace

const char* symbol_name(Symbol symbol) { return kRows[static_cast<unsigned>(symbol)].base; }

// Uses a hash table, because a replay asks for counts after every event. If rows have the same
// name, the first one counts. The table is never destroyed, like the books.
int find_symbol(std::string_view name) {
  using Names = std::unordered_map<std::string_view, int>;
  static const Names* const names = [] {
    auto* made = new Names;
    for (unsigned i = 0; i < kSymbols; ++i) {
      made->emplace(kRows[i].base, static_cast<int>(i));
      made->emplace(kRows[i].exported, static_cast<int>(i));
    }
    return made;
  }();
  const auto found = names->find(name);
  return found == names->end() ? -1 : found->second;
}

CallCost published_cost(int symbol) {
  const Row& row = kRows[symbol];
  return {symbol, row.first_us, row.further_us, row.further_us};
}

Books& books() {
  // Never destroyed, because calls may come while the process exits.
  static Books* instance = new Books;
  return *instance;
}

Books::Books() { reset(); }

void Books::reset() {
  for (unsigned i = 0; i < kSymbols; ++i) {
    entries_[i].given = false;
    entries_[i].delay_us = 0;
  }
  use_costs({});
  reset_calls();
  std::lock_guard<std::mutex> lock(mutex_);
  faults_.clear();
  violations_.clear();
  refresh_special();
}

void Books::reset_calls() {
  for (Entry& entry : entries_) {
    entry.calls = entry.cost_ns = 0;
    entry.further_pages = entry.further_mappings = 0;
  }
}

void Books::Entry::set(const CallCost& cost) {
  first_ns = nanoseconds(cost.first_us);
  further_ns = nanoseconds(cost.further_us);
  mapping_ns = nanoseconds(cost.mapping_us);
}

void Books::refresh_special() {
  bool any = !faults_.empty();
  for (const Entry& entry : entries_) any = any || entry.delay_us != 0;
  special_.store(any, std::memory_order_release);
}

CUresult Books::special(Symbol symbol) {
  // The delay simulates a slow driver call. No lock is held meanwhile.
  const int64_t delay = entries_[static_cast<unsigned>(symbol)].delay_us;
  if (delay > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay));
  return due_fault(symbol);
}

CUresult Books::due_fault(Symbol symbol) {
  std::lock_guard<std::mutex> lock(mutex_);
  CUresult due = CUDA_SUCCESS;
  for (size_t i = 0; i < faults_.size();) {
    Fault& fault = faults_[i];
    const bool matches =
        fault.symbol < 0 ? may_fail(symbol) : fault.symbol == static_cast<int>(symbol);
    bool spent = false;
    if (matches && (fault.countdown == 1 || --fault.countdown == 0)) {
      fault.countdown = 1;
      due = fault.code;
      spent = fault.times > 0 && --fault.times == 0;
    }
    if (spent) {
      faults_.erase(faults_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  refresh_special();
  if (due == CUDA_SUCCESS) return due;
  return fail(due, std::string(symbol_name(symbol)) + " was told to fail (simcuda_fail)");
}

int Books::arm(const char* symbol, int64_t k, int code, int64_t times) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (symbol == nullptr) {
    faults_.clear();
    refresh_special();
    return CUDA_SUCCESS;
  }
  const bool all = std::string(symbol) == "*";
  const int index = all ? -1 : find_symbol(symbol);
  if ((!all && index < 0) || k < 1 || times == 0 || times < -1) return CUDA_ERROR_INVALID_VALUE;
  faults_.push_back({index, k, times, static_cast<CUresult>(code)});
  refresh_special();
  return CUDA_SUCCESS;
}

bool Books::configure_costs(const std::vector<glake::CallTime>& costs) {
  if (!all_known(costs)) return false;
  for (const auto& [call, us] : costs) {
    const int symbol = find_symbol(call);
    const double further = us.size() > 1 ? us[1] : 0;
    entries_[symbol].set({symbol, us[0], further, us.size() > 2 ? us[2] : further});
    entries_[symbol].given = true;
  }
  return true;
}

void Books::use_costs(const std::vector<CallCost>& costs) {
  const auto use = [this](const CallCost& cost) {
    Entry& entry = entries_[static_cast<unsigned>(cost.symbol)];
    if (!entry.given) entry.set(cost);
  };
  for (unsigned i = 0; i < kSymbols; ++i) use(published_cost(static_cast<int>(i)));
  for (const CallCost& cost : costs) use(cost);
}

CallCost Books::price(int symbol) const {
  const Entry& entry = entries_[static_cast<unsigned>(symbol)];
  return {symbol, static_cast<double>(entry.first_ns) / 1000,
          static_cast<double>(entry.further_ns) / 1000,
          static_cast<double>(entry.mapping_ns) / 1000};
}

bool Books::configure_delays(const std::vector<glake::CallTime>& delays) {
  if (!all_known(delays)) return false;
  for (const auto& [call, us] : delays) {
    entries_[find_symbol(call)].delay_us = static_cast<int64_t>(us[0]);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  refresh_special();
  return true;
}

int64_t Books::calls(const char* symbol) const {
  if (std::string_view(symbol) == "*") {
    int64_t sum = 0;
    for (const Entry& entry : entries_) sum += entry.calls;
    return sum;
  }
  const int index = find_symbol(symbol);
  return index < 0 ? -1 : entries_[index].calls.load();
}

int64_t Books::further_pages(const char* symbol) const {
  const int index = find_symbol(symbol);
  return index < 0 ? -1 : static_cast<int64_t>(entries_[index].further_pages);
}

int64_t Books::further_mappings(const char* symbol) const {
  const int index = find_symbol(symbol);
  return index < 0 ? -1 : static_cast<int64_t>(entries_[index].further_mappings);
}

double Books::cost_us(const char* symbol) const {
  int64_t sum = 0;
  if (std::string_view(symbol) == "*") {
    for (const Entry& entry : entries_) sum += entry.cost_ns;
  } else {
    const int index = find_symbol(symbol);
    if (index < 0) return -1;
    sum = entries_[index].cost_ns;
  }
  return static_cast<double>(sum) / 1000.0;
}

void Books::violation(const std::string& kind, const std::string& detail, uint64_t time_ns) {
  std::lock_guard<std::mutex> lock(mutex_);
  violations_.push_back({kind, detail, time_ns});
}

std::string Books::violations_json(bool clear) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::string text = "[";
  for (const Violation& v : violations_) {
    if (text.size() > 1) text += ", ";
    text += "{\"kind\": " + json_quote(v.kind) + ", \"detail\": " + json_quote(v.detail) +
            ", \"time_ns\": " + std::to_string(v.time_ns) + "}";
  }
  if (clear) violations_.clear();
  return text + "]";
}

std::string json_quote(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      char buffer[8];
      std::snprintf(buffer, sizeof buffer, "\\u%04x", c);
      out += buffer;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

}  // namespace simcuda
