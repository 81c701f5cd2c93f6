#include "applier.h"

#include <utility>

namespace simcuda {

// Returns the work that can be applied first, out of the targets and all that must precede them.
std::vector<OpPtr> Applier::close(const std::vector<OpPtr>& targets, uint64_t mark) const {
  std::vector<OpPtr> closure, ready;
  const auto visit = [&](const OpPtr& op) {
    if (op->applied || op->mark == mark) return;
    op->mark = mark;
    closure.push_back(op);
  };
  for (const OpPtr& op : targets) visit(op);
  for (size_t i = 0; i < closure.size(); ++i) {
    Op* const op = closure[i].get();
    for (const OpPtr& dep : op->deps) visit(dep);
    if (op->unapplied_deps == 0) ready.push_back(closure[i]);
  }
  return ready;
}

// Any order that keeps dependencies is legal; the seed picks one.
OpPtr Applier::pick(std::vector<OpPtr>* ready) {
  const size_t at = static_cast<size_t>(random_() % ready->size());
  const OpPtr op = (*ready)[at];
  (*ready)[at] = ready->back();
  ready->pop_back();
  return op;
}

void Applier::run(Lock* lock, const OpPtr& op) {
  switch (effects_->judge(op.get())) {
    case Effects::Verdict::kFaulty:
      break;  // it writes nothing
    case Effects::Verdict::kIllegal:
      error_ = CUDA_ERROR_ILLEGAL_ADDRESS;
      break;
    case Effects::Verdict::kRuns:
      if (!is_function(*op)) {
        effects_->perform(op.get());
        break;
      }
      turns_->run_function(true);
      lock->unlock();
      const CUresult result = call_function(*op);
      lock->lock();
      turns_->run_function(false);
      if (result != CUDA_SUCCESS) error_ = result;
  }
}

CUresult Applier::apply(Lock* lock, const std::vector<OpPtr>& targets) {
  over_.wait(*lock, [&] { return !applying_ || stopping_; });
  if (stopping_) return CUDA_ERROR_DEINITIALIZED;
  const uint64_t mark = ++marks_;
  std::vector<OpPtr> ready = close(targets, mark);
  applying_ = true;
  while (!ready.empty()) {
    const OpPtr op = pick(&ready);
    run(lock, op);
    const std::vector<OpPtr> dependents = op->dependents;
    effects_->conclude(*op);
    pending_->remove(op);
    for (const OpPtr& next : dependents) {
      if (next->mark == mark && next->unapplied_deps == 0) ready.push_back(next);
    }
  }
  applying_ = false;
  over_.notify_all();
  const CUresult result = std::exchange(error_, CUDA_SUCCESS);
  if (result == CUDA_SUCCESS) return result;
  return fail(result, result == CUDA_ERROR_ILLEGAL_ADDRESS
                          ? "stream work touched memory it may not: see simcuda_violations"
                          : "a computed kernel failed");
}

void Applier::apply_unasked(Lock* lock, const std::vector<OpPtr>& targets) {
  if (targets.empty()) return;
  const CUresult result = apply(lock, targets);
  if (result != CUDA_SUCCESS) error_ = result;
}

void Applier::apply_timed(Lock* lock) { apply_unasked(lock, pending_->timed()); }

void Applier::stop() {
  stopping_ = true;
  over_.notify_all();
}

}  // namespace simcuda
