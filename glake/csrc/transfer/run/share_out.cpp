#include "transfer/run/share_out.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <iterator>
#include <map>
#include <utility>

#include "base/transfer_tuning.h"
#include "plan/estimate.h"
#include "transfer/run/call_times.h"
#include "transfer/run/cut_search.h"
#include "transfer/run/cutting.h"
#include "transfer/run/path_run.h"
#include "transfer/run/pipelines.h"

namespace glake::transfer {
namespace {

constexpr double kMany = 1e4;  // stands for an unbounded number of chunks

// The bytes that are in one socket's host memory. One stock has all bytes if the socket does not
// matter.
struct Stock {
  std::deque<Range> ranges;
  std::vector<size_t> paths;
  Bytes bytes = 0;
};

bool relayed(const PlannedPath& path) { return path.path.hops.size() > 1; }

// How fast each hop of a path is while the plan's other paths flow.
std::vector<Rate> paces_of(const PlannedPath& path, const std::vector<double>& loads,
                           const FlowForecast& forecast) {
  std::vector<Rate> paces;
  for (const Hop& hop : path.path.hops) {
    paces.push_back(std::clamp(forecast.pace(hop, path.rate, loads), 1e-3, 1e9));
  }
  return paces;
}

std::vector<Stock> stocks_of(const Request& request, const TransferPlan& plan) {
  std::vector<Stock> stocks(1);
  Bytes begin = 0;
  for (const Stripe& stripe : request.stripes) {
    const auto node = static_cast<size_t>(stripe.node);
    stocks.resize(std::max(stocks.size(), node + 1));
    stocks[node].ranges.push_back({begin, stripe.end});
    stocks[node].bytes += stripe.end - begin;
    begin = stripe.end;
  }
  if (begin == 0) {
    stocks[0].bytes = request.parts.total();
    stocks[0].ranges.push_back({0, stocks[0].bytes});
  }
  for (size_t i = 0; i < plan.paths.size(); ++i) {
    const auto node = static_cast<size_t>(std::max(node_of(plan.paths[i].path), 0));
    stocks[node < stocks.size() ? node : 0].paths.push_back(i);
  }
  Stock& served = *std::find_if(stocks.begin(), stocks.end(),
                                [](const Stock& stock) { return !stock.paths.empty(); });
  for (Stock& stock : stocks) {
    // No path serves that socket, so others carry its bytes.
    if (!stock.paths.empty()) continue;
    served.ranges.insert(served.ranges.end(), stock.ranges.begin(), stock.ranges.end());
    served.bytes += std::exchange(stock.bytes, 0);
    stock.ranges.clear();
  }
  return stocks;
}

// The weight of a nanosecond of the caller's time against one of the copy's. The caller's time
// delays each copy that follows by as much.
double blocked(const Deal& how) {
  return TransferTuning::kBlocked + static_cast<double>(how.followers);
}

CutTerms terms_of(const Request& request, const Deal& how, uint64_t copy_ns) {
  CutTerms terms;
  terms.blocked = blocked(how);
  terms.copy_ns = copy_ns;
  const size_t parts = request.parts.count(), pieces = std::max(parts, request.stripes.size());
  terms.by_engines = parts == 1 || request.by_socket;
  if (pieces > 1) {
    terms.piece = static_cast<double>(request.parts.total()) / static_cast<double>(pieces);
    terms.in_rows = request.in_rows;
  }
  return terms;
}

Cutting cutting_of(const PlannedPath& path, double bytes, CutTerms terms,
                   const std::vector<double>& loads, const FlowForecast& forecast) {
  terms.paces = paces_of(path, loads, forecast);
  return {path.path, terms, bytes};
}

FlowForecast::Flow flow_of(const PlannedPath& path, size_t copies, double delay_ns) {
  FlowForecast::Flow flow;
  flow.route = route_of(path.path);
  flow.rate = path.rate;
  flow.delay_ns = delay_ns;
  flow.copies = static_cast<double>(copies);
  return flow;
}

// Gives each path what it carries at its planned rate until the stock is empty.
void deal_by_rate(const TransferPlan& plan, const FlowForecast::Stock& stock,
                  std::vector<FlowForecast::Flow>* flows) {
  std::vector<size_t> paths = stock.paths;
  const auto delay = [&](size_t i) { return (*flows)[i].delay_ns; };
  std::sort(paths.begin(), paths.end(), [&](size_t a, size_t b) { return delay(a) < delay(b); });
  double rate = 0, owed = stock.bytes, end = 0;
  for (size_t k = 0; k < paths.size() && (k == 0 || delay(paths[k]) < end); ++k) {
    rate += std::max(plan.paths[paths[k]].rate, 1e-3);
    owed += std::max(plan.paths[paths[k]].rate, 1e-3) * delay(paths[k]);
    end = owed / rate;
  }
  for (const size_t i : paths) {
    (*flows)[i].bytes = std::max(plan.paths[i].rate, 1e-3) * std::max(end - delay(i), 0.0);
  }
}

// The most chunks that each path may have: its calls are over long before the copy is, and those of
// all relayed paths take at most a part of a core for each path. (A direct path has few.)
std::vector<double> most_by_calls(const TransferPlan& plan, double end_ns) {
  std::map<int, double> of_worker;  // paths whose chunks one thread enqueues
  for (const PlannedPath& path : plan.paths) ++of_worker[path.path.worker];
  std::vector<double> parts;  // of a core, for each path
  double cores = 0;           // that all relayed paths take
  for (const PlannedPath& path : plan.paths) {
    parts.push_back(TransferTuning::kCalls / of_worker[path.path.worker]);
    if (relayed(path)) cores += parts.back();
  }
  const double allowed = TransferTuning::kCore * static_cast<double>(plan.paths.size());
  const double scale = allowed / std::max(cores, allowed);
  std::vector<double> most;
  for (size_t i = 0; i < parts.size(); ++i) {
    const double calls = chunk_calls_ns(plan.paths[i].path, 1, 0, false);
    most.push_back(std::max(end_ns * scale * parts[i] / calls, 1.0));
  }
  return most;
}

// Divides the bytes of a copy among the paths of a plan.
class Dealing {
 public:
  Dealing(const Request& request, const TransferPlan& plan, const Deal& how, uint64_t copy_ns,
          uint64_t now, FlowForecast* forecast)
      : plan_(plan),
        by_rate_(how.by_rate),
        terms_(terms_of(request, how, copy_ns)),
        now_(now),
        own_(request.stream_key()),
        forecast_(*forecast),
        loads_(forecast->loads(plan)),
        crowds_(crowds(plan)),
        stocks_(stocks_of(request, plan)) {}

  // Fills in the flows and their end, for at most so many chunks as it says. A path that would
  // begin too late for even one chunk is left out, next time too.
  void deal(Division* division) {
    do {
      division->flows = empty_flows(*division);
      division->end_ns = fill(&division->flows);
    } while (leave_slivers(division->flows));
  }

 private:
  // What is known of the flows before they have bytes: how late each one begins.
  std::vector<FlowForecast::Flow> empty_flows(const Division& division) const {
    std::vector<FlowForecast::Flow> flows(plan_.paths.size());
    std::map<int, double> calls;  // ns of calls so far, by worker GPU
    for (const Stock& stock : stocks_) {
      double rate = 1e-3;
      for (const size_t i : stock.paths) rate += plan_.paths[i].rate;
      for (const size_t i : stock.paths) {
        const PlannedPath& path = plan_.paths[i];
        const double part = static_cast<double>(stock.bytes) * path.rate / rate;
        CutTerms terms = terms_;
        terms.most = division.most[i];
        terms.crowd = crowds_[i];
        terms.flows = division.at_once[i];
        const Cutting cutting = cutting_of(path, part, std::move(terms), loads_, forecast_);
        double& before = calls[path.path.worker];
        flows[i] = flow_of(path, division.at_once[i], cutting.delay_ns() + before);
        before += 2 * TransferTuning::kCallNs + TransferTuning::kPathNs;
      }
    }
    return flows;
  }

  // Gives the flows their bytes. Returns when all of them end.
  double fill(std::vector<FlowForecast::Flow>* flows) const {
    std::vector<FlowForecast::Stock> parts;
    for (const Stock& stock : stocks_) {
      parts.push_back({static_cast<double>(stock.bytes), stock.paths});
    }
    if (!by_rate_) return forecast_.share(now_, parts, flows, own_);
    for (const FlowForecast::Stock& part : parts) deal_by_rate(plan_, part, flows);
    return forecast_.end_ns(now_, *flows, own_);
  }

  // Whether paths that carry too little were left out.
  bool leave_slivers(const std::vector<FlowForecast::Flow>& flows) {
    const auto sliver = [&](size_t i) {
      return flows[i].bytes < static_cast<double>(TransferTuning::kLeastChunk) / 2;
    };
    bool left = false;
    for (Stock& stock : stocks_) {
      const auto end = std::remove_if(stock.paths.begin(), stock.paths.end(), sliver);
      if (end == stock.paths.end() || end == stock.paths.begin()) continue;
      stock.paths.erase(end, stock.paths.end());
      left = true;
    }
    return left;
  }

  const TransferPlan& plan_;
  const bool by_rate_;
  const CutTerms terms_;
  const uint64_t now_;
  const StreamKey own_;
  FlowForecast& forecast_;
  const std::vector<double> loads_;  // of the links, by all paths of the plan
  const std::vector<double> crowds_;
  std::vector<Stock> stocks_;
};

// How many copies of the path flow at once. A short copy has the usual number: it has not the
// chunks for more, and each number of copies makes the search for cuts longer.
size_t at_once_of(const TransferPlan& plan, const PlannedPath& path, Bytes bytes,
                  uint64_t copy_ns) {
  const bool few = expected_ns(plan, bytes, copy_ns) < TransferTuning::kWorthAsking;
  return few ? TransferTuning::kFlows : path.at_once;
}

size_t buffers_of(const PathShare& share) {
  Bytes most = 0;
  for (const Range& chunk : share.chunks) most = std::max(most, chunk.bytes());
  const size_t buffers = buffers_for(share.path->path, static_cast<double>(most), share.streams);
  return std::min(buffers, share.chunks.size());
}

// Takes about `wanted` bytes from the stock's first range. If other ranges follow, this one is cut
// into equal parts. Otherwise its remainder would be a short chunk among others. At most `most`
// bytes are taken. A chunk that is not longer than `longest` does not become longer than that.
Range take(const Request& request, Stock* stock, Bytes wanted, Bytes most, Bytes longest) {
  Range& front = stock->ranges.front();
  const auto whole = static_cast<double>(front.bytes());
  double parts = std::max(std::round(whole / static_cast<double>(wanted)), 1.0);
  if (wanted <= longest) parts = std::max(parts, std::ceil(whole / static_cast<double>(longest)));
  Bytes part = round_up(static_cast<Bytes>(whole / parts), 4 * kKiB);
  if (stock->ranges.size() == 1 || part > most) part = round_up(wanted, 4 * kKiB);
  Range taken{front.begin, request.parts.chunk_end(front.begin, part, front.end)};
  if (request.in_rows && part <= most && taken.end < front.end) {
    taken.end = request.parts.part_end_near(taken.begin, taken.end, longest);
  }
  front.begin = taken.end;
  if (front.begin == front.end) stock->ranges.pop_front();
  stock->bytes -= taken.bytes();
  return taken;
}

// The caller waits for the calls of all threads.
double calls_ns(const std::vector<PathShare>& shares) {
  CallTimes all;
  for (const PathShare& share : shares) {
    const Path& path = share.path->path;
    all.add_once(path, TransferTuning::kPathNs);
    all.add(path, static_cast<double>(share.chunks.size()), share.buffers, share.streams.joined);
  }
  return all.longest_ns() + (all.threads() > 1 ? TransferTuning::kHandOverNs : 0);
}

}  // namespace

int node_of(const Path& path) {
  const Place &from = path.hops.front().from, &to = path.hops.back().to;
  return from.host() ? from.node : to.host() ? to.node : kSpread;
}

Bytes PathShare::bytes() const {
  Bytes sum = 0;
  for (const Range& chunk : chunks) sum += chunk.bytes();
  return sum;
}

Request by_socket(Request request, bool rows) {
  if (request.stripes.empty()) return request;
  std::map<int, std::vector<Range>> of_socket;
  Bytes begin = 0;
  for (const Stripe& stripe : request.stripes) {
    of_socket[stripe.node].push_back({begin, stripe.end});
    begin = stripe.end;
  }
  std::vector<Part> parts;
  std::vector<Piece> pieces;
  std::vector<Stripe> stripes;
  Bytes end = 0;
  for (const auto& [node, ranges] : of_socket) {
    for (const Range& range : ranges) {
      request.parts.pieces(range, &pieces);
      for (const Piece& piece : pieces) parts.push_back({piece.dst, piece.src, piece.bytes});
      end += range.bytes();
    }
    stripes.push_back({end, node});
  }
  request.by_socket = request.parts.count() == 1;
  request.parts = Parts(parts);
  request.in_rows = rows && request.by_socket && request.parts.regular();
  request.stripes = std::move(stripes);
  return request;
}

Shares share_out(const Request& request, const TransferPlan& plan, const Deal& how,
                 uint64_t copy_ns, uint64_t now, FlowForecast* forecast) {
  Division division{how, {}, {}, std::vector<double>(plan.paths.size(), kMany)};
  for (const PlannedPath& path : plan.paths) {
    division.at_once.push_back(at_once_of(plan, path, request.parts.total(), copy_ns));
  }
  Dealing dealing(request, plan, how, copy_ns, now, forecast);
  // The number of chunks depends on the end, and the end on the length of chunks.
  dealing.deal(&division);
  division.most = most_by_calls(plan, division.end_ns);
  dealing.deal(&division);
  return cut(request, plan, std::make_shared<const Division>(std::move(division)), copy_ns,
             *forecast);
}

Shares cut(const Request& request, const TransferPlan& plan, const DivisionPtr& division,
           uint64_t copy_ns, const FlowForecast& forecast) {
  std::vector<PathShare> shares;
  for (const PlannedPath& path : plan.paths) shares.push_back({&path, {}});
  const std::vector<double> loads = forecast.loads(plan), crowd = crowds(plan);
  for (Stock& stock : stocks_of(request, plan)) {
    const auto carries = [&](size_t i) { return division->flows[i].bytes > 0; };
    std::vector<size_t> paths;
    std::copy_if(stock.paths.begin(), stock.paths.end(), std::back_inserter(paths), carries);
    if (paths.empty()) paths = stock.paths;
    double all = 0;
    for (const size_t i : paths) all += division->flows[i].bytes;
    const double scale = all > 0 ? static_cast<double>(stock.bytes) / all : 1;
    for (size_t k = 0; k < paths.size() && stock.bytes != 0; ++k) {
      const size_t i = paths[k];
      PathShare& share = shares[i];
      const auto part = static_cast<Bytes>(scale * division->flows[i].bytes);
      Bytes left = k + 1 == paths.size() ? stock.bytes : std::min(part, stock.bytes);
      if (left == 0) continue;
      CutTerms terms = terms_of(request, division->how, copy_ns);
      terms.most = division->most[i];
      terms.crowd = crowd[i];
      terms.times = division->chunks;
      terms.apart = division->apart;
      terms.flows = division->at_once[i];
      const Cutting cutting =
          cutting_of(*share.path, static_cast<double>(left), std::move(terms), loads, forecast);
      share.streams = cutting.streams();
      const Bytes over = left / TransferTuning::kOverPart;
      for (Bytes done = 0; left != 0 && stock.bytes != 0;) {
        const Bytes wanted = cutting.next(done, left, stock.ranges.front().bytes());
        const Range chunk = take(request, &stock, wanted, left + over,
                                 longest_chunk(share.path->path, share.streams));
        share.chunks.push_back(chunk);
        done += chunk.bytes();
        left -= std::min(left, chunk.bytes());
      }
    }
  }
  Shares taken;
  taken.division = division;
  taken.end_ns = division->end_ns;
  for (size_t i = 0; i < shares.size(); ++i) {
    if (shares[i].chunks.empty()) continue;
    shares[i].buffers = buffers_of(shares[i]);
    taken.flows.push_back(division->flows[i]);
    taken.flows.back().bytes = static_cast<double>(shares[i].bytes());
    taken.paths.push_back(std::move(shares[i]));
  }
  taken.calls_ns = calls_ns(taken.paths);
  return taken;
}

std::vector<FlowForecast::Flow> flows_of(const Expected& copy, uint64_t copy_ns,
                                         const FlowForecast& forecast) {
  std::vector<FlowForecast::Flow> flows;
  const std::vector<double> loads = forecast.loads(*copy.plan), crowd = crowds(*copy.plan);
  const auto copies = static_cast<double>(copy.copies);
  for (size_t i = 0; i < crowd.size(); ++i) {
    const PlannedPath& path = copy.plan->paths[i];
    const double bytes = static_cast<double>(copy.bytes) * path.rate / copy.plan->rate;
    CutTerms terms;
    terms.most = kMany;
    terms.crowd = crowd[i];
    terms.blocked = TransferTuning::kBlocked;
    terms.copy_ns = copy_ns;
    const Cutting cutting = cutting_of(path, bytes / copies, std::move(terms), loads, forecast);
    const bool plain = copy.plan->paths.size() == 1 && !relayed(path);
    const auto each = static_cast<Bytes>(static_cast<double>(copy.bytes) / copies);
    const size_t at_once = plain ? 1 : at_once_of(*copy.plan, path, each, copy_ns);
    flows.push_back(flow_of(path, at_once, copies * cutting.delay_ns()));
    flows.back().bytes = bytes;
  }
  return flows;
}

double Outlook::calls_weigh() const {
  return known ? TransferTuning::kBlocked + static_cast<double>(followers())
               : TransferTuning::kBlockedUnknown;
}

double plain_end_ns(const Request& request, const PlannedPath& direct, uint64_t copy_ns,
                    uint64_t now, FlowForecast* forecast) {
  std::vector<FlowForecast::Flow> flows{flow_of(direct, 1, static_cast<double>(copy_ns))};
  return forecast->share(now, {{static_cast<double>(request.parts.total()), {0}}}, &flows,
                         request.stream_key());
}

}  // namespace glake::transfer
