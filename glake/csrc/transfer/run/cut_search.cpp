#include "transfer/run/cut_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "transfer/run/call_times.h"
#include "transfer/run/chunk_copier.h"
#include "transfer/run/pipeline_race.h"

namespace glake::transfer {
namespace {

constexpr auto kLeast = static_cast<double>(TransferTuning::kLeastChunk);
constexpr double kMost = 64;  // chunks
constexpr double kNoLimit = std::numeric_limits<double>::infinity();
constexpr double kFits = 0.95;  // bytes are rounded by 4.5 per cent, and chunks must fit the buffer
// Hops whose paces differ by less are equally fast: less than one step of KnownCuts' rounding.
constexpr double kSamePace = 1.02;

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

// Whether each stream has all hops of the path.
bool has_all_hops(const Path& path, const Streams& streams) {
  return streams.joined && path.hops.size() == 2;
}

// While the first hop fills so many, the second empties as many less one. A stream that has both
// needs one.
size_t least_buffers(const Path& path, const Streams& streams) {
  if (has_all_hops(path, streams)) return streams.count;
  return std::max(2 * streams.count - 1, TransferTuning::kLeastBuffers);
}

// What the lengths of chunks are like, for a number of them. `power`: how much of what the faster
// hops gain makes chunks longer or shorter than their neighbours.
struct Shape {
  double power = 0;
  Streams streams;
  Bytes longest = TransferTuning::kLongestChunk;  // that a chunk may be
};
constexpr double kPowers[] = {0, 0.25, 0.5, 1};

// The constants of the search are guesses.
class Search {
 public:
  Search(const Path& path, const CutTerms& terms, double bytes)
      : path_(path),
        terms_(terms),
        bytes_(bytes),
        slowest_(*std::min_element(terms.paces.begin(), terms.paces.end())),
        gains_(gains_of(terms.paces)),
        kinds_(kinds_of(path, terms)),
        most_(std::max(std::round(std::min(terms.most, most_chunks(bytes))), 1.0)) {
    for (const Hop& hop : path.hops) {
      const bool pieces = terms.by_engines && terms.piece > 0;
      singly_.push_back(pieces && !hop.from.host() && !hop.to.host() ? 1 : 0);
    }
  }

  Cut run() const {
    Found best = find();
    if (terms_.times != 1) {
      const double wanted = static_cast<double>(best.lengths.size()) * terms_.times;
      const double most = 2 * bytes_ / kLeast;
      const auto count = static_cast<size_t>(std::max(std::round(std::min(wanted, most)), 1.0));
      Found other;
      for (const Shape& kind : kinds_) {
        Found found = of_count(count, kind, other);
        if (found.beats(other)) other = std::move(found);
      }
      if (other.possible()) best = std::move(other);
    }
    Cut cut;
    double end = 0;
    for (const double length : best.lengths) cut.ends.push_back((end += length) / bytes_);
    cut.streams = best.shape.streams;
    cut.longest = static_cast<double>(best.shape.longest);
    cut.delay_ns = std::max(best.ns - bytes_ / slowest_, 0.0);
    return cut;
  }

 private:
  struct Found {
    Shape shape;
    std::vector<double> lengths;  // empty: none are possible
    double ns = 0, cost = 0;
    bool possible() const { return !lengths.empty(); }
    bool beats(const Found& other) const {
      return possible() && (!other.possible() || cost < other.cost);
    }
  };
  static constexpr double kLadder = 1.2;  // from one number of chunks to the next
  static constexpr int kRises = 5;  // so many numbers in a row cost more: no better one follows
  static constexpr double kSteepest = 2;

  // What is tried. The longest chunks are best only where each call costs much: shorter ones end
  // more evenly.
  static std::vector<Shape> kinds_of(const Path& path, const CutTerms& terms) {
    const auto kind = [&](bool joined, Bytes most) {
      const Streams streams{terms.flows, joined};
      return Shape{0, streams, std::min(longest_chunk(path, streams), most)};
    };
    std::vector<Shape> kinds{kind(false, TransferTuning::kLongestChunk)};
    if (!may_join(path, terms)) return kinds;
    kinds.push_back(kind(true, TransferTuning::kLongestChunk));
    // Where both hops must flow all the time, long chunks that fall into step lose much.
    const auto [slow, fast] = std::minmax_element(terms.paces.begin(), terms.paces.end());
    const Shape longer = kind(true, TransferTuning::kLongestJoined);
    const bool unlike = *fast > TransferTuning::kMuchFaster * *slow;
    if (unlike && longer.longest > kinds.back().longest) kinds.push_back(longer);
    return kinds;
  }

  static double longest(const Shape& kind) { return kFits * static_cast<double>(kind.longest); }
  // Longer chunks may gain something only if the best ones are as long as they may be.
  static bool ends_at(const Found& found, const Shape& kind) {
    const double most = *std::max_element(found.lengths.begin(), found.lengths.end());
    return most > 0.99 * longest(kind);
  }

  // The numbers of chunks that are tried.
  std::vector<size_t> ladder(const Shape& kind) const {
    const double longest = this->longest(kind);
    const double least =
        bytes_ <= longest
            ? 1
            : std::ceil(bytes_ / longest + (static_cast<double>(terms_.flows) - 1) / 2);
    std::vector<size_t> counts{static_cast<size_t>(least)};
    for (;;) {
      const size_t last = counts.back();
      const size_t next =
          std::max(last + 1, static_cast<size_t>(static_cast<double>(last) * kLadder));
      if (static_cast<double>(next) > most_) return counts;
      counts.push_back(next);
    }
  }

  // About how many chunks are best: each one has its calls and its start, and the hops behind the
  // slowest one are late by one chunk each.
  double likely_count(const Streams& streams) const {
    const double hops = static_cast<double>(terms_.paces.size());
    const double each = terms_.blocked * chunk_calls_ns(path_, 1, 1, streams.joined) +
                        static_cast<double>(terms_.copy_ns) / static_cast<double>(streams.count);
    return std::sqrt((hops - 1) * bytes_ / slowest_ / std::max(each, 1.0));
  }

  // Hops that share their streams and those that do not may be best with very unlike numbers.
  Found find() const {
    Found best;
    bool longer = true;
    for (size_t i = 0; i < kinds_.size(); ++i) {
      if (i == 2 && !longer) break;
      Found found = climb(kinds_[i]);
      longer = ends_at(found, kinds_[i]);
      if (found.beats(best)) best = std::move(found);
    }
    return best;
  }

  // What a cut costs falls with the number of chunks and then rises. So it starts where the least
  // cost is likely, and goes down and up from there.
  Found climb(const Shape& kind) const {
    std::vector<size_t> counts = ladder(kind);
    const double likely = likely_count(kind.streams);
    size_t from = 0;
    while (from + 1 < counts.size() && static_cast<double>(counts[from + 1]) <= likely) ++from;
    Found best = of_count(counts[from], kind, {});
    // There may be no lengths for the least numbers.
    while (!best.possible()) {
      if (++from == counts.size()) counts.push_back(counts.back() + 1);
      best = of_count(counts[from], kind, {});
    }
    for (const bool up : {false, true}) {
      int rises = 0;
      for (size_t i = from; rises < kRises && (up ? ++i < counts.size() : i-- > 0);) {
        Found found = of_count(counts[i], kind, best);
        ++rises;
        if (!found.beats(best)) continue;
        best = std::move(found);
        rises = 0;
      }
    }
    return best;
  }

  // The best lengths of so many chunks. None, if they do not beat `best`.
  Found of_count(size_t count, const Shape& kind, Found best) const {
    bool any = false;
    for (const double power : kPowers) {
      const Slopes slopes = slopes_of(count, power);
      if (power != 0 && slopes.rise * slopes.fall <= 1.01) break;  // like the one before
      // With more streams a race takes longer.
      if (terms_.flows > TransferTuning::kFlows && power != 0 && power != 0.5) continue;
      Found found = of_shape(count, {power, kind.streams, kind.longest}, best);
      if (!found.beats(best)) continue;
      best = std::move(found);
      any = true;
    }
    return any ? best : Found{};
  }

  Found of_shape(size_t count, const Shape& shape, const Found& best) const {
    std::optional<std::vector<double>> lengths = lengths_of(
        bytes_, count, slopes_of(count, shape.power), shape.streams.count, longest(shape));
    return lengths ? race(std::move(*lengths), shape, best) : Found{};
  }

  // What these lengths cost. If that is more than the best ones do, it may be even more.
  Found race(std::vector<double> lengths, const Shape& shape, const Found& best) const {
    const auto count = static_cast<double>(lengths.size());
    const size_t buffers =
        buffers_for(path_, *std::max_element(lengths.begin(), lengths.end()), shape.streams);
    double calls = chunk_calls_ns(path_, count, buffers, shape.streams.joined);
    const auto hops = static_cast<double>(std::count(singly_.begin(), singly_.end(), 1));
    for (const double length : lengths) {
      calls +=
          hops * (copies_of(length, terms_.piece, terms_.in_rows) - 1) * TransferTuning::kCallNs;
    }
    PipelineTerms terms;
    terms.paces = terms_.paces;
    terms.joined = shape.streams.joined;
    terms.flows = shape.streams.count;
    terms.buffers = buffers;
    terms.start_ns = static_cast<double>(terms_.copy_ns);
    terms.singly = singly_;
    terms.piece = terms_.piece;
    terms.in_rows = terms_.in_rows;
    const double most = best.possible() ? best.cost - terms_.blocked * calls : kNoLimit;
    // In a queue all calls are made before the copy begins. Otherwise its first chunks flow while
    // the others are called. The cut must be good in both cases.
    double ns = bytes_ / slowest_;
    for (const double each : {0.0, terms_.crowd * calls / count}) {
      terms.calls_ns = each;
      if (ns < most) ns = std::max(ns, pipeline_ns(terms, lengths, most));
    }
    return {shape, std::move(lengths), ns, ns + terms_.blocked * calls};
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
  const Rate slowest_;
  const Slopes gains_;
  const std::vector<Shape> kinds_;  // that are tried
  const double most_;
  std::vector<char> singly_;  // for each hop: its copies are pieces
};

}  // namespace

bool may_join(const Path& path, const CutTerms& terms) {
  return terms.by_engines && !terms.apart &&
         ChunkHop::device_of(path.hops[0]) == ChunkHop::device_of(path.hops[1]);
}

double most_chunks(double bytes) { return std::min(kMost, 2 * bytes / kLeast); }

Cut best_cut(const Path& path, const CutTerms& terms, double bytes) {
  return Search(path, terms, bytes).run();
}

// It is enough for the first hop to go on while the second is late for a while. The sizes of
// buffers are powers of two.
size_t buffers_for(const Path& path, double longest, const Streams& streams) {
  Bytes bytes = TransferTuning::kLeastChunk;
  while (static_cast<double>(bytes) < longest) bytes *= 2;
  const size_t least = least_buffers(path, streams);
  return std::clamp<size_t>(TransferTuning::kBuffered / bytes, least,
                            std::max(TransferTuning::kMostBuffers, least));
}

Bytes longest_chunk(const Path& path, const Streams& streams) {
  const bool few = has_all_hops(path, streams) && streams.count <= TransferTuning::kFlows;
  if (few) return TransferTuning::kLongestJoined;
  Bytes bytes = TransferTuning::kLongestChunk;
  while (least_buffers(path, streams) * bytes > TransferTuning::kBuffered) bytes /= 2;
  return bytes;
}

}  // namespace glake::transfer
