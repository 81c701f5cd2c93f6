#include "transfer/run/transfer.h"

#include <algorithm>

#include "base/transfer_tuning.h"
#include "plan/plan_json.h"
#include "transfer/run/health_book.h"

namespace glake::transfer {
namespace {

// A size of about `wanted` that divides `whole` almost evenly. A small last part would cost as much
// as a large one.
Bytes even_part(Bytes whole, Bytes wanted) {
  const Bytes count =
      std::max<Bytes>((whole + wanted - wanted / TransferTuning::kSmallLast - 1) / wanted, 1);
  return std::min(round_up(whole / count, 4 * kKiB), whole);
}

// Paths with the same reason are named together, because one driver often refuses all of them.
template <typename Lanes>
std::string why_closed(const Lanes& runs) {
  std::vector<std::pair<std::string, std::string>> reasons;  // each reason, and its paths in order
  for (const auto& run : runs) {
    std::string path = run->name();
    std::string why = run->health->why().empty() ? run->why : run->health->why();
    const std::string of = " of " + path + ": ";  // a hop's own reason begins behind "copy 2"
    if (const size_t at = why.find(of); at != std::string::npos) {
      path += " (" + why.substr(0, at) + ")";
      why.erase(0, at + of.size());
    }
    const auto same = std::find_if(reasons.begin(), reasons.end(),
                                   [&](const auto& known) { return known.first == why; });
    if (same == reasons.end()) {
      reasons.emplace_back(why, path);
    } else {
      same->second += ", " + path;
    }
  }
  std::string text;
  for (const auto& [why, paths] : reasons)
    text += (text.empty() ? "; by path: " : "; ") + paths + ": " + why;
  return text;
}

}  // namespace

const char* state_name(State state) {
  static const char* const names[] = {"waiting", "running", "done", "failed", "cancelled"};
  return names[static_cast<size_t>(state)];
}

Transfer::Transfer(Request what) : request(std::move(what)), stocks_(1) {
  if (request.stripes.empty()) {
    give_back({0, total()});
    return;
  }
  for (const Stripe& stripe : request.stripes) {
    stocks_.resize(std::max(stocks_.size(), static_cast<size_t>(stripe.node) + 1));
  }
  Bytes begin = 0;
  for (const Stripe& stripe : request.stripes) {
    Stock& stock = stocks_[static_cast<size_t>(stripe.node)];
    stock.ranges.push_back({begin, stripe.end});
    stock.bytes += stripe.end - begin;
    begin = stripe.end;
  }
}

Bytes Transfer::left() const {
  Bytes sum = 0;
  for (const Stock& stock : stocks_) sum += stock.bytes;
  return sum;
}

size_t Transfer::stock_at(Bytes offset) const {
  if (stocks_.size() == 1) return 0;
  auto stripe = std::upper_bound(request.stripes.begin(), request.stripes.end(), offset,
                                 [](Bytes at, const Stripe& s) { return at < s.end; });
  return static_cast<size_t>(stripe->node);
}

size_t Transfer::own_stock(const PathRun& run) const {
  const auto node = static_cast<size_t>(std::max(run.node(), 0));
  return node < stocks_.size() ? node : 0;
}

// The bytes of the run's own socket come first, then those of a socket that no path serves.
int Transfer::index_for(const PathRun& run) const {
  const size_t own = own_stock(run);
  if (stocks_[own].bytes != 0) return static_cast<int>(own);
  for (size_t i = 0; i < stocks_.size(); ++i) {
    if (stocks_[i].bytes != 0 && planned_rate(i) <= 0) return static_cast<int>(i);
  }
  return -1;
}

const Transfer::Stock* Transfer::stock_for(const PathRun& run) const {
  const int index = index_for(run);
  return index < 0 ? nullptr : &stocks_[static_cast<size_t>(index)];
}

Transfer::Stock* Transfer::stock_for(const PathRun& run) {
  const int index = index_for(run);
  return index < 0 ? nullptr : &stocks_[static_cast<size_t>(index)];
}

Rate Transfer::planned_rate(size_t stock) const {
  Rate sum = 0;
  for (const auto& run : runs) {
    sum += live(*run) && own_stock(*run) == stock ? run->planned.rate : 0;
  }
  return sum;
}

void Transfer::give_back(Range range) {
  Stock& stock = stocks_[stock_at(range.begin)];
  stock.ranges.push_front(range);
  stock.bytes += range.bytes();
}

bool Transfer::live(const PathRun& run) const {
  return !run.closed && run.health->state() != PathState::kQuarantined;
}

Range Transfer::take(const PathRun& run, Bytes wanted) {
  Stock& stock = *stock_for(run);
  Range& front = stock.ranges.front();
  const Bytes bytes = even_part(front.bytes(), wanted);
  const Range taken{front.begin, request.parts.chunk_end(front.begin, bytes, front.end)};
  front.begin = taken.end;
  if (front.begin == front.end) stock.ranges.pop_front();
  stock.bytes -= taken.bytes();
  return taken;
}

bool Transfer::may_take(const PathRun& run, uint64_t now, uint64_t copy_ns) const {
  if (run.closed) return false;
  if (run.health->state() == PathState::kSuspect) return false;
  if (run.health->state() == PathState::kQuarantined) {
    if (run.in_flight != 0) return false;  // one small chunk at a time
    // If there is no other path, the rest is cut into short chunks.
    const bool others = std::any_of(runs.begin(), runs.end(), [&](const auto& other) {
      return live(*other) || (other->in_flight != 0 && !other->closed);
    });
    return run.health->may_probe(now) || !others;
  }
  if (now < run.hops.front().earliest_start(copy_ns)) return false;
  const bool slow_first = !run.relayed() || request.src.host();
  const unsigned flows = run.hops.front().worker().flows;
  const bool moments = run.hops.front().coupled() || run.hops.back().coupled();
  const unsigned queued =
      // If copies should begin at chosen moments, none may wait in a stream.
      moments ? 0 : TransferTuning::kQueued;
  const unsigned first =
      slow_first ? std::max(TransferTuning::kGoing, flows) + queued : TransferTuning::kGoing;
  unsigned later = 0;  // beyond the first hop
  for (size_t h = 1; h < run.hops.size(); ++h) {
    later +=
        std::max(TransferTuning::kGoing, run.hops[h].worker().flows) + (slow_first ? 0 : queued);
  }
  return run.in_first_hop < first && run.in_flight - run.in_first_hop <= later;
}

// A path leaves a chunk to the other paths if it would land the chunk later than they would land
// all that is left.
bool Transfer::best_choice(const PathRun& run, Bytes bytes, uint64_t now, uint64_t copy_ns) const {
  const uint64_t mine = run.arrival(now, bytes, copy_ns);
  // For each other path: when it begins to land bytes that it has not taken yet, and at what rate.
  std::vector<std::pair<double, Rate>> others;
  uint64_t first = UINT64_MAX;
  for (const auto& other : runs) {
    if (other.get() == &run || !live(*other) || other->health->state() != PathState::kHealthy) {
      continue;
    }
    if (own_stock(*other) != own_stock(run)) continue;
    const Rate rate =
        std::max(std::min(other->pace(), TransferTuning::kOverPlan * other->planned.rate), 1e-3);
    const uint64_t arrival = other->arrival(now, bytes, copy_ns);
    first = std::min(first, arrival);
    others.emplace_back(static_cast<double>(arrival - now) - static_cast<double>(bytes) / rate,
                        rate);
  }
  if (first >= mine) return true;
  std::sort(others.begin(), others.end());
  double end = 0, rate = 0, owed = static_cast<double>(stock_for(run)->bytes);
  for (const auto& [start, each] : others) {
    if (rate > 0 && end <= start) break;
    rate += each;
    owed += each * start;
    end = owed / rate;
  }
  // The other paths land whole chunks, and not a continuous flow, so they may be later than `end`.
  // One start of a copy is allowed for that.
  return static_cast<double>(mine - now) <= end + static_cast<double>(copy_ns);
}

// Whether the run has taken so much more than its planned share that it must wait. A link divides
// its rate among its flows, whatever the plans say, so a thin path would take as much as a wide one
// beside it. That does no harm where one full link is all that they share. But a path over two full
// links takes from both.
bool Transfer::ahead_of_share(const PathRun& run) const {
  if (!run.paced) return false;
  Bytes sum = 0;
  Rate planned = 0;
  size_t count = 0;
  for (const auto& other : runs) {
    const size_t stock = own_stock(*other);
    const bool beside = stock == own_stock(run) || (run.across && stocks_[stock].bytes != 0);
    if (!beside || !live(*other)) continue;
    sum += other->claimed;
    planned += other->planned.rate;
    ++count;
  }
  const double share = run.planned.rate / std::max(planned, 1e-9);
  if (share * static_cast<double>(count) > TransferTuning::kWidePart) return false;
  return static_cast<double>(run.claimed) >
         share * static_cast<double>(sum + 2 * TransferTuning::kMostChunk) +
             static_cast<double>(TransferTuning::kLeastChunk);
}

Bytes Transfer::allowance(const PathRun& run, uint64_t now, uint64_t copy_ns) const {
  const Stock* stock = stock_for(run);
  if (stock == nullptr || state != State::kRunning || cancelled || error != 0) return 0;
  if (!may_take(run, now, copy_ns)) return 0;
  const Bytes rest = stock->bytes;
  const Bytes limit =
      request.pageable || run.relayed() ? TransferTuning::kMostChunk : TransferTuning::kMostDirect;
  // A single path does not share its bytes with others. So its chunks have the length that is best
  // for the threads that copy them into and out of the pinned buffers.
  const bool staged = request.pageable && runs.size() == 1;
  const Bytes least = std::min(run.least(copy_ns), limit);
  if (run.health->state() == PathState::kQuarantined) return std::min(rest, least);
  const bool idle = std::none_of(runs.begin(), runs.end(), [&](const auto& other) {
    return other->in_flight != 0 && own_stock(*other) == own_stock(run);
  });
  if (run.in_flight != 0 && ahead_of_share(run)) return 0;
  const double share =
      std::min(1.0, run.planned.rate / std::max(planned_rate(own_stock(run)), 1e-9));
  const auto part = static_cast<Bytes>(static_cast<double>(rest) * share / 2);
  const auto whole =
      static_cast<Bytes>(static_cast<double>(total()) / static_cast<double>(stocks_.size()) *
                         share / TransferTuning::kShares);
  const Bytes most =
      staged ? TransferTuning::kStagedChunk
             : std::clamp(whole, least, std::max(std::min(run.most(copy_ns), limit), least));
  Bytes bytes = std::clamp(std::min(part, std::max(run.ramp, least)), least, most);
  if (bytes + least / 2 >= rest) bytes = std::min(rest, limit);
  // If no other path is at work, the run takes the chunk in any case. Otherwise each path might
  // leave it to another one for ever.
  return idle || best_choice(run, bytes, now, copy_ns) ? bytes : 0;
}

void Transfer::replan(const TransferPlan& next, HealthBook* book) {
  for (const auto& run : runs) {
    const bool kept = std::any_of(next.paths.begin(), next.paths.end(),
                                  [&](const PlannedPath& p) { return p.path.name == run->name(); });
    if (kept || run->closed) continue;
    run->closed = run->withdrawn = true;
    run->why = "left to others by a new plan";
  }
  for (const PlannedPath& path : next.paths) {
    auto known = std::find_if(runs.begin(), runs.end(),
                              [&](const auto& run) { return run->name() == path.path.name; });
    if (known != runs.end()) {
      (*known)->replan(path);
    } else {
      add_run(path, book);
    }
  }
  plan.rate = next.rate;
  plan.plain = next.plain;
  refusals = next.refusals;
}

void Transfer::add_run(const PlannedPath& path, HealthBook* book) {
  runs.push_back(std::make_unique<PathRun>(path, &book->of(path.path.name)));
}

void Transfer::close_run(PathRun* run, const std::string& reason) {
  run->closed = true;
  run->withdrawn = false;
  run->why = reason;
}

void Transfer::count_failure(PathRun* run) {
  ++run->resent;
  run->ramp = 0;
  if (++run->failures < TransferTuning::kMostFailures || run->closed) return;
  close_run(run, "failed " + std::to_string(run->failures) + " times");
}

void Transfer::fail(int code, const std::string& text, const std::string& details) {
  if (error != 0) return;
  error = code;
  error_text = text;
  error_details_ = details;
}

std::string Transfer::destination_state() const {
  const Bytes sure = landed.bytes();
  if (sure == 0 && unknown.bytes() == 0) return "the destination is as it was";
  std::string text = std::to_string(sure) + " of " + std::to_string(total()) +
                     " bytes of the destination are written";
  if (unknown.bytes() != 0) {
    text += ", and unknown are bytes";
    for (const Range& r : unknown.ranges()) {
      text += " [" + std::to_string(r.begin) + ", " + std::to_string(r.end) + ")";
    }
    text += ", which a copy that was given up may still write";
  }
  return text + "; the others are as they were";
}

bool Transfer::stranded() const {
  if (state != State::kRunning || cancelled || error != 0 || left() == 0) return false;
  return std::all_of(runs.begin(), runs.end(), [](const auto& run) { return run->closed; });
}

bool Transfer::ready() {
  if (over()) return false;
  if (stranded()) fail(GLAKE_COPY_FAILED, "no path is left", why_closed(runs));
  const bool more = !cancelled && error == 0 && left() != 0;
  return !more && in_flight == 0;
}

void Transfer::end(uint64_t now) {
  ended_ns = now;
  if (error != 0) {
    state = State::kFailed;
    error_text += ": " + destination_state() + error_details_;
  } else {
    state = left() != 0 ? State::kCancelled : State::kDone;
  }
  gate.open();
  waiters.clear();
  changed.notify_all();
}

std::string Transfer::json(uint64_t now) const {
  JsonText out;
  out.text("state", state_name(state)).text("error", error_text);
  out.number("bytes", static_cast<double>(total()))
      .number("landed", static_cast<double>(landed.bytes()));
  const uint64_t end = over() ? ended_ns : now;
  const double ns = !begun ? 0 : static_cast<double>(end - std::min(end, started_ns));
  out.number("time_ns", ns).number("rate", ns > 0 ? static_cast<double>(landed.bytes()) / ns : 0);
  out.number("planned", plan.rate).number("plain", plan.plain);
  out.flag("relayed", std::any_of(runs.begin(), runs.end(), [](const auto& run) {
             return run->relayed() && run->landed != 0;
           }));
  out.flag("verified", (request.flags & kChecksum) != 0 && state == State::kDone);
  uint64_t resent = 0;
  std::string list;
  for (const auto& run : runs) {
    JsonText one;
    one.text("path", run->name()).number("bytes", static_cast<double>(run->landed));
    one.number("chunks", static_cast<double>(run->chunks));
    one.number("planned", run->planned.rate);
    one.number("rate", ns > 0 ? static_cast<double>(run->landed) / ns : 0);
    one.number("resent", static_cast<double>(run->resent));
    one.text("state", path_state_name(run->health->state()));
    one.text("why", run->closed ? run->why : run->health->why());
    list += (list.empty() ? "" : ", ") + one.done();
    resent += run->resent;
  }
  out.raw("paths", "[" + list + "]").number("resent", static_cast<double>(resent));
  out.raw("refusals", refusals_json(refusals));
  list.clear();
  for (const Range& r : unknown.ranges()) {
    list +=
        (list.empty() ? "[" : ", [") + std::to_string(r.begin) + ", " + std::to_string(r.end) + "]";
  }
  return out.raw("unknown", "[" + list + "]").done();
}

}  // namespace glake::transfer
