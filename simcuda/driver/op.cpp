#include "op.h"

#include <algorithm>

namespace simcuda {

bool writes_word(const Op& op, const Op& word) {
  const auto meets = [&](const Op::Side& side, size_t span) {
    return side.address < word.dst.address + word.width && word.dst.address < side.address + span;
  };
  if (op.kind != Op::Kind::kCopy && op.kind != Op::Kind::kMemset &&
      op.kind != Op::Kind::kWriteValue) {
    return false;
  }
  if (op.parts.empty()) return meets(op.dst, op.dst.pitch * (op.rows - 1) + op.bytes);
  return std::any_of(op.parts.begin(), op.parts.end(),
                     [&](const Op::Part& part) { return meets(part.dst, part.bytes); });
}

bool touches(const Op& op, uint64_t address, size_t bytes) {
  const auto overlaps = [&](const Op::Side& side, size_t span) {
    return !side.host && side.address < address + bytes && address < side.address + span;
  };
  if (!op.parts.empty()) {
    return std::any_of(op.parts.begin(), op.parts.end(), [&](const Op::Part& part) {
      return overlaps(part.dst, part.bytes) || overlaps(part.src, part.bytes);
    });
  }
  if (op.kind == Op::Kind::kCompute) {
    return std::any_of(op.touched.begin(), op.touched.end(), [&](const Op::Touched& each) {
      return overlaps({each.address}, each.bytes);
    });
  }
  return overlaps(op.dst, op.dst.pitch * (op.rows - 1) + op.bytes) ||
         (op.kind == Op::Kind::kCopy && overlaps(op.src, op.src.pitch * (op.rows - 1) + op.bytes));
}

void depend(const OpPtr& op, const OpPtr& dep) {
  if (dep == nullptr || dep->applied) return;
  if (std::find(op->deps.begin(), op->deps.end(), dep) != op->deps.end()) return;
  op->deps.push_back(dep);
  dep->dependents.push_back(op);
  ++op->unapplied_deps;
  if (!dep->timed) ++op->untimed_deps;
}

CUresult tell_faults(const std::vector<OpPtr>& copies, bool again) {
  CUresult found = CUDA_SUCCESS;
  for (const OpPtr& op : copies) {
    if (op->fault == CUDA_SUCCESS || !op->applied || (op->told && !again)) continue;
    op->told = true;
    if (found == CUDA_SUCCESS) found = op->fault;
  }
  if (found == CUDA_SUCCESS) return found;
  return fail(found, "a copy ended with this error because of simcuda_fail_copy or a dead link");
}

}  // namespace simcuda
