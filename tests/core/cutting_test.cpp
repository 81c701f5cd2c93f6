// How long chunks take over the hops of a path, by the model (pipeline_race.h), and how paths are
// cut by it (cutting.h).
#include "transfer/run/cutting.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/transfer_tuning.h"
#include "harness.h"
#include "transfer/buffers/parts.h"
#include "transfer/run/call_times.h"
#include "transfer/run/cut_search.h"
#include "transfer/run/pipeline_race.h"

namespace {

using namespace glake::transfer;
using glake::Bytes;
using glake::TransferTuning;
using test::kMiB;

constexpr double kStart = 8000;  // ns
constexpr double kByte = 1e6;    // bytes of a chunk in the cases that are computed by hand
constexpr auto kLongest = static_cast<double>(TransferTuning::kLongestChunk);

bool near(double is, double wanted) { return std::abs(is - wanted) < 1; }

PipelineTerms terms_of(std::vector<Rate> paces, bool joined = false, size_t buffers = 6) {
  PipelineTerms terms;
  terms.singly.assign(paces.size(), 0);
  terms.paces = std::move(paces);
  terms.joined = joined;
  terms.buffers = buffers;
  terms.start_ns = kStart;
  return terms;
}

// host -> GPU 1 -> GPU 0, or the other way
Path path_of(bool into) {
  const Place host{-1, 0}, relay{1}, gpu{0};
  Path path;
  path.hops.resize(2);
  path.hops[0].from = into ? host : gpu;
  path.hops[0].to = path.hops[1].from = relay;
  path.hops[1].to = into ? gpu : host;
  return path;
}

CutTerms cut_terms(std::vector<Rate> paces, double blocked = TransferTuning::kBlocked) {
  CutTerms terms;
  terms.paces = std::move(paces);
  terms.most = 1e4;
  terms.blocked = blocked;
  terms.copy_ns = static_cast<uint64_t>(kStart);
  return terms;
}

std::vector<double> chunks_of(const Cutting& cutting, Bytes bytes) {
  std::vector<double> chunks;
  for (Bytes done = 0; done < bytes;) {
    const Bytes next = cutting.next(done, bytes - done, bytes - done);
    CHECK(next > 0 && next <= bytes - done);
    chunks.push_back(static_cast<double>(next));
    done += next;
  }
  return chunks;
}

// What the search minimizes.
double cost_of(const CutTerms& terms, const std::vector<double>& chunks, bool joined) {
  const double longest = *std::max_element(chunks.begin(), chunks.end());
  const size_t buffers = buffers_for(path_of(true), longest, {2, joined});
  PipelineTerms race = terms_of(terms.paces, joined, buffers);
  const auto count = static_cast<double>(chunks.size());
  const double calls = chunk_calls_ns(path_of(true), count, buffers, joined);
  double ns = pipeline_ns(race, chunks);
  race.calls_ns = terms.crowd * calls / count;
  ns = std::max(ns, pipeline_ns(race, chunks));
  return ns + terms.blocked * calls;
}

TEST(one_chunk_goes_hop_by_hop) {
  const double ns = pipeline_ns(terms_of({50, 100, 25}), {kByte});
  CHECK(near(ns, 3 * kStart + kByte / 50 + kByte / 100 + kByte / 25));
}

TEST(copies_share_a_hop) {
  CHECK(near(pipeline_ns(terms_of({50}), {kByte, kByte}), kStart + 2 * kByte / 50));
  // The shorter one ends first, and the other has the whole link from then on.
  CHECK(near(pipeline_ns(terms_of({50}), {kByte / 2, kByte}), kStart + 1.5 * kByte / 50));
  // Both leave the first hop together, and are together on the second.
  CHECK(near(pipeline_ns(terms_of({50, 50}), {kByte, kByte}), 2 * (kStart + 2 * kByte / 50)));
}

TEST(one_buffer_holds_one_chunk) {
  const double one = 2 * kStart + kByte / 50 + kByte / 100;
  CHECK(near(pipeline_ns(terms_of({50, 100}, false, 1), {kByte, kByte, kByte}), 3 * one));
  CHECK(pipeline_ns(terms_of({50, 100}, false, 3), {kByte, kByte, kByte}) < 2.5 * one);
}

// A stream that has both hops takes its next chunk when the one before has gone over both.
TEST(joined_hops_take_turns) {
  const double first = 2 * kStart + 2 * kByte / 50 + 2 * kByte / 50;
  const double next = 2 * kStart + kByte / 50 + kByte / 50;
  CHECK(near(pipeline_ns(terms_of({50, 50}, true), {kByte, kByte, kByte}), first + next));
  CHECK(pipeline_ns(terms_of({50, 50}), {kByte, kByte, kByte}) < first + next);
}

// The second chunk begins with its call, and the link is free by then.
TEST(chunks_wait_for_their_calls) {
  PipelineTerms terms = terms_of({50});
  terms.calls_ns = 2 * (kStart + kByte / 50);
  CHECK(near(pipeline_ns(terms, {kByte, kByte}), terms.calls_ns + kStart + kByte / 50));
}

// The race says no sooner than is true that it takes longer than the best one.
TEST(a_race_that_is_lost_ends_early) {
  for (const bool joined : {false, true}) {
    const std::vector<double> chunks{3 * kByte, 2 * kByte, 4 * kByte, kByte};
    PipelineTerms terms = terms_of({20, 30, 50}, joined);
    for (const double each : {0.0, 5e4}) {
      terms.calls_ns = each;
      const double whole = pipeline_ns(terms, chunks);
      for (const double most : {0.0, 0.3 * whole, 0.999 * whole}) {
        const double said = pipeline_ns(terms, chunks, most);
        CHECK_TEXT(said > most && said <= whole, std::to_string(said));
      }
      CHECK(pipeline_ns(terms, chunks, 0.3 * whole) < 0.9 * whole);
      CHECK(near(pipeline_ns(terms, chunks, whole), whole));
    }
  }
}

TEST(pieces_start_one_by_one) {
  PipelineTerms terms = terms_of({50, 50});
  terms.singly = {0, 1};
  terms.piece = kByte / 4;
  const double pieces = copies_of(kByte, terms.piece, false);
  CHECK(pieces > 4 && pieces < 5);
  CHECK(near(pipeline_ns(terms, {kByte}), (1 + pieces) * kStart + 2 * kByte / 50));
  CHECK(copies_of(kByte, 0, false) == 1 && copies_of(1, kByte, false) == 1);
  CHECK(copies_of(kByte, kByte / 8, true) < 2 && copies_of(kByte, kByte / 8, false) > 8);
}

// Behind a slow hop lengths fall, and before one they rise, so that less is left to do when the
// slow hop has ended, or to wait for until it begins. Where both are slow they are equal, but for
// the first.
TEST(lengths_follow_the_slow_hop) {
  const Bytes bytes = 64 * kMiB;
  CutTerms terms = cut_terms({55, 70});
  terms.apart = true;
  std::vector<double> falling = chunks_of(Cutting(path_of(true), terms, bytes), bytes);
  CHECK(falling.size() > 8 && falling.back() < 0.5 * falling[1]);
  for (size_t i = 2; i < falling.size(); ++i) CHECK(falling[i] <= falling[i - 1] + 4096);
  terms.paces = {70, 55};
  std::vector<double> rising = chunks_of(Cutting(path_of(false), terms, bytes), bytes);
  CHECK(rising.size() > 8 && rising.front() < 0.5 * rising.back());
  terms.paces = {55, 55};
  std::vector<double> equal = chunks_of(Cutting(path_of(true), terms, bytes), bytes);
  for (size_t i = 2; i < equal.size(); ++i) CHECK(std::abs(equal[i] - equal[1]) < 0.2 * equal[1]);
  CHECK(equal.front() < 0.7 * equal[1]);
}

// No number of equal chunks is better by the model.
TEST(better_than_equal_chunks) {
  for (const Bytes bytes : {2 * kMiB, 9 * kMiB, 16 * kMiB, 64 * kMiB, 200 * kMiB}) {
    for (const double gain : {0.5, 0.8, 1.0, 1.2, 2.0, 6.0}) {
      for (const double blocked : {0.1, 1.1, 7.1}) {
        const CutTerms terms = cut_terms({50, 50 * gain}, blocked);
        const Cutting cutting(path_of(true), terms, bytes);
        const double cost = cost_of(terms, chunks_of(cutting, bytes), cutting.streams().joined);
        for (size_t count = 1; count <= 64; ++count) {
          const double length = static_cast<double>(bytes) / static_cast<double>(count);
          if (length > 0.97 * kLongest) continue;  // room for rounding
          std::vector<double> equal(count, length);
          const double other = std::min(cost_of(terms, equal, false), cost_of(terms, equal, true));
          CHECK_TEXT(cost < 1.03 * other, std::to_string(bytes / kMiB) + " MiB, gain " +
                                              std::to_string(gain) + ": " + std::to_string(cost) +
                                              ", " + std::to_string(count) +
                                              " equal ones: " + std::to_string(other));
        }
      }
    }
  }
}

TEST(a_caller_that_others_wait_for_makes_fewer_calls) {
  const Bytes bytes = 64 * kMiB;
  size_t before = 1000;
  for (const double blocked : {0.1, 1.1, 7.1}) {
    const Cutting cutting(path_of(true), cut_terms({55, 66}, blocked), bytes);
    const size_t count = chunks_of(cutting, bytes).size();
    CHECK(count < before);
    before = count;
  }
  CutTerms few = cut_terms({55, 66});
  few.most = 5;
  CHECK(chunks_of(Cutting(path_of(true), few, bytes), bytes).size() <= 6);
  CutTerms more = cut_terms({55, 66}, 1.1);
  more.times = 1.4;
  const size_t some =
      chunks_of(Cutting(path_of(true), cut_terms({55, 66}, 1.1), bytes), bytes).size();
  CHECK(chunks_of(Cutting(path_of(true), more, bytes), bytes).size() > some);
}

// While calls of other paths are in front of its own, a path gets fewer, longer chunks.
TEST(calls_of_other_paths_make_fewer_chunks) {
  const Bytes bytes = 64 * kMiB;
  CutTerms crowded = cut_terms({300, 50});
  const Cutting alone(path_of(false), crowded, bytes);
  crowded.crowd = 4;
  const Cutting among(path_of(false), crowded, bytes);
  const std::vector<double> many = chunks_of(alone, bytes), few = chunks_of(among, bytes);
  CHECK_TEXT(few.size() < many.size(),
             std::to_string(few.size()) + " of " + std::to_string(many.size()));
  CHECK(cost_of(crowded, few, among.streams().joined) <
        cost_of(crowded, many, alone.streams().joined));
}

// Where GPU 0 writes the chunks of all its paths, their first copies are called in its context.
// Chunks from the host, and chunks that relays read, come in the contexts of the relays.
TEST(paths_out_of_one_gpu_wait_for_each_other) {
  for (const auto& [into, reads] : {std::pair{false, false}, {true, false}, {false, true}}) {
    TransferPlan plan;
    for (int relay = 1; relay <= 4; ++relay) {
      PlannedPath planned;
      planned.path = path_of(into);
      planned.path.hops[0].to = planned.path.hops[1].from = Place{relay};
      planned.path.hops[0].reads = reads;
      planned.path.worker = relay;
      plan.paths.push_back(planned);
    }
    const double crowded = into || reads ? 1 : 2;
    for (const double crowd : crowds(plan)) CHECK(std::abs(crowd - crowded) < 1e-9);
    plan.paths[0].path.worker = 2;  // one thread makes the calls of two paths
    const std::vector<double> found = crowds(plan);
    CHECK(std::abs(found[0] - 2) < 1e-9 && std::abs(found[1] - 2) < 1e-9);
    CHECK(std::abs(found[2] - crowded) < 1e-9);
    CallTimes times;
    for (const PlannedPath& planned : plan.paths) times.add(planned.path, 10, 6, false);
    const double one = chunk_calls_ns(plan.paths[0].path, 10, 6, false);
    CHECK(near(one, 20 * TransferTuning::kCallNs + 28 * TransferTuning::kEventNs));
    CHECK(near(times.longest_ns(), 2 * one) && times.threads() == 3);
  }
}

TEST(hops_are_joined_where_the_second_is_fast) {
  CHECK(Cutting(path_of(true), cut_terms({25, 200}), 64 * kMiB).streams().joined);
  CHECK(!Cutting(path_of(true), cut_terms({50, 50}), 64 * kMiB).streams().joined);
  CHECK(!Cutting(path_of(false), cut_terms({25, 200}), 64 * kMiB)
             .streams()
             .joined);  // two GPUs' streams
  Path read = path_of(false);
  read.hops[0].reads = true;
  CHECK(Cutting(read, cut_terms({25, 200}), 64 * kMiB).streams().joined);
  CutTerms apart = cut_terms({25, 200});
  apart.apart = true;
  CHECK(!Cutting(path_of(true), apart, 64 * kMiB).streams().joined);
  CutTerms kernels = cut_terms({25, 200});
  kernels.by_engines = false;
  CHECK(!Cutting(path_of(true), kernels, 64 * kMiB).streams().joined);
}

// Kernels copy many small pieces at once, and copy engines one by one, whoever asks first.
TEST(pieces_count_for_copy_engines) {
  const Bytes bytes = 64 * kMiB;
  CutTerms engines = cut_terms({200, 25});
  engines.piece = 4e5;
  CutTerms kernels = engines;
  kernels.by_engines = false;
  const double slow = Cutting(path_of(false), engines, bytes).delay_ns();
  const double fast = Cutting(path_of(false), kernels, bytes).delay_ns();
  CHECK_TEXT(fast < slow, std::to_string(fast) + ", " + std::to_string(slow));
}

// Each call for a copy that others wait for delays them. Where streams have both hops, two buffers
// are enough, so there may be fewer and longer chunks.
TEST(chunks_are_long_where_others_wait) {
  const Bytes bytes = 128 * kMiB;
  const auto longest_of = [&](const CutTerms& terms) {
    const std::vector<double> chunks = chunks_of(Cutting(path_of(true), terms, bytes), bytes);
    return *std::max_element(chunks.begin(), chunks.end());
  };
  CutTerms terms = cut_terms({180, 450}, 1 + TransferTuning::kBlocked);
  const Cutting cutting(path_of(true), terms, bytes);
  CHECK(cutting.streams().joined && chunks_of(cutting, bytes).size() <= 8);
  CHECK(longest_of(terms) > 1.1 * kLongest && longest_of(terms) <= 2 * kLongest);
  CHECK(longest_of(cut_terms({180, 200}, 1 + TransferTuning::kBlocked)) <= kLongest);
  CHECK(buffers_for(path_of(true), 2 * kLongest, cutting.streams()) == 2);
  terms.apart = true;
  CHECK(longest_of(terms) <= kLongest);
}

// Chunks fit the largest buffers, and these are no more than a relay may have.
TEST(chunks_of_a_very_long_copy) {
  const Bytes bytes = 20000 * kMiB;
  const std::vector<double> chunks =
      chunks_of(Cutting(path_of(true), cut_terms({55, 66}), bytes), bytes);
  const double longest = *std::max_element(chunks.begin(), chunks.end());
  CHECK_TEXT(longest <= 2 * kLongest, std::to_string(longest));
  CHECK_TEXT(chunks.size() < 1500, std::to_string(chunks.size()));
  for (const double length : {1.0, 3e5, 4.0 * kMiB, 9.0 * kMiB, kLongest}) {
    Bytes size = TransferTuning::kLeastChunk;
    while (static_cast<double>(size) < length) size *= 2;
    const size_t buffers = buffers_for(path_of(true), length, {2, false});
    CHECK(buffers >= 3 && buffers * size <= TransferTuning::kBuffered);
  }
}

// Copies that flow at once and are equally long would end together, and the next hop would stand
// idle until then.
TEST(several_at_once_do_not_fall_into_step) {
  const Bytes bytes = 256 * kMiB;
  for (size_t flows = 1; flows <= TransferTuning::kMostAtOnce; ++flows) {
    CutTerms terms = cut_terms({20, 20});
    terms.flows = flows;
    const Cutting cutting(path_of(true), terms, bytes);
    const std::vector<double> chunks = chunks_of(cutting, bytes);
    const double longest = *std::max_element(chunks.begin(), chunks.end());
    CHECK(longest <= static_cast<double>(longest_chunk(path_of(true), cutting.streams())));
    Bytes size = TransferTuning::kLeastChunk;
    while (static_cast<double>(size) < longest) size *= 2;
    CHECK(buffers_for(path_of(true), longest, cutting.streams()) * size <= 4 * kLongest);
    for (size_t i = 0; i + 1 < flows; ++i) {
      const double part = static_cast<double>(i + 1) / static_cast<double>(flows);
      CHECK_TEXT(chunks[i] < 1.05 * part * chunks[flows - 1], std::to_string(flows));
    }
    const double part = cutting.delay_ns() * 20 / static_cast<double>(bytes);
    CHECK_TEXT(part < 0.06, std::to_string(flows) + " at once: " + std::to_string(part));
  }
}

// With 5 chunks at once, 9 buffers keep two equal hops busy. With 5, the chunks fall into step.
TEST(more_at_once_need_more_buffers) {
  const auto ns = [](size_t buffers) {
    PipelineTerms terms = terms_of({20, 20}, false, buffers);
    terms.flows = 5;
    return pipeline_ns(terms, std::vector<double>(50, kByte));
  };
  const double ideal = 50 * kByte / 20;
  CHECK_TEXT(ns(9) < 1.3 * ideal && ns(5) > 1.6 * ideal,
             std::to_string(ns(9) / ideal) + ", " + std::to_string(ns(5) / ideal));
}

// Stripes of one socket of two, 4 MiB each, and the shorter last one.
TEST(chunks_end_where_parts_end) {
  std::vector<Part> stripes;
  for (glake::Address at = 0; at < 20; ++at) {
    stripes.push_back({1000 + at * 8 * kMiB, 500 + at * 8 * kMiB, at == 19 ? kMiB : 4 * kMiB});
  }
  const Parts parts(stripes);
  CHECK(parts.regular());
  CHECK(parts.part_end_near(0, 9 * kMiB, 16 * kMiB) == 8 * kMiB);
  CHECK(parts.part_end_near(0, 11 * kMiB, 16 * kMiB) == 12 * kMiB);
  CHECK(parts.part_end_near(0, 10 * kMiB, 11 * kMiB) == 8 * kMiB);  // 12 MiB would be too long
  CHECK(parts.part_end_near(0, 12 * kMiB, 16 * kMiB) == 12 * kMiB);
  CHECK(parts.part_end_near(kMiB, 3 * kMiB, 16 * kMiB) == 3 * kMiB);
  CHECK(parts.part_end_near(2 * kMiB, 7 * kMiB, 16 * kMiB) == 7 * kMiB);  // under 6 MiB
  CHECK(parts.part_end_near(2 * kMiB, 9 * kMiB, 16 * kMiB) == 8 * kMiB);
  CHECK(parts.part_end_near(0, 2 * kMiB, 16 * kMiB) == 2 * kMiB);
  CHECK(parts.part_end_near(70 * kMiB, 76 * kMiB + 9, 16 * kMiB) == 76 * kMiB);
  for (size_t i = 0; i < stripes.size(); ++i) stripes[i].src += i * i * kMiB;
  CHECK(!Parts(stripes).regular() && !Parts({stripes[0], stripes[1]}).regular());
}

TEST(a_direct_path_has_few_chunks) {
  Path direct;
  direct.hops.resize(1);
  direct.hops[0].to.gpu = 0;
  const Cutting cutting(direct, cut_terms({55}), 256 * kMiB);
  CHECK(chunks_of(cutting, 256 * kMiB).size() == 3);
  CHECK(!cutting.streams().joined && near(cutting.delay_ns(), kStart));
  for (const size_t flows : {size_t{1}, size_t{4}}) {
    CutTerms terms = cut_terms({55});
    terms.flows = flows;
    const std::vector<double> chunks = chunks_of(Cutting(direct, terms, 256 * kMiB), 256 * kMiB);
    CHECK(chunks.size() == flows && chunks.front() < 1.01 * chunks.back());
  }
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
