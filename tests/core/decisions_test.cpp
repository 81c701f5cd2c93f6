// The engine keeps how it divided a copy among paths. Only later copies that are the same use that.
#include "transfer/run/decisions.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "transfer_play.h"

namespace {

using namespace glake::transfer;
using test::kMiB;

Decisions::Question question(glake::Bytes bytes, const PlanPtr& plan) {
  Decisions::Question made;
  made.bytes = bytes;
  made.plans = {plan};
  return made;
}

TEST(what_a_decision_depends_on) {
  test::running() = "questions";
  const auto plan = std::make_shared<const TransferPlan>(),
             other = std::make_shared<const TransferPlan>(*plan);
  Decisions decisions;
  const auto decision = std::make_shared<const Decision>();
  const Decisions::Question asked = question(kMiB, plan);
  const auto kept = [&](const Decisions::Question& one) { return decisions.of(one).next(0); };
  CHECK(kept(asked) == nullptr);
  decisions.of(asked).decide(0, decision);
  CHECK(kept(question(kMiB, plan)) == decision);

  std::vector<Decisions::Question> others{question(2 * kMiB, plan), question(kMiB, other)};
  for (int i = 0; i < 5; ++i) others.push_back(asked);
  others[2].plans.push_back(plan);
  others[3].next.push_back({plan, kMiB});
  others[4].known = true;
  others[5].possible = true;
  others[6].behind = 1;
  for (const Decisions::Question& one : others) CHECK(kept(one) == nullptr);
  others[3].next[0].bytes = 2 * kMiB;
  decisions.of(others[3]).decide(0, decision);
  others[3].next[0].bytes = kMiB;
  CHECK(kept(others[3]) == nullptr);
  decisions.forget();
  CHECK(kept(asked) == nullptr);
}

TEST(the_last_few_are_kept) {
  test::running() = "many";
  const auto plan = std::make_shared<const TransferPlan>();
  Decisions decisions;
  const auto of = [&](int i) -> DivisionTrials& {
    return decisions.of(question(static_cast<glake::Bytes>(1000 * std::pow(1.2, i)), plan));
  };
  for (int i = 1; i <= 100; ++i) of(i).decide(0, std::make_shared<const Decision>());
  // What is asked about anew takes the place of what was not asked about for longest.
  for (int i = 69; i <= 100; ++i) CHECK(of(i).next(0) != nullptr);
  for (int i = 1; i <= 68; ++i) CHECK(of(i).next(0) == nullptr);
  of(1).decide(0, std::make_shared<const Decision>());
  for (int i = 2; i <= 68; ++i) CHECK(of(1).next(0) != nullptr && of(i).next(0) == nullptr);
}

// A copy of a new size begins with what was decided for one that is nearly as long, but is improved
// on its own. It is not taken for that one.
TEST(a_near_size_is_divided_alike) {
  test::running() = "near";
  TransferPlan paths;
  paths.paths.resize(1);
  const auto plan = std::make_shared<const TransferPlan>(paths);
  Decisions decisions;
  const auto of = [&](double mib) -> DivisionTrials& {
    return decisions.of(question(static_cast<glake::Bytes>(mib * kMiB), plan));
  };
  const auto decided = [&](size_t at_once) {
    Decision decision;
    decision.plan = plan;
    Division division;
    division.flows.resize(1);
    division.at_once = {at_once};
    decision.division = std::make_shared<const Division>(std::move(division));
    decision.shares.resize(1);
    return std::make_shared<const Decision>(std::move(decision));
  };
  of(100).decide(0, decided(3));
  const DecisionPtr near = of(108).next(0), known = of(100).next(0);
  CHECK(near != nullptr && near->division->at_once == known->division->at_once);
  CHECK(near->division != known->division && near->shares.empty() && near->plan == plan);
  // What was taken over is passed on only to sizes near that of its first copy.
  CHECK(of(92).next(0) != nullptr && of(111).next(0) == nullptr && of(89).next(0) == nullptr);
  of(111).decide(0, decided(5));
  CHECK(of(110.5).next(0)->division->at_once[0] == 5 && of(108).next(0) == near);
  decisions.saw(near->division, {9, {}});
  CHECK(of(100).next(0) == known && of(100).tries() == 0);
  // Of several near sizes it takes the one that was improved most, not the nearest.
  of(104);
  decisions.saw(known->division, {9, {}});
  decisions.saw(of(100).next(0)->division, {8, {}});
  const double learnt = of(100).best(0)->division->chunks;
  CHECK(of(100).tries() == 2 && learnt != 1 && of(104).next(0)->division->chunks == 1);
  CHECK(of(103).next(0)->division->chunks == learnt);
}

// The names of the paths. Their bytes change from copy to copy, while the engine learns.
std::string paths_of(const std::string& result) {
  const std::string name = "\"path\": \"";
  const size_t end = result.find("\"refusals\"");
  std::string names;
  for (size_t at = result.find(name); at < end; at = result.find(name, at + 1)) {
    const size_t begin = at + name.size();
    names += result.substr(begin, result.find('"', begin) - begin) + " ";
  }
  CHECK(!names.empty());
  return names;
}

// A copy whose decision is kept takes only relays that it may take now.
TEST(what_is_lent_counts_at_once) {
  test::running() = "lent";
  test::Node node("hgx_h100_h200", {{"phantom", "1"}, {"host_node", "local"}});
  test::CurrentContext context(0);
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  {
    test::Buffer to(0, 64 * kMiB), from(test::kPinned, 64 * kMiB);
    const auto copied = [&] {
      return paths_of(test::finish(
          test::Call(to, 0, from, 0, 64 * kMiB).on(stream, 0).flags(GLAKE_COPY_TRACKED).start()));
    };
    copied();
    copied();
    const std::string all = copied();
    CHECK(all.find(">cuda:") != std::string::npos);
    CHECK(copied() == all);
    OK(glake_transfer_lend(1 << 3, nullptr, 0));
    const std::string some = copied();
    CHECK(some.find("cpu>cuda:3>cuda:0") != std::string::npos);
    CHECK(some.find("cpu>cuda:1>cuda:0") == std::string::npos && copied() == some);
    OK(glake_transfer_lend(UINT32_MAX, nullptr, 0));
    CHECK(copied() == all);
  }
  test::end_stream(stream);
}

// A loop whose copies differ in size goes about as fast as one whose copies do not.
TEST(a_new_size_is_as_fast) {
  test::running() = "new sizes";
  test::Node node("hgx_h100_h200", {{"phantom", "1"}, {"host_node", "local"}});
  test::CurrentContext context(0);
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  constexpr glake::Bytes kBytes = 256 * kMiB;
  {
    test::Buffer to(0, kBytes), from(test::kPinned, kBytes);
    const auto rate = [&](glake::Bytes bytes) {
      const std::string result = test::finish(
          test::Call(to, 0, from, 0, bytes).on(stream, 0).flags(GLAKE_COPY_TRACKED).start());
      return static_cast<double>(bytes) /
             static_cast<double>(std::max<int64_t>(test::number_in(result, "time_ns"), 1));
    };
    double known = 0, least = 1e9;
    for (int i = 0; i < 14; ++i) known = rate(kBytes);
    for (glake::Bytes i = 1; i <= 8; ++i) {
      least = std::min(least, rate(kBytes - i * (2 * kMiB + 64 * glake::kKiB)));
    }
    std::printf("256 MiB at %.0f GB/s; other sizes at %.0f or more\n", known, least);
    CHECK(known > 300 && least > 0.97 * known);
  }
  test::end_stream(stream);
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
