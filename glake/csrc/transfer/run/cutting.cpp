#include "transfer/run/cutting.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>

#include "base/transfer_tuning.h"
#include "transfer/run/chunk_copier.h"
#include "transfer/run/pipeline_race.h"

namespace glake::transfer {
namespace {

constexpr auto kLeast = static_cast<double>(TransferTuning::kLeastChunk);
constexpr double kFits = 0.97;  // lengths are rounded up, and still have to fit the largest buffer
constexpr double kSliver = 0.15;  // a shorter rest is not worth a chunk; a guess
// Hops whose paces differ by less are equally fast: less than one step of rounded().
constexpr double kSamePace = 1.02;

using CutPtr = std::shared_ptr<const Cutting::Cut>;

// How the lengths of chunks change: each is so many times as long as the one before it up to the
// longest, and so many times shorter behind it.
struct Slopes {
  double rise = 1, fall = 1;
};

// By how much the hops in front of the slow ones and those behind them are faster than these; 1
// where there is none.
Slopes gains_of(const std::vector<Rate>& paces) {
  const Rate slowest = *std::min_element(paces.begin(), paces.end());
  const auto slow = [&](Rate pace) { return pace < kSamePace * slowest; };
  const auto first = std::find_if(paces.begin(), paces.end(), slow);
  const auto last = std::find_if(paces.rbegin(), paces.rend(), slow).base();
  Slopes gains;
  if (first != paces.begin()) gains.rise = *std::min_element(paces.begin(), first) / slowest;
  if (last != paces.end()) gains.fall = *std::min_element(last, paces.end()) / slowest;
  return gains;
}

// The first chunks are shorter, so that those that flow at once do not end together: the first of
// two has half of its length.
double first_part(size_t chunk, size_t flows) {
  return std::min(static_cast<double>(chunk + 1) / static_cast<double>(flows), 1.0);
}

// The lengths of `count` chunks which together have `bytes` bytes. None: one would be longer than
// `longest`.
std::optional<std::vector<double>> lengths_of(double bytes, size_t count, const Slopes& slopes,
                                              size_t flows, double longest) {
  const size_t peak = slopes.rise > 1 ? (slopes.fall > 1 ? count / 2 : count - 1) : 0;
  std::vector<double> parts(count, 1);
  for (size_t i = peak; i > 0; --i) parts[i - 1] = parts[i] / slopes.rise;
  for (size_t i = peak + 1; i < count; ++i) parts[i] = parts[i - 1] / slopes.fall;
  std::vector<double> most(count, longest);
  if (count > 1) {
    const size_t first = std::min(count, flows) - 1;
    for (size_t i = first; i-- > 0;) {
      parts[i] = std::min(parts[i], first_part(i, flows) * parts[first]);
      most[i] *= first_part(i, flows);
    }
  }
  if (std::accumulate(most.begin(), most.end(), 0.0) < bytes) return {};
  // What is cut off of those that are too long is given to the others.
  double left = bytes, sum = std::accumulate(parts.begin(), parts.end(), 0.0);
  for (bool again = true; again;) {
    again = false;
    for (size_t i = 0; i < count; ++i) {
      if (parts[i] <= 0 || parts[i] * left <= most[i] * sum) continue;
      left -= most[i];
      sum -= parts[i];
      parts[i] = 0;
      again = true;
    }
  }
  for (size_t i = 0; i < count; ++i) parts[i] = parts[i] > 0 ? parts[i] * left / sum : most[i];
  return parts;
}

// A number that stands for all within some two per cent of it.
int rounded(double value) {
  return static_cast<int>(std::lround(std::log2(std::max(value, 1e-9)) * 16));
}
double round_number(int rounded) { return std::exp2(rounded / 16.0); }

// Finds the best cut for a relayed path. The constants of the search are guesses.
class Search {
 public:
  Search(const Path& path, const CutTerms& terms, double bytes)
      : path_(path),
        terms_(terms),
        bytes_(bytes),
        gains_(gains_of(terms.paces)),
        may_join_(may_join(path, terms)),
        longest_(kFits * static_cast<double>(longest_chunk(terms.flows))),
        most_(std::max(std::round(std::min(terms.most, most_chunks(bytes))), 1.0)) {
    for (const Hop& hop : path.hops) {
      const bool pieces = terms.by_engines && terms.piece > 0;
      singly_.push_back(pieces && !hop.from.host() && !hop.to.host() ? 1 : 0);
    }
  }

  Cutting::Cut run() const {
    Found best = find();
    if (terms_.times != 1) {
      const double wanted = static_cast<double>(best.lengths.size()) * terms_.times;
      const double most = 2 * bytes_ / kLeast;
      Found other =
          of_count(static_cast<size_t>(std::max(std::round(std::min(wanted, most)), 1.0)));
      if (!other.lengths.empty()) best = std::move(other);
    }
    Cutting::Cut cut;
    double end = 0;
    for (const double length : best.lengths) cut.ends.push_back((end += length) / bytes_);
    cut.joined = best.joined;
    cut.longest = static_cast<double>(longest_chunk(terms_.flows));
    const Rate slowest = *std::min_element(terms_.paces.begin(), terms_.paces.end());
    cut.delay_ns = std::max(best.ns - bytes_ / slowest, 0.0);
    return cut;
  }

  // More chunks are not made, unless they would be too long.
  static double most_chunks(double bytes) { return std::min(kMost, 2 * bytes / kLeast); }
  static bool may_join(const Path& path, const CutTerms& terms) {
    return terms.by_engines && !terms.apart &&
           ChunkHop::device_of(path.hops[0]) == ChunkHop::device_of(path.hops[1]);
  }

 private:
  struct Found {
    std::vector<double> lengths;  // empty: none are possible
    bool joined = false;
    double ns = 0, cost = 0;
  };
  static constexpr double kMost = 64;     // chunks
  static constexpr double kLadder = 1.2;  // from one number of chunks to the next
  static constexpr int kRises = 3;  // so many numbers in a row cost more: no better one follows
  static constexpr double kSteepest = 2;

  // Tries ever larger numbers of chunks.
  Found find() const {
    Found best;
    const double least =
        bytes_ <= longest_
            ? 1
            : std::ceil(bytes_ / longest_ + (static_cast<double>(terms_.flows) - 1) / 2);
    auto count = static_cast<size_t>(least);
    for (int rises = 0; rises < kRises;) {
      if (static_cast<double>(count) > most_ && !best.lengths.empty()) break;
      Found found = of_count(count);
      if (best.lengths.empty() || (!found.lengths.empty() && found.cost < best.cost)) {
        best = std::move(found);
        rises = 0;
      } else {
        ++rises;
      }
      count = std::max(count + 1, static_cast<size_t>(static_cast<double>(count) * kLadder));
    }
    return best;
  }

  // The best lengths of so many chunks.
  Found of_count(size_t count) const {
    Found best;
    for (const double power : {0.0, 0.25, 0.5, 1.0}) {
      const Slopes slopes = slopes_of(count, power);
      if (power != 0 && slopes.rise * slopes.fall <= 1.01) break;
      // With more streams a race takes longer.
      if (terms_.flows > TransferTuning::kFlows && power != 0 && power != 0.5) continue;
      const std::optional<std::vector<double>> lengths =
          lengths_of(bytes_, count, slopes, terms_.flows, longest_);
      if (!lengths.has_value()) break;
      for (const bool joined : {false, true}) {
        if (joined && !may_join_) continue;
        Found found = race(*lengths, joined, best);
        if (best.lengths.empty() || found.cost < best.cost) best = std::move(found);
      }
    }
    return best;
  }

  // What these lengths cost. If they cost more than the best ones, the search ends early, and the
  // true cost may be even higher.
  Found race(const std::vector<double>& lengths, bool joined, const Found& best) const {
    const auto count = static_cast<double>(lengths.size());
    const size_t buffers =
        buffers_for(*std::max_element(lengths.begin(), lengths.end()), terms_.flows);
    double calls = chunk_calls_ns(path_, count, buffers, joined);
    const auto hops = static_cast<double>(std::count(singly_.begin(), singly_.end(), 1));
    for (const double length : lengths) {
      calls +=
          hops * (copies_of(length, terms_.piece, terms_.in_rows) - 1) * TransferTuning::kCallNs;
    }
    PipelineTerms terms;
    terms.paces = terms_.paces;
    terms.joined = joined;
    terms.flows = terms_.flows;
    terms.buffers = buffers;
    terms.start_ns = static_cast<double>(terms_.copy_ns);
    terms.singly = singly_;
    terms.piece = terms_.piece;
    terms.in_rows = terms_.in_rows;
    // In a queue all calls are made before the copy begins. Otherwise its first chunks flow while
    // the others are called. The cut must be good in both cases.
    double ns = pipeline_ns(terms, lengths);
    if (best.lengths.empty() || ns + terms_.blocked * calls < best.cost) {
      terms.calls_ns = calls / count;
      ns = std::max(ns, pipeline_ns(terms, lengths));
    }
    return {lengths, joined, ns, ns + terms_.blocked * calls};
  }

  // Not so steep that a chunk would be too short.
  Slopes slopes_of(size_t count, double power) const {
    const auto chunks = static_cast<double>(count);
    // Where lengths fall from the first to the last, the longest has about twice the mean.
    const double longest = std::max(4 * bytes_ / chunks / kLeast, 1.0);
    const double steepest = std::pow(longest, 1 / std::max(chunks - 1, 1.0));
    const auto slope = [&](double gain) {
      return std::min({std::pow(gain, power), kSteepest, steepest});
    };
    return {slope(gains_.rise), slope(gains_.fall)};
  }

  const Path& path_;
  const CutTerms& terms_;
  const double bytes_;
  const Slopes gains_;
  const bool may_join_;
  const double longest_;
  const double most_;
  std::vector<char> singly_;  // for each hop: its copies are pieces
};

// Cuts that were found, because copies of a kind come again and again, and one copy has many paths
// that are alike. What a cut depends on is rounded, so that it does not depend on who asked first.
class KnownCuts {
 public:
  CutPtr of(const Path& path, const CutTerms& terms, double bytes) {
    CutTerms meant = terms;
    const double most = std::min(Search::most_chunks(bytes), terms.most);
    Key key{static_cast<int>(terms.copy_ns), Search::may_join(path, terms) ? 1 : 0,
            terms.by_engines ? 1 : 0, static_cast<int>(terms.flows), terms.in_rows ? 1 : 0};
    const auto round = [&](double value, double* to) {
      key.push_back(rounded(value));
      *to = value > 0 ? round_number(key.back()) : 0;
    };
    round(bytes, &bytes);
    round(most, &meant.most);
    round(terms.blocked, &meant.blocked);
    round(terms.piece, &meant.piece);
    round(terms.times, &meant.times);
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
    auto cut = std::make_shared<const Cutting::Cut>(Search(path, meant, bytes).run());
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
  Cutting::Cut cut;
  const auto all = static_cast<double>(flows);
  // With two flows a third chunk hides the start of the others.
  const bool short_first = flows == 2;
  const double chunks = short_first ? 2.5 : all;
  if (bytes >= all * kLeast) {
    for (double end = short_first ? 0.5 : 1; end < chunks; ++end) cut.ends.push_back(end / chunks);
  }
  cut.ends.push_back(1);
  cut.delay_ns = static_cast<double>(copy_ns);
  return std::make_shared<const Cutting::Cut>(std::move(cut));
}

// While the first hop fills so many, the second empties as many less one.
size_t least_buffers(size_t flows) {
  return std::max(2 * flows - 1, TransferTuning::kLeastBuffers);
}

// Never destroyed, because threads may still copy while the process ends.
CutPtr cut_of(const Path& path, const CutTerms& terms, double bytes) {
  static auto* const known = new KnownCuts;
  if (path.hops.size() == 1) return direct_cut(bytes, terms.flows, terms.copy_ns);
  return known->of(path, terms, bytes);
}

}  // namespace

// Each chunk waits until its buffer was filled, and a chunk that is not among the first also waits
// until its buffer was emptied. Each of these waits has an event that is recorded.
double chunk_calls_ns(const Path& path, double chunks, size_t buffers, bool joined) {
  const auto hops = static_cast<double>(path.hops.size());
  const double apart = hops - (joined ? 2 : 1);
  const double again = std::max(chunks - static_cast<double>(buffers), 0.0);
  return hops * TransferTuning::kCallNs * chunks +
         2 * apart * TransferTuning::kEventNs * (chunks + again);
}

// It is enough for the first hop to go on while the second is late for a while. The sizes of
// buffers are powers of two.
size_t buffers_for(double longest, size_t flows) {
  Bytes bytes = TransferTuning::kLeastChunk;
  while (static_cast<double>(bytes) < longest) bytes *= 2;
  const size_t least = least_buffers(flows);
  return std::clamp<size_t>(TransferTuning::kBuffered / bytes, least,
                            std::max(TransferTuning::kMostBuffers, least));
}

Bytes longest_chunk(size_t flows) {
  Bytes bytes = TransferTuning::kLongestChunk;
  while (least_buffers(flows) * bytes > TransferTuning::kBuffered) bytes /= 2;
  return bytes;
}

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
