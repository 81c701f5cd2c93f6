#include "intercept/account.h"

#include <unistd.h>

#include <cerrno>

#include "base/json_text.h"
#include "base/numbers.h"

namespace glake::intercept {
namespace {

constexpr const char* kWords[] = {
#define X(name, text) text,
    INTERCEPT_REASONS(X)
#undef X
};

std::string counted_bytes(uint64_t copies, uint64_t bytes) {
  return std::to_string(copies) + (copies == 1 ? " copy, " : " copies, ") + size_text(bytes);
}

}  // namespace

void Account::left(Reason reason, uint64_t bytes) {
  std::lock_guard<std::mutex> guard(mutex_);
  Count& count = left_[static_cast<int>(reason)];
  ++count.copies;
  count.bytes += bytes;
}

void Account::carried(uint64_t bytes) {
  std::lock_guard<std::mutex> guard(mutex_);
  ++carried_.copies;
  carried_.bytes += bytes;
}

void Account::ended(const std::map<std::string, uint64_t>& bytes_by_path, bool relayed) {
  std::lock_guard<std::mutex> guard(mutex_);
  for (const auto& [name, bytes] : bytes_by_path) paths_[name] += bytes;
  relayed_ += relayed ? 1 : 0;
}

void Account::failed() {
  std::lock_guard<std::mutex> guard(mutex_);
  ++failed_;
}

bool Account::empty() {
  std::lock_guard<std::mutex> guard(mutex_);
  uint64_t all = carried_.copies;
  for (const Count& count : left_) all += count.copies;
  return all == 0;
}

std::string Account::json() {
  std::lock_guard<std::mutex> guard(mutex_);
  const auto number = [](uint64_t value) { return static_cast<double>(value); };
  JsonText carried, paths, left, out;
  carried.number("copies", number(carried_.copies)).number("bytes", number(carried_.bytes));
  carried.number("relayed", number(relayed_)).number("failed", number(failed_));
  for (const auto& [name, bytes] : paths_) paths.number(name.c_str(), number(bytes));
  for (int i = 0; i < static_cast<int>(Reason::kCount); ++i) {
    if (left_[i].copies == 0) continue;
    JsonText one;
    one.number("copies", number(left_[i].copies)).number("bytes", number(left_[i].bytes));
    left.raw(kWords[i], one.done());
  }
  out.text("program", program_invocation_name).number("pid", getpid());
  out.raw("carried", carried.done()).raw("paths", paths.done()).raw("driver", left.done());
  return out.done();
}

std::string Account::text() {
  std::lock_guard<std::mutex> guard(mutex_);
  std::string out = "glake: intercept: " + std::string(program_invocation_short_name) + " (pid " +
                    std::to_string(getpid()) + ") carried " +
                    counted_bytes(carried_.copies, carried_.bytes) + ", " +
                    std::to_string(relayed_) + " of them over relays";
  if (failed_ != 0) out += ", " + std::to_string(failed_) + " FAILED";
  out += "\n";
  for (const auto& [name, bytes] : paths_) out += "  over " + name + ": " + size_text(bytes) + "\n";
  for (int i = 0; i < static_cast<int>(Reason::kCount); ++i) {
    if (left_[i].copies == 0) continue;
    out += "  left to the driver, " + std::string(kWords[i]) + ": " +
           counted_bytes(left_[i].copies, left_[i].bytes) + "\n";
  }
  return out;
}

void Account::clear() {
  for (Count& count : left_) count = {};
  carried_ = {};
  failed_ = relayed_ = 0;
  paths_.clear();
}

}  // namespace glake::intercept
