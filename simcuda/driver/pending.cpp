#include "pending.h"

#include <iterator>
#include <string>

#include "base/numbers.h"
#include "books.h"

namespace simcuda {

void PendingWork::add(const OpPtr& op) {
  op->seq = ++sequence_;
  pending_[op->seq] = op;
  if (op->kind == Op::Kind::kCopy || op->kind == Op::Kind::kMemset ||
      op->kind == Op::Kind::kWriteValue || op->kind == Op::Kind::kCompute) {
    touching_[op->seq] = op.get();
  }
}

void PendingWork::remove(const OpPtr& op) {
  op->applied = true;
  for (const OpPtr& next : op->dependents) --next->unapplied_deps;
  op->deps.clear();
  op->dependents.clear();
  op->keep.reset();
  pending_.erase(op->seq);
  touching_.erase(op->seq);
}

std::vector<OpPtr> PendingWork::all(int device) const {
  std::vector<OpPtr> found;
  for (const auto& [seq, op] : pending_) {
    if (device < 0 || op->device == device) found.push_back(op);
  }
  return found;
}

std::vector<OpPtr> PendingWork::timed(uint64_t last) const {
  std::vector<OpPtr> found;
  for (const auto& [seq, op] : pending_) {
    if (seq > last) break;
    if (op->timed) found.push_back(op);
  }
  return found;
}

OpPtr PendingWork::middle() const {
  return std::next(pending_.begin(), static_cast<std::ptrdiff_t>(pending_.size() / 2))->second;
}

std::vector<OpPtr> PendingWork::writers(const Op& word) const {
  std::vector<OpPtr> found;
  for (const auto& [seq, op] : touching_) {
    if (op->timed && writes_word(*op, word)) found.push_back(pending_.at(seq));
  }
  return found;
}

void PendingWork::check_idle(uint64_t address, size_t bytes, const char* what) const {
  for (const auto& [seq, op] : touching_) {
    if (!touches(*op, address, bytes)) continue;
    books().violation(what,
                      "work " + std::to_string(seq) + " on " + glake::device_text(op->device) +
                          " is pending on [" + std::to_string(address) + ", +" +
                          std::to_string(bytes) + ")",
                      clock_->now_ns());
  }
}

void PendingWork::unlink() {
  for (auto& [seq, op] : pending_) {
    op->deps.clear();
    op->dependents.clear();
  }
}

}  // namespace simcuda
