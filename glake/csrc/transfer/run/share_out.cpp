#include "transfer/run/share_out.h"

#include <algorithm>
#include <cmath>
#include <deque>

#include "transfer/run/path_run.h"

namespace glake::transfer {
namespace {

// Tried on hgx_h100_h200 by glake bench transfer --order enqueued, not derived, as what follows:
// a chunk takes so many copies' starts at its path's rate, at least, to cover its neighbours'
// starts;
constexpr double kCoverage = 2;
// a relayed path has about so many, so that filling and emptying it is a small part of its time;
constexpr double kChunks = 12;
// while one chunk starts its next hop, two others share the slow link.
constexpr size_t kRelayLanes = 3, kDirectLanes = 3;
// ns of an asynchronous copy's call (published for an A10, as in simcuda/driver/symbols.h), and of
// the calls that open and join a lane beside it (a wait and a record are taken for 1000 each).
constexpr double kCallNs = 2600, kLaneNs = 3000;
// Of the copy's own time, that its calls may take: they go on while its first chunks flow.
constexpr double kCalls = 0.5;
constexpr Bytes kQuanta = 96;  // parts by which bytes are dealt out to paths

// Bytes of one socket's host memory; where that plays no part, all.
struct Pool {
  std::deque<Range> ranges;
  std::vector<size_t> paths;
  Bytes bytes = 0;
};

bool relayed(const PlannedPath& path) { return path.path.hops.size() > 1; }

int node_of(const Path& path) {
  const Place &from = path.hops.front().from, &to = path.hops.back().to;
  return from.host() ? from.node : to.host() ? to.node : kSpread;
}

std::vector<Pool> pools_of(const Request& request, const TransferPlan& plan) {
  std::vector<Pool> pools(1);
  Bytes begin = 0;
  for (const Stripe& stripe : request.stripes) {
    const auto node = static_cast<size_t>(stripe.node);
    pools.resize(std::max(pools.size(), node + 1));
    pools[node].ranges.push_back({begin, stripe.end});
    pools[node].bytes += stripe.end - begin;
    begin = stripe.end;
  }
  if (begin == 0) {
    pools[0].bytes = request.parts.total();
    pools[0].ranges.push_back({0, pools[0].bytes});
  }
  for (size_t i = 0; i < plan.paths.size(); ++i) {
    const auto node = static_cast<size_t>(std::max(node_of(plan.paths[i].path), 0));
    pools[node < pools.size() ? node : 0].paths.push_back(i);
  }
  for (Pool& pool : pools) {
    if (!pool.paths.empty()) continue;  // no path serves that socket: all carry what it has
    for (size_t i = 0; i < plan.paths.size(); ++i) pool.paths.push_back(i);
  }
  return pools;
}

Bytes least_chunk(const PlannedPath& path, uint64_t copy_ns) {
  const auto covering = static_cast<Bytes>(path.rate * static_cast<double>(copy_ns) * kCoverage);
  return std::clamp(covering / kLeastChunk * kLeastChunk, kLeastChunk, kMostChunk);
}

// Deals bytes out, a quantum at a time, each to the path that would have carried it first.
class Dealer {
 public:
  Dealer(const TransferPlan& plan, const ShareTerms& terms)
      : plan_(plan), terms_(terms), busy_(terms.busy), bytes_(plan.paths.size()) {}

  void deal(const std::vector<size_t>& paths, Bytes bytes) {
    const Bytes quantum = std::max<Bytes>(bytes / kQuanta, 64 * kKiB);
    for (Bytes left = bytes; left != 0;) {
      const Bytes some = std::min(left, quantum);
      size_t best = paths.front();
      double first = end_with(best, some);
      for (const size_t path : paths) {
        const double end = end_with(path, some);
        if (end < first) {
          first = end;
          best = path;
        }
      }
      give(best, some);
      left -= some;
    }
  }
  Bytes bytes(size_t path) const { return bytes_[path]; }
  double end() const { return end_; }

 private:
  // A path that has nothing yet costs its hops' starts, and its calls behind those of the others.
  double end_with(size_t path, Bytes bytes) const {
    const auto hops = static_cast<double>(plan_.paths[path].path.hops.size());
    const auto copy_ns = static_cast<double>(terms_.copy_ns);
    double busy = 0;
    for (const auto& [limit, ns] : terms_.times[path]) {
      busy = std::max(busy, busy_[static_cast<size_t>(limit)] + ns * static_cast<double>(bytes));
    }
    if (terms_.times[path].empty()) {
      busy = static_cast<double>(bytes_[path] + bytes) / std::max(plan_.paths[path].rate, 1e-3);
    }
    const double calls =
        bytes_[path] != 0 ? 0 : static_cast<double>(open_) * (2 * kCallNs + kLaneNs);
    return busy + hops * copy_ns + calls;
  }

  void give(size_t path, Bytes bytes) {
    end_ = std::max(end_, end_with(path, bytes));
    open_ += bytes_[path] == 0;
    bytes_[path] += bytes;
    for (const auto& [limit, ns] : terms_.times[path]) {
      busy_[static_cast<size_t>(limit)] += ns * static_cast<double>(bytes);
    }
  }

  const TransferPlan& plan_;
  const ShareTerms& terms_;
  std::vector<double> busy_;
  std::vector<Bytes> bytes_;
  size_t open_ = 0;
  double end_ = 0;
};

// Bytes of each path. One that comes too late for a chunk of its own is left out.
std::vector<Bytes> deal(const TransferPlan& plan, const ShareTerms& terms, std::vector<Pool>* pools,
                        double* end_ns) {
  for (;;) {
    Dealer dealer(plan, terms);
    for (const Pool& pool : *pools) dealer.deal(pool.paths, pool.bytes);
    std::vector<Bytes> parts;
    for (size_t i = 0; i < plan.paths.size(); ++i) parts.push_back(dealer.bytes(i));
    *end_ns = dealer.end();
    bool again = false;
    for (Pool& pool : *pools) {
      const auto sliver = [&](size_t i) { return parts[i] < kLeastChunk / 2; };
      if (std::none_of(pool.paths.begin(), pool.paths.end(),
                       [&](size_t i) { return parts[i] != 0 && sliver(i); })) {
        continue;
      }
      if (std::all_of(pool.paths.begin(), pool.paths.end(), sliver)) continue;
      pool.paths.erase(std::remove_if(pool.paths.begin(), pool.paths.end(), sliver),
                       pool.paths.end());
      again = true;
    }
    if (!again) return parts;
  }
}

// Sizes of a path's chunks, `most` of them at most. The first ones are shorter, each by another
// part: of copies that begin together those that are alike end together, and the link stands idle
// until the next ones begin.
std::vector<Bytes> chunk_sizes(const PlannedPath& path, Bytes bytes, double most, size_t* lanes,
                               uint64_t copy_ns) {
  const auto all = static_cast<double>(bytes);
  const auto longest = static_cast<double>(kMostChunk);
  double count = kDirectLanes;
  if (relayed(path)) {
    count = std::min(kChunks, all / static_cast<double>(least_chunk(path, copy_ns)));
    count = std::max(std::min(std::max(count, all / longest), most), all / longest);
  }
  const double limit = std::max(1.0, std::floor(all / static_cast<double>(kLeastChunk)));
  const auto chunks = static_cast<size_t>(std::clamp(std::ceil(count), 1.0, limit));
  *lanes = std::min(chunks, relayed(path) ? kRelayLanes : kDirectLanes);
  const auto lines = static_cast<double>(*lanes);
  const bool stagger = relayed(path) && chunks > *lanes;
  const double whole = all / (static_cast<double>(chunks) - (stagger ? (lines - 1) / 2 : 0));
  std::vector<Bytes> sizes;
  for (size_t k = 0; k < chunks; ++k) {
    const double part = stagger && k < *lanes ? static_cast<double>(k + 1) / lines : 1;
    sizes.push_back(round_up(static_cast<Bytes>(whole * part) + 1, 4 * kKiB));
  }
  return sizes;
}

Range take(const Request& request, Pool* pool, Bytes wanted) {
  Range& front = pool->ranges.front();
  const Bytes most = std::min(front.bytes(), wanted);
  const Range taken{front.begin, request.parts.chunk_end(front.begin, most, front.end)};
  front.begin = taken.end;
  if (front.begin == front.end) pool->ranges.pop_front();
  pool->bytes -= taken.bytes();
  return taken;
}

}  // namespace

Bytes PathShare::bytes() const {
  Bytes sum = 0;
  for (const Range& chunk : chunks) sum += chunk.bytes();
  return sum;
}

std::vector<PathShare> share_out(const Request& request, const TransferPlan& plan,
                                 const ShareTerms& terms, double* end_ns) {
  std::vector<PathShare> shares;
  for (const PlannedPath& path : plan.paths) shares.push_back({path, {}, 1});
  std::vector<Pool> pools = pools_of(request, plan);
  const std::vector<Bytes> parts = deal(plan, terms, &pools, end_ns);
  const double copies = *end_ns * kCalls / (2 * kCallNs);
  for (Pool& pool : pools) {
    const Bytes whole = pool.bytes;
    for (size_t i = 0; i < pool.paths.size() && pool.bytes != 0; ++i) {
      PathShare& share = shares[pool.paths[i]];
      const bool last = i + 1 == pool.paths.size();
      Bytes left = last ? pool.bytes : std::min(parts[pool.paths[i]], pool.bytes);
      if (left == 0) continue;
      const double most = copies * static_cast<double>(left) / static_cast<double>(whole);
      const auto sizes = chunk_sizes(share.path, left, most, &share.lanes, terms.copy_ns);
      const Bytes limit = relayed(share.path) ? kMostChunk : kMostDirect;
      for (size_t k = 0; left != 0 && pool.bytes != 0; ++k) {
        const Bytes wanted = std::min({sizes[std::min(k, sizes.size() - 1)], left, limit});
        share.chunks.push_back(take(request, &pool, wanted));
        left -= std::min(left, share.chunks.back().bytes());
      }
    }
  }
  const auto idle = [](const PathShare& share) { return share.chunks.empty(); };
  shares.erase(std::remove_if(shares.begin(), shares.end(), idle), shares.end());
  for (PathShare& share : shares) share.lanes = std::min(share.lanes, share.chunks.size());
  return shares;
}

}  // namespace glake::transfer
