#include "transfer/run/share_out.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <utility>

#include "transfer/run/path_run.h"
#include "transfer/run/pipelines.h"

namespace glake::transfer {
namespace {

// Chosen by glake bench transfer --order enqueued on hgx_h100_h200, dgx_a100 and dgx1v.
// A chunk flows at least this many times as long as a copy takes to start. So the starts of the
// chunks beside it are hidden.
constexpr double kCoverage = 2;
// A relayed path has about this many chunks, so that filling and emptying it takes little of its
// time.
constexpr double kChunks = 12;
// A hop counts as slow if it is at most this much faster than the slowest one.
constexpr double kAlike = 1.5;
constexpr Bytes kLongest = 16 * kMiB;  // a chunk of a relayed path
// Buffers of a relay for one transfer, and about how many bytes they are together.
constexpr size_t kLeastBuffers = 3, kMostBuffers = 6;
constexpr Bytes kBuffered = kLeastBuffers * kLongest;
// ns of an asynchronous copy's call (published for an A10, as in simcuda/driver/symbols.h), and of
// the calls that open and join a path beside it (a wait and a record are taken for 1000 each).
constexpr double kCallNs = 2600, kEventNs = 1000, kPathNs = 3 * kEventNs;
// ns until a thread is awake (as kHandOver in scheduler.cpp).
constexpr double kWakeNs = 5000;
// The calls may take this part of the copy's own time: they go on while its first chunks flow.
constexpr double kCalls = 0.5;

// The bytes that are in one socket's host memory. One pool has all bytes if the socket does not
// matter.
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
  Pool& served = *std::find_if(pools.begin(), pools.end(),
                               [](const Pool& pool) { return !pool.paths.empty(); });
  for (Pool& pool : pools) {
    if (!pool.paths.empty()) continue;  // no path serves that socket: others carry what it has
    served.ranges.insert(served.ranges.end(), pool.ranges.begin(), pool.ranges.end());
    served.bytes += std::exchange(pool.bytes, 0);
    pool.ranges.clear();
  }
  return pools;
}

Bytes least_chunk(const PlannedPath& path, uint64_t copy_ns) {
  const auto covering = static_cast<Bytes>(path.rate * static_cast<double>(copy_ns) * kCoverage);
  return std::clamp(covering / kLeastChunk * kLeastChunk, kLeastChunk, kLongest);
}

// What a path's chunks of about `chunk` bytes do to its links. Its slowest hop is the one that
// counts; while a chunk is on another one, it does not flow there.
FlowForecast::Flow flow_of(const PlannedPath& path, Bytes chunk, uint64_t copy_ns,
                           const FlowForecast& forecast) {
  FlowForecast::Flow flow;
  flow.route = forecast.route_of(path.path);
  flow.rate = path.rate;
  const auto start = static_cast<double>(copy_ns);
  double all = 0, slowest = 0;
  for (const Hop& hop : path.path.hops) {
    const Rate rate = hop.route.empty() ? path.rate : std::min(forecast.alone(hop), 1e9);
    const double ns = static_cast<double>(chunk) / std::max(rate, 1e-3);
    all += start + ns;
    slowest = std::max(slowest, ns);
  }
  flow.delay_ns = all - slowest;
  flow.copies = kFlows;
  return flow;
}

// The bytes that each path carries. A path that would begin too late for even one chunk is left
// out.
std::vector<FlowForecast::Flow> deal(const TransferPlan& plan, uint64_t copy_ns, uint64_t now,
                                     FlowForecast* forecast, std::vector<Pool>* pools,
                                     double* end_ns) {
  for (;;) {
    std::vector<FlowForecast::Flow> flows(plan.paths.size());
    std::vector<FlowForecast::Pool> parts;
    double calls = 0;
    for (const Pool& pool : *pools) {
      const auto bytes = static_cast<double>(pool.bytes);
      double rate = 1e-3;
      for (const size_t i : pool.paths) rate += plan.paths[i].rate;
      parts.push_back({bytes, pool.paths});
      for (const size_t i : pool.paths) {
        const PlannedPath& path = plan.paths[i];
        const auto some = static_cast<Bytes>(bytes * path.rate / rate / kChunks);
        const Bytes chunk = std::clamp(some, least_chunk(path, copy_ns), kLongest);
        flows[i] = flow_of(path, chunk, copy_ns, *forecast);
        flows[i].delay_ns += calls;
        calls += 2 * kCallNs + kPathNs;
      }
    }
    *end_ns = forecast->share(now, parts, &flows);
    bool again = false;
    for (Pool& pool : *pools) {
      const auto sliver = [&](size_t i) {
        return flows[i].bytes < static_cast<double>(kLeastChunk) / 2;
      };
      const auto slivers = std::count_if(pool.paths.begin(), pool.paths.end(), sliver);
      if (slivers == 0 || static_cast<size_t>(slivers) == pool.paths.size()) continue;
      pool.paths.erase(std::remove_if(pool.paths.begin(), pool.paths.end(), sliver),
                       pool.paths.end());
      again = true;
    }
    if (!again) return flows;
  }
}

// A copy for each hop, and between two of them a record and a wait (and two more where a buffer is
// used again, which is left out).
double chunk_call_ns(size_t hops) {
  const auto count = static_cast<double>(hops);
  return count * kCallNs + 2 * (count - 1) * kEventNs;
}

// The hop that takes longest; of several, the first and the last of them.
std::pair<size_t, size_t> slowest_hops(const PlannedPath& path, const FlowForecast& forecast) {
  const std::vector<Hop>& hops = path.path.hops;
  std::vector<Rate> rates;
  for (const Hop& hop : hops) rates.push_back(forecast.alone(hop));
  const Rate least = *std::min_element(rates.begin(), rates.end());
  const auto slow = [&](Rate rate) { return rate < kAlike * least; };
  const auto first = std::find_if(rates.begin(), rates.end(), slow);
  const auto last = std::find_if(rates.rbegin(), rates.rend(), slow);
  return {first - rates.begin(), rates.rend() - last - 1};
}

// Sizes of a path's chunks; there are about `most` at most. A direct path has kFlows, which flow
// side by side to the end. On a relayed path the first chunks are short if a fast hop comes before
// the slow one, so that the slow one begins early. The last chunks are short if a fast hop comes
// after it, so that little is left to do then. The first two chunks differ in size: two of one size
// would end together, and the link would be idle until the next began. `relays`: how many the copy
// has, where its calls hold up other copies, so that there should be few; else 0.
std::vector<Bytes> chunk_sizes(const PlannedPath& path, Bytes bytes, double most, uint64_t copy_ns,
                               double relays, const FlowForecast& forecast) {
  const auto all = static_cast<double>(bytes);
  if (!relayed(path)) {
    const size_t count = bytes < kFlows * kLeastChunk ? 1 : kFlows;
    return std::vector<Bytes>(count, round_up(bytes / count + 1, 4 * kKiB));
  }
  const auto [first, last] = slowest_hops(path, forecast);
  // ns that a byte needs besides its time on the slowest hop: that of one chunk is lost, at an end
  // of the path. All of the copy's relays share the hop at its own GPU.
  double beside = 0, slow = 0;
  for (const Hop& hop : path.path.hops) {
    const bool shared = (hop.from == path.path.hops.front().from && !hop.from.host()) ||
                        (hop.to == path.path.hops.back().to && !hop.to.host());
    const double ns = (shared ? relays : 1) / std::max(forecast.alone(hop), 1e-3);
    slow = std::max(slow, ns);
    beside += ns;
  }
  beside -= slow;
  const bool sparing = relays != 0 && beside > 0;
  const double call = chunk_call_ns(path.path.hops.size());
  // Of so many chunks one more saves as much as its calls take.
  const double worth = sparing ? std::sqrt(all * beside / call) : kChunks;
  // Over several slow hops nothing but more chunks makes filling it short.
  const double several = first == last ? 1 : 2 * static_cast<double>(last - first);
  const double wanted = std::clamp(worth, 1.0, kChunks) * several;
  const auto limit = static_cast<double>(kLongest);
  const double longest = std::min(all / std::max(std::min(wanted, most), 1.0), limit);
  const double shortest = std::max(longest / 8, sparing ? call / beside : 0.0);
  const double least =
      std::min(std::max(static_cast<double>(least_chunk(path, copy_ns)), shortest), limit);
  std::vector<double> head, tail;
  for (double part = least; part < longest / 1.5; part *= 2) {
    if (first != 0) head.push_back(part);
    if (last + 1 != path.path.hops.size()) tail.insert(tail.begin(), part);
  }
  double left = all;
  for (const double part : head) left -= part;
  for (const double part : tail) left -= part;
  if (left < longest) {
    head.clear();
    tail.clear();
    left = all;
  }
  const double whole = std::max(longest, least);
  if (head.empty() && left > 2 * whole) {
    head.push_back(whole / 2);
    left -= whole / 2;
  }
  const double count = std::max(std::round(left / whole), 1.0);
  head.insert(head.end(), static_cast<size_t>(count), left / count);
  head.insert(head.end(), tail.begin(), tail.end());
  std::vector<Bytes> sizes;
  for (const double part : head) {
    sizes.push_back(round_up(static_cast<Bytes>(part) + 1, 4 * kKiB));
  }
  return sizes;
}

// Buffers between two hops: enough that the first goes on while the second is behind for a while.
size_t buffers_for(const std::vector<Range>& chunks) {
  Bytes most = kLeastChunk;
  for (const Range& chunk : chunks) most = std::max(most, chunk.bytes());
  const size_t buffers = std::clamp<size_t>(kBuffered / most, kLeastBuffers, kMostBuffers);
  return std::min(buffers, chunks.size());
}

// A range is cut into equal parts, or what is left of one would be a short chunk among others.
Range take(const Request& request, Pool* pool, Bytes wanted) {
  Range& front = pool->ranges.front();
  const auto whole = static_cast<double>(front.bytes());
  const double parts = std::max(std::round(whole / static_cast<double>(wanted)), 1.0);
  const Bytes most = round_up(static_cast<Bytes>(whole / parts), 4 * kKiB);
  const Range taken{front.begin, request.parts.chunk_end(front.begin, most, front.end)};
  front.begin = taken.end;
  if (front.begin == front.end) pool->ranges.pop_front();
  pool->bytes -= taken.bytes();
  return taken;
}

// A thread for each GPU enqueues its paths; the caller waits for all of them.
double calls_ns(const std::vector<PathShare>& shares) {
  std::map<int, double> of;
  for (const PathShare& share : shares) {
    const double chunk = chunk_call_ns(share.path.path.hops.size());
    of[share.path.path.worker] += kPathNs + chunk * static_cast<double>(share.chunks.size());
  }
  double most = 0;
  for (const auto& [gpu, ns] : of) most = std::max(most, ns);
  return most + (of.size() > 1 ? kWakeNs : 0);
}

}  // namespace

Bytes PathShare::bytes() const {
  Bytes sum = 0;
  for (const Range& chunk : chunks) sum += chunk.bytes();
  return sum;
}

Shares share_out(const Request& request, const TransferPlan& plan, uint64_t copy_ns, uint64_t now,
                 bool alone, FlowForecast* forecast) {
  std::vector<PathShare> shares;
  for (const PlannedPath& path : plan.paths) shares.push_back({path, {}});
  std::vector<Pool> pools = pools_of(request, plan);
  double end_ns = 0;
  std::vector<FlowForecast::Flow> flows = deal(plan, copy_ns, now, forecast, &pools, &end_ns);
  const double copies = end_ns * kCalls / (2 * kCallNs);
  const auto count = std::count_if(plan.paths.begin(), plan.paths.end(), relayed);
  const double relays = alone ? 0 : static_cast<double>(count);
  for (Pool& pool : pools) {
    const Bytes whole = pool.bytes;
    for (size_t i = 0; i < pool.paths.size() && pool.bytes != 0; ++i) {
      PathShare& share = shares[pool.paths[i]];
      const bool last = i + 1 == pool.paths.size();
      const auto part = static_cast<Bytes>(flows[pool.paths[i]].bytes);
      Bytes left = last ? pool.bytes : std::min(part, pool.bytes);
      if (left == 0) continue;
      const double most = copies * static_cast<double>(left) / static_cast<double>(whole);
      const auto sizes = chunk_sizes(share.path, left, most, copy_ns, relays, *forecast);
      for (size_t k = 0; left != 0 && pool.bytes != 0; ++k) {
        const Bytes wanted = std::min(sizes[std::min(k, sizes.size() - 1)], left);
        share.chunks.push_back(take(request, &pool, wanted));
        left -= std::min(left, share.chunks.back().bytes());
      }
    }
  }
  Shares taken;
  taken.end_ns = end_ns;
  for (size_t i = 0; i < shares.size(); ++i) {
    if (shares[i].chunks.empty()) continue;
    shares[i].buffers = buffers_for(shares[i].chunks);
    flows[i].bytes = static_cast<double>(shares[i].bytes());
    taken.paths.push_back(std::move(shares[i]));
    taken.flows.push_back(std::move(flows[i]));
  }
  taken.calls_ns = calls_ns(taken.paths);
  return taken;
}

double plain_end_ns(const Request& request, const PlannedPath& direct, uint64_t copy_ns,
                    uint64_t now, FlowForecast* forecast) {
  std::vector<FlowForecast::Flow> flows{flow_of(direct, 0, copy_ns, *forecast)};
  flows[0].copies = 1;
  return forecast->share(now, {{static_cast<double>(request.parts.total()), {0}}}, &flows);
}

}  // namespace glake::transfer
