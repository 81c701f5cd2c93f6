// What earlier copies took improves the division of later ones.
#include "transfer/run/division_trials.h"

#include "transfer/run/burst_trials.h"
#include "transfer/run/decisions.h"
#include "transfer/run/live_burst.h"
#include "transfer_play.h"

namespace {

using namespace glake::transfer;
using glake::Bytes;
using test::kMiB;

// A plan with two paths into GPU 0, from one socket or from two, and its division.
struct Two {
  explicit Two(int second_socket = 0, double first = 100, double second = 100) {
    TransferPlan made;
    for (const int node : {0, second_socket}) {
      Path path;
      path.hops.push_back({Place{-1, node}, Place{0}, {}});
      made.paths.push_back({path, 10});
    }
    plan = std::make_shared<const TransferPlan>(std::move(made));
    Division both;
    for (const double mib : {first, second}) {
      both.flows.emplace_back();
      both.flows.back().bytes = mib * static_cast<double>(kMiB);
      both.most.push_back(100);
    }
    division = std::make_shared<const Division>(std::move(both));
  }

  DivisionTimes times(const Division& division, uint64_t first_ns, uint64_t second_ns) const {
    DivisionTimes made;
    made.ns = std::max(first_ns, second_ns);
    made.paths = {{&plan->paths[0], static_cast<Bytes>(division.flows[0].bytes), first_ns},
                  {&plan->paths[1], static_cast<Bytes>(division.flows[1].bytes), second_ns}};
    return made;
  }
  DecisionPtr decision() const {
    auto made = std::make_shared<Decision>();
    made->plan = plan;
    made->division = division;
    return made;
  }

  PlanPtr plan;
  DivisionPtr division;
};

double mib(const Division& division, size_t path) {
  return division.flows[path].bytes / static_cast<double>(kMiB);
}

bool about(double is, double should) { return std::abs(is - should) < 0.01 * should; }

// The second path takes twice as long, so it gets half as much as the first one.
TEST(paths_that_end_late_carry_less) {
  test::running() = "evened";
  const Two two;
  const auto next = evened(*two.plan, *two.division, two.times(*two.division, 1000, 2000), 1);
  CHECK(next.has_value());
  CHECK(about(mib(next->division, 0), 133.33) && about(mib(next->division, 1), 66.67));
  const auto half = evened(*two.plan, *two.division, two.times(*two.division, 1000, 2000), 0.5);
  CHECK(about(mib(half->division, 0), 116.67) && about(mib(half->division, 1), 83.33));
  CHECK(!evened(*two.plan, *two.division, two.times(*two.division, 1000, 1005), 1).has_value());
}

// A path's time without a flow is no reason to think it slow.
TEST(the_delay_of_a_path_is_left_out) {
  test::running() = "delay";
  const Two two;
  Division division = *two.division;
  division.flows[1].delay_ns = 1000;
  const auto next = evened(*two.plan, division, two.times(division, 2000, 3000), 1);
  // Both carry 1 MiB in 20 ns. They end together where the second has 50 MiB less.
  CHECK(about(mib(next->division, 0), 125) && about(mib(next->division, 1), 75));
}

TEST(bytes_of_one_socket_are_not_moved_to_another) {
  test::running() = "sockets";
  const Two two(1);
  CHECK(!evened(*two.plan, *two.division, two.times(*two.division, 1000, 2000), 1).has_value());
}

TEST(a_path_of_next_to_nothing_is_left_out) {
  test::running() = "sliver";
  const Two two(0, 100, 1);
  const auto next = evened(*two.plan, *two.division, two.times(*two.division, 1000, 9000), 1);
  CHECK(next->division.flows[1].bytes == 0);
}

TEST(a_copy_that_went_another_way_shows_nothing) {
  test::running() = "other paths";
  const Two two, other;
  DivisionTimes times = two.times(*two.division, 1000, 2000);
  times.paths[1].path = &other.plan->paths[1];
  CHECK(!evened(*two.plan, *two.division, times, 1).has_value());
  times = two.times(*two.division, 1000, 0);  // its second path has no time
  CHECK(!evened(*two.plan, *two.division, times, 1).has_value());
}

// A machine whose first path carries 1 MiB in 10 ns, its second one 1 MiB in `ns`.
class Machine {
 public:
  explicit Machine(double ns) : ns_(ns) { trials.decide(0, two.decision()); }
  uint64_t copy() {
    const Division& division = *trials.next(0)->division;
    const auto first = static_cast<uint64_t>(10 * mib(division, 0)),
               second = static_cast<uint64_t>(ns_ * mib(division, 1));
    const DivisionTimes times = two.times(division, first, second);
    trials.saw({times}, times.ns);
    return times.ns;
  }
  void slow_down(double ns) { ns_ = ns; }

  Two two;
  DivisionTrials trials{1};

 private:
  double ns_;
};

TEST(trials_end_with_the_best_division) {
  test::running() = "trials";
  Machine machine(30);
  CHECK(machine.copy() == 3000);
  uint64_t ns = 0;
  for (int i = 0; i < 20; ++i) ns = machine.copy();
  CHECK(about(static_cast<double>(ns), 1500));
  CHECK(!machine.trials.next(0)->trial);
  const DivisionPtr settled = machine.trials.next(0)->division;
  machine.copy();
  CHECK(machine.trials.next(0)->division == settled);
  // The second path becomes slower. Soon the division fits again.
  machine.slow_down(90);
  for (int i = 0; i < 20; ++i) ns = machine.copy();
  CHECK(about(static_cast<double>(ns), 1800));
}

// Whatever is tried, it takes longer than the first division did.
TEST(what_took_longer_does_not_stay) {
  test::running() = "worse";
  const Two two;
  DivisionTrials trials(1);
  trials.decide(0, two.decision());
  trials.saw({two.times(*two.division, 1000, 2000)}, 2000);
  int tried = 0;
  for (; trials.next(0)->trial && tried < 100; ++tried) {
    const Division& division = *trials.next(0)->division;
    trials.saw({two.times(division, 1000, 2100)}, 2100);
  }
  CHECK(tried >= 3 && tried < 12);  // two steps of bytes, more and fewer chunks
  CHECK(trials.next(0)->division == two.division);
}

TEST(more_or_fewer_chunks_are_tried) {
  test::running() = "chunks";
  const Two two;
  DivisionTrials trials(1);
  trials.decide(0, two.decision());
  trials.saw({two.times(*two.division, 1000, 1000)}, 1000);
  double least = 1;
  for (int i = 0; i < 20; ++i) {
    const Division& division = *trials.next(0)->division;
    least = std::min(least, division.chunks);
    const auto ns = static_cast<uint64_t>(1000 * std::abs(division.chunks - 0.5) + 1000);
    trials.saw({two.times(division, ns, ns)}, ns);
  }
  CHECK(about(trials.next(0)->division->chunks, 0.49));
  CHECK(least < 0.4);  // fewer were tried
}

// With fewer chunks the second path would be faster. The first is as slow as ever, so nothing is
// gained until it carries less.
TEST(what_chunks_are_worth_shows_when_paths_end_together) {
  test::running() = "chunks, evened";
  const Two two;
  DivisionTrials trials(1);
  trials.decide(0, two.decision());
  uint64_t ns = 0;
  for (int i = 0; i < 20; ++i) {
    const Division& division = *trials.next(0)->division;
    const double slow = 10, fast = division.chunks < 1 ? 6 : 10;  // ns for 1 MiB
    const auto times = two.times(division, static_cast<uint64_t>(slow * mib(division, 0)),
                                 static_cast<uint64_t>(fast * mib(division, 1)));
    ns = times.ns;
    trials.saw({times}, ns);
  }
  CHECK_TEXT(about(static_cast<double>(ns), 750), std::to_string(ns));
  const Division& settled = *trials.next(0)->division;
  CHECK(settled.chunks < 1 && about(mib(settled, 0), 75) && about(mib(settled, 1), 125));
}

// Each round with more chunks takes a little less time, but its calls take the caller much more.
TEST(calls_cost_time_too) {
  test::running() = "calls";
  const Two two;
  const auto chunks_in_the_end = [&](double calls_ns) {
    DivisionTrials trials(1);
    auto decision = std::make_shared<Decision>(*two.decision());
    decision->calls_ns = calls_ns;
    trials.decide(0, decision);
    for (int i = 0; i < 20; ++i) {
      const Division& division = *trials.next(0)->division;
      const auto ns = static_cast<uint64_t>(100'000 - 2'000 * division.chunks);
      trials.saw({two.times(division, ns, ns)}, ns);
    }
    return trials.next(0)->division->chunks;
  };
  CHECK(chunks_in_the_end(100) > 2);
  CHECK(chunks_in_the_end(100) <=
        glake::TransferTuning::kMostChunkFactor);  // however often it gains
  CHECK(chunks_in_the_end(25'000) < 1);
}

// Here fewer chunks cannot be made, because they would be too long. So fewer chunks are no better,
// although fewer calls were expected of them.
TEST(trials_count_the_calls_that_were_made) {
  test::running() = "calls made";
  const Two two;
  DivisionTrials trials(1);
  for (int i = 0; i < 20; ++i) {
    auto made = std::make_shared<Decision>(*two.decision());
    made->calls_ns = 30'000;
    if (i == 0) {
      trials.decide(0, made);
    } else {
      trials.cut(0, made, false);
      CHECK(trials.next(0)->shares.empty() && trials.next(0)->calls_ns == 30'000);
    }
    const Division& division = *trials.next(0)->division;
    const uint64_t ns = division.chunks > 1 ? 110'000 : 100'000;
    trials.saw({two.times(division, ns, ns)}, ns);
  }
  CHECK(trials.next(0)->division == two.division);
}

// The copies of a burst are tried together, and plain ones among them stay plain.
TEST(a_burst_is_tried_as_a_whole) {
  test::running() = "burst";
  const Two two;
  DivisionTrials trials(3);
  for (const size_t i : {size_t{0}, size_t{2}}) trials.decide(i, two.decision());
  trials.decide(1, std::make_shared<const Decision>());
  const auto saw = [&](uint64_t ns) {
    std::vector<DivisionTimes> times(3);
    for (const size_t i : {size_t{0}, size_t{2}}) {
      times[i] = two.times(*trials.next(i)->division, 1000, 2000);
    }
    trials.saw(std::move(times), ns);
  };
  saw(5000);
  const DivisionPtr first = trials.next(0)->division, last = trials.next(2)->division;
  CHECK(trials.next(0)->trial && trials.next(2)->trial && trials.next(1)->plan == nullptr);
  saw(4000);  // better: both stay, and both are tried further
  saw(9000);
  bool halves = false;  // there were trials of one of them alone
  while (trials.next(0)->trial || trials.next(2)->trial) {
    halves = halves || trials.next(0)->trial != trials.next(2)->trial;
    saw(9000);
  }
  CHECK(halves);
  CHECK(trials.next(0)->division == first && trials.next(2)->division == last);
}

using Numbers = std::vector<size_t>;

// Copies over a direct path with 3 chunks at once and a relayed one with 5; the plan calls
// `nearest` nearest. Plays trials, in which a copy takes what `ns` says. Returns how many had other
// numbers of chunks at once than before.
template <class Ns>
int play_at_once(DivisionTrials* trials, size_t copies, Ns ns, const Numbers& nearest = {3, 5}) {
  const Two two;
  TransferPlan plan = *two.plan;
  plan.paths[1].path.hops.push_back({Place{0}, Place{1}, {}});
  for (size_t i = 0; i < 2; ++i) plan.paths[i].nearest_at_once = nearest[i];
  Decision wide = *two.decision();
  wide.plan = std::make_shared<const TransferPlan>(plan);
  Division many = *two.division;
  many.at_once = {3, 5};
  wide.division = std::make_shared<const Division>(many);
  for (size_t i = 0; i < copies; ++i) trials->decide(i, std::make_shared<const Decision>(wide));
  int tried = 0;
  for (int i = 0; i < 15; ++i) {
    std::vector<DivisionTimes> times;
    uint64_t all = 0;
    for (size_t k = 0; k < copies; ++k) {
      const Division& division = *trials->next(k)->division;
      const uint64_t took = ns(k, division);
      times.push_back(two.times(division, took, took));
      for (size_t p = 0; p < 2; ++p) times[k].paths[p].path = &wide.plan->paths[p];
      all = std::max(all, took);
    }
    tried += trials->next(0)->division->at_once != many.at_once;
    trials->saw(std::move(times), all);
  }
  return tried;
}

// More chunks at once of the first copy would need more calls, which hold up the second one.
TEST(the_first_copies_may_have_fewer_chunks_at_once) {
  test::running() = "fewer at once";
  DivisionTrials trials(2);
  bool second = false;
  const int tried = play_at_once(&trials, 2, [&](size_t copy, const Division& division) {
    const bool few = division.at_once[1] == 2;
    second = second || (copy == 1 && few);
    return copy == 0 && few ? 1000 : trials.next(0)->division->at_once[1] == 2 ? 900 : 1100;
  });
  CHECK(tried > 1 && !second && trials.next(0)->division->chunks == 1);
  CHECK(trials.next(0)->division->at_once == (Numbers{3, 2}));
}

// With more copies at once the direct path has its part of a link that a relayed path crosses in
// bursts. What does not help does not stay.
TEST(a_direct_path_may_have_more_copies_at_once) {
  test::running() = "more at once";
  for (const bool helps : {true, false}) {
    DivisionTrials trials(1);
    const int tried = play_at_once(&trials, 1, [&](size_t, const Division& division) {
      return (division.at_once[0] > 3) == helps ? 900 : 1000;
    });
    CHECK(tried > 0 && (tried < 4 || helps));
    const Numbers& at_once = trials.best(0)->division->at_once;
    CHECK(at_once == (Numbers{helps ? 6u : 3u, 5}));
    CHECK(!helps || trials.best(0)->division->flows[0].copies == 6);
  }
}

// The numbers that the plan calls nearest are tried, in all copies of a burst.
TEST(numbers_at_once_that_are_nearest_are_tried) {
  test::running() = "nearest";
  const Numbers nearest{4, 3}, before{3, 5};
  for (const bool helps : {true, false}) {
    DivisionTrials trials(2);
    play_at_once(
        &trials, 2,
        [&](size_t, const Division& division) {
          return (division.at_once == nearest) == helps ? 900 : 1000;
        },
        nearest);
    for (const size_t copy : {0, 1}) {
      const Division& kept = *trials.best(copy)->division;
      CHECK(kept.at_once == (helps ? nearest : before));
      CHECK(!helps || (kept.flows[0].copies == 4 && kept.flows[1].copies == 3));
    }
  }
}

std::vector<Bursts::Copy> pair() {
  return {{{Place{-1, 0}, Place{0}}, kMiB}, {{Place{-1, 0}, Place{1}}, kMiB}};
}

// The first copy of a burst is carried by threads this time, and does not begin as the others do.
// What was decided for it is not taken for the second one, which has other ends.
TEST(a_copy_that_does_not_begin_is_left_out) {
  test::running() = "positions";
  const Two two;
  const std::vector<Bursts::Copy> copies = pair();
  const auto trials = std::make_shared<BurstTrials>(copies);
  for (size_t i = 0; i < 2; ++i) {
    trials->divisions(BurstWay::kUnknown).decide(i, two.decision());
  }
  LiveBurst burst(trials);
  burst.plan_next(copies[0], 0, 1);
  CHECK(burst.trials_of_next(0, true) != nullptr);
  burst.plan_next(copies[1], 1, 1);
  CHECK(burst.trials_of_next(0, true) == nullptr);
}

// A short first copy is done before the second one begins. That does not spoil the burst, but
// another copy beside it does.
TEST(a_copy_that_is_done_early_is_no_other_copy) {
  test::running() = "done early";
  const Two two;
  const std::vector<Bursts::Copy> copies = pair();
  const auto trials = std::make_shared<BurstTrials>(copies);
  LiveBurst burst(trials), disturbed(trials);
  for (LiveBurst* one : {&burst, &disturbed}) {
    one->plan_next(copies[0], 0, 0);
    CHECK(one->trials_of_next(0, true) != nullptr);
    one->begin(two.decision(), 0, 0);
    one->saw(0, 0, two.times(*two.division, 10, 10));
    one->plan_next(copies[1], 1, 0);
  }
  CHECK(burst.trials_of_next(0, true) != nullptr);
  CHECK(disturbed.trials_of_next(1, true) == nullptr);
}

// A plain copy of the burst may still flow, or not. Nobody sees it end.
TEST(a_plain_copy_is_no_other_copy) {
  test::running() = "plain copy";
  const auto trials = std::make_shared<BurstTrials>(pair());
  for (const size_t others : {0, 1, 2}) {
    LiveBurst burst(trials);
    burst.plan_next(trials->copies()[0], 0, 0);
    burst.trials_of_next(0, true);
    burst.begin_plain(0, 0);
    burst.plan_next(trials->copies()[1], 1, 0);
    CHECK((burst.trials_of_next(others, true) != nullptr) == (others < 2));
  }
}

TEST(a_copy_with_other_relays_is_another_copy) {
  test::running() = "relays";
  std::vector<Bursts::Copy> copies = pair();
  LiveBurst burst(std::make_shared<BurstTrials>(copies));
  copies[0].demand.relays = 1;
  burst.plan_next(copies[0], 0, 1);
  CHECK(burst.trials_of_next(0, true) == nullptr);
}

void burst(BurstTrials* trials, BurstWay way, uint64_t ns) {
  CHECK(trials->next() == way);
  for (size_t i = 0; i < trials->copies().size(); ++i) {
    if (trials->divisions(way).next(i) != nullptr) continue;
    trials->divisions(way).decide(i, std::make_shared<const Decision>());
  }
  trials->saw(way, std::vector<DivisionTimes>(trials->copies().size()), ns, true);
}

// The forecast plans both copies together, and thinks the other way 10 % slower. It is faster.
TEST(another_way_of_planning_is_tried_once) {
  test::running() = "ways";
  BurstTrials trials(pair());
  trials.expect(BurstWay::kJoint, 1000, 1100, 5000);
  for (int i = 0; i < 2; ++i) trials.chose(BurstWay::kJoint);
  burst(&trials, BurstWay::kUnknown, 1050);
  burst(&trials, BurstWay::kApart, 900);
  for (int i = 0; i < 3; ++i) burst(&trials, BurstWay::kApart, 905);
  // The links have become slower: all ways are tried again.
  for (int i = 0; i < 3; ++i) burst(&trials, BurstWay::kApart, 2000);
  CHECK(trials.next() == BurstWay::kUnknown);
}

// Other copies come between each time, so nothing is learnt of the other way.
TEST(a_way_is_not_tried_for_ever) {
  test::running() = "tried for ever";
  BurstTrials trials(pair());
  trials.expect(BurstWay::kJoint, 1000, 1100, 5000);
  trials.chose(BurstWay::kJoint);
  burst(&trials, BurstWay::kUnknown, 1050);
  for (int i = 0; i < 3; ++i) {
    CHECK(trials.next() == BurstWay::kApart);
    trials.wants_time(BurstWay::kApart);
  }
  CHECK(trials.next() == BurstWay::kUnknown);
}

// The forecast chooses plain copies, which nobody times. Another way is taken if a burst that was
// not foreseen has gone it, and was faster.
TEST(a_plain_burst_is_as_fast_as_forecast) {
  test::running() = "plain";
  BurstTrials trials(pair());
  trials.expect(BurstWay::kPlain, 1000, 1000, 1000);
  for (int i = 0; i < 2; ++i) trials.chose(BurstWay::kPlain);
  CHECK(trials.next() == BurstWay::kPlain);
  trials.divisions(BurstWay::kApart).decide(0, std::make_shared<const Decision>());
  trials.divisions(BurstWay::kApart).decide(1, std::make_shared<const Decision>());
  trials.saw(BurstWay::kApart, std::vector<DivisionTimes>(2), 980,
             true);  // no faster than plain copies
  CHECK(trials.next() == BurstWay::kPlain);
  trials.saw(BurstWay::kApart, std::vector<DivisionTimes>(2), 900, true);
  CHECK(trials.next() == BurstWay::kApart);
}

// The forecast plans the copies together, and the last one is plain. That does not make all plain.
TEST(a_plain_copy_makes_no_plain_burst) {
  test::running() = "one plain copy";
  BurstTrials trials(pair());
  trials.expect(BurstWay::kJoint, 900, 2000, 1000);
  trials.chose(BurstWay::kJoint);
  trials.chose(BurstWay::kPlain);
  CHECK(trials.next() == BurstWay::kUnknown);
  trials.give_up(BurstWay::kUnknown, 950);
  CHECK(trials.next() == BurstWay::kUnknown);
  trials.give_up(BurstWay::kUnknown, 1050);  // plain copies would have been faster
  CHECK(trials.next() == BurstWay::kJoint);  // all of them by relays may be as well
  trials.give_up(BurstWay::kJoint, 1050);
  CHECK(trials.next() == BurstWay::kPlain);
}

// The first burst that goes the forecast's way has a plain copy, which is timed like the other one.
// The next ones are not timed, so nothing is moved between their paths. Another way that took less
// is taken, and a way that has become slower is given up.
TEST(plain_copies_are_timed_once) {
  test::running() = "timed";
  const Two two;
  const std::vector<Bursts::Copy> copies = pair();
  const auto trials = std::make_shared<BurstTrials>(copies);
  trials->forget(1);
  const auto play = [&](bool plain, uint64_t ns) {
    LiveBurst burst(trials);
    burst.plan_next(copies[0], 0, 1);
    burst.chose(BurstWay::kJoint, 9e6, 9.5e6, 30e6);
    const bool timed = burst.timed();
    CHECK(burst.begin(two.decision(), 0, 0) == 0);
    burst.plan_next(copies[1], 1, 1);
    if (plain && !timed) {
      burst.begin_plain(1, 0);
    } else {
      auto direct = std::make_shared<Decision>();
      direct->plan = two.plan;
      CHECK(burst.begin(plain ? direct : two.decision(), 1, 0) == 1);
      burst.saw(1, 0, two.times(*two.division, ns, ns));
    }
    burst.saw(0, 0, two.times(*two.division, ns / 2, ns / 2));
    burst.settle(2, 1);
    return timed;
  };
  CHECK(play(true, 10'000'000));
  CHECK(trials->next() == BurstWay::kApart);  // it is forecast to take about as long
  CHECK(play(true, 12'000'000));
  CHECK(trials->next() == BurstWay::kUnknown);
  for (int i = 0; i < 5; ++i) CHECK(!play(true, 10'000'000));
  CHECK(trials->next() == BurstWay::kUnknown);
  CHECK(!trials->divisions(BurstWay::kUnknown).next(0)->trial);
  for (int i = 0; i < 3; ++i) play(true, 40'000'000);  // the copy that is not plain takes 20 ms
  CHECK(trials->next() == BurstWay::kUnknown && play(true, 40'000'000));  // all begins anew
}

// Where other copies come between again and again, bursts are not timed for ever.
TEST(timings_end) {
  test::running() = "timings end";
  const auto trials = std::make_shared<BurstTrials>(pair());
  int timed = 0;
  for (int i = 0; i < 100; ++i) {
    LiveBurst burst(trials);
    burst.plan_next(trials->copies()[0], 0, 0);
    burst.chose(BurstWay::kJoint, 9e6, 9.5e6, 30e6);
    timed += burst.timed();
    burst.trials_of_next(1, true);
    CHECK(!burst.timed());
  }
  CHECK(timed >= 3 && timed < 10);
}

// The calls that it takes to time plain copies would make a short burst slower.
TEST(a_short_burst_is_not_timed) {
  test::running() = "short";
  const auto trials = std::make_shared<BurstTrials>(pair());
  LiveBurst burst(trials);
  burst.plan_next(trials->copies()[0], 0, 0);
  burst.chose(BurstWay::kJoint, 3e4, 3.2e4, 10e4);
  CHECK(!burst.timed());
}

// The forecast was wrong: plain copies would be faster.
TEST(a_burst_becomes_plain) {
  test::running() = "becomes plain";
  BurstTrials trials(pair());
  trials.expect(BurstWay::kJoint, 900, 2000, 1000);
  trials.chose(BurstWay::kJoint);
  burst(&trials, BurstWay::kUnknown, 1100);
  CHECK(trials.next() == BurstWay::kPlain);
}

TEST(a_way_that_is_forecast_to_be_slow_is_not_tried) {
  test::running() = "slow ways";
  BurstTrials trials(pair());
  trials.expect(BurstWay::kJoint, 1000, 2000, 5000);
  trials.chose(BurstWay::kJoint);
  for (int i = 0; i < 3; ++i) burst(&trials, BurstWay::kUnknown, 1050);
  trials.forget(7);
  CHECK(trials.version() == 7 && trials.next() == BurstWay::kUnknown);
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
