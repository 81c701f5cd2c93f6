#include "transfer/run/cutting.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <utility>

namespace glake::transfer {
namespace {

constexpr double kSliver = 0.15;  // a shorter rest is not worth a chunk; a guess

using CutPtr = std::shared_ptr<const Cut>;

// How many numbers that stand for all near them there are from one to its double: with kCoarse such
// a number is within 4.5 per cent, with kFine within 2.2.
constexpr double kCoarse = 8, kFine = 16;

// Cuts that were found, because copies of a kind come again and again, and one copy has many paths
// that are alike. What a cut depends on is rounded, so that it does not depend on who asked first.
class KnownCuts {
 public:
  CutPtr of(const Path& path, const CutTerms& terms, double bytes) {
    CutTerms meant = terms;
    const double most = std::min(most_chunks(bytes), terms.most);
    Key key{static_cast<int>(terms.copy_ns), may_join(path, terms) ? 1 : 0,
            terms.by_engines ? 1 : 0, static_cast<int>(terms.flows), terms.in_rows ? 1 : 0};
    const auto round = [&](double value, double* to, double steps = kFine) {
      key.push_back(static_cast<int>(std::lround(std::log2(std::max(value, 1e-9)) * steps)));
      *to = value > 0 ? std::exp2(key.back() / steps) : 0;
    };
    // The best number of chunks changes slowly with the bytes.
    round(bytes, &bytes, kCoarse);
    round(most, &meant.most, kCoarse);
    round(terms.blocked, &meant.blocked);
    round(terms.piece, &meant.piece);
    round(terms.times, &meant.times);
    round(terms.crowd, &meant.crowd);
    for (size_t i = 0; i < path.hops.size(); ++i) {
      const bool host = path.hops[i].from.host() || path.hops[i].to.host();
      key.push_back(host ? 1 : 0);
      round(terms.paces[i], &meant.paces[i]);
    }
    {
      std::lock_guard<std::mutex> guard(mutex_);
      const auto found = known_.find(key);
      if (found != known_.end()) return found->second;
    }
    auto cut = std::make_shared<const Cut>(best_cut(path, meant, bytes));
    std::lock_guard<std::mutex> guard(mutex_);
    if (known_.size() >= TransferTuning::kCutsKnown) known_.clear();
    return known_.emplace(std::move(key), std::move(cut)).first->second;
  }

 private:
  using Key = std::vector<int>;
  std::mutex mutex_;
  std::map<Key, CutPtr> known_;
};

CutPtr direct_cut(double bytes, size_t flows, uint64_t copy_ns) {
  Cut cut;
  const auto all = static_cast<double>(flows);
  // With two flows a third chunk hides the start of the others.
  const bool short_first = flows == 2;
  const double chunks = short_first ? 2.5 : all;
  if (bytes >= all * static_cast<double>(TransferTuning::kLeastChunk)) {
    for (double end = short_first ? 0.5 : 1; end < chunks; ++end) cut.ends.push_back(end / chunks);
  }
  cut.ends.push_back(1);
  cut.streams.count = flows;
  cut.delay_ns = static_cast<double>(copy_ns);
  return std::make_shared<const Cut>(std::move(cut));
}

// Never destroyed, because threads may still copy while the process ends.
CutPtr cut_of(const Path& path, const CutTerms& terms, double bytes) {
  static auto* const known = new KnownCuts;
  if (path.hops.size() == 1) return direct_cut(bytes, terms.flows, terms.copy_ns);
  return known->of(path, terms, bytes);
}

}  // namespace

Cutting::Cutting(const Path& path, const CutTerms& terms, double bytes)
    : bytes_(bytes), cut_(cut_of(path, terms, bytes)) {}

Bytes Cutting::next(Bytes done, Bytes left, Bytes range) const {
  const auto rest = static_cast<double>(left);
  const std::vector<double>& ends = cut_->ends;
  const double at = static_cast<double>(done) / bytes_;
  const auto length_of = [&](size_t i) { return ends[i] - (i == 0 ? 0 : ends[i - 1]); };
  auto i = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), at) - ends.begin());
  if (i < ends.size() && ends[i] - at <= kSliver * length_of(i)) ++i;
  const double length = bytes_ * length_of(std::min(i, ends.size() - 1));
  double size = std::min(length, static_cast<double>(range));
  const bool fits = cut_->longest <= 0 || rest <= cut_->longest;
  if (fits && rest - size < kSliver * length) size = std::min(rest, static_cast<double>(range));
  return std::min(round_up(static_cast<Bytes>(size) + 1, 4 * kKiB), left);
}

}  // namespace glake::transfer
