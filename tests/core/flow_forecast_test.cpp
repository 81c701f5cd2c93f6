// What the forecast of shared links gives each path, alone and beside others, on an 8xH100 board:
// each GPU's link carries 55 GB/s. A socket's memory can be written at 179 GB/s and read at 221
// GB/s.
#include "transfer/run/flow_forecast.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "plan/fair_rates.h"
#include "plan/planner.h"
#include "transfer_play.h"

namespace {

using namespace glake::transfer;
using glake::topology::Topology;
using Flow = FlowForecast::Flow;

constexpr double kBytes = 1 << 30;
const Topology& board() {
  static const Topology topology = Topology::parse(test::platforms_text(), "hgx_h100_h200");
  return topology;
}

std::vector<Flow> flows_of(const Place& src, const Place& dst) {
  Planner planner(board());
  std::vector<Flow> flows;
  const TransferPlan plan = planner.plan({{src, dst}})[0];
  for (const PlannedPath& path : plan.paths) {
    flows.push_back({route_of(path.path), path.rate, 2, 0, 0});
  }
  return flows;
}

FlowForecast::Stock all_of(const std::vector<Flow>& flows, double bytes) {
  FlowForecast::Stock stock{bytes, std::vector<size_t>(flows.size())};
  std::iota(stock.paths.begin(), stock.paths.end(), size_t{0});
  return stock;
}

double sum(const std::vector<Flow>& flows) {
  double bytes = 0;
  for (const Flow& flow : flows) bytes += flow.bytes;
  return bytes;
}

bool near(double is, double wanted) { return std::abs(is / wanted - 1) < 0.01; }

// Without other copies, equal paths get equal rates, and the socket's memory limits the copy.
TEST(alone) {
  test::running() = "alone";
  for (const bool into : {true, false}) {
    FlowForecast forecast(&board());
    const Place host{-1, 0}, gpu{0};
    std::vector<Flow> flows = flows_of(into ? host : gpu, into ? gpu : host);
    CHECK(flows.size() == 4);
    const double ns = forecast.share(0, {all_of(flows, kBytes)}, &flows);
    for (const Flow& flow : flows) CHECK(near(flow.bytes, kBytes / 4));
    CHECK(near(kBytes / ns, into ? 221 : 179));
    CHECK(near(forecast.busiest(flows), ns));
  }
}

// If another copy keeps a path's link busy for a while, the path gets fewer bytes: as many fewer as
// the other copy takes.
TEST(beside_another) {
  test::running() = "beside another";
  FlowForecast forecast(&board());
  std::vector<Flow> flows = flows_of(Place{-1, 0}, Place{0});
  Flow other{board().host_to_device(0, 1), 55, 2, 0, kBytes / 8};
  forecast.add(0, &forecast, {other});
  forecast.share(0, {all_of(flows, kBytes)}, &flows);
  CHECK(near(sum(flows), kBytes));
  std::vector<double> bytes;
  for (const Flow& flow : flows) bytes.push_back(flow.bytes);
  std::sort(bytes.begin(), bytes.end());
  CHECK(bytes[0] < 0.7 * bytes[1] && near(bytes[1], bytes[3]));
  CHECK(near(bytes[0] + kBytes / 8, bytes[3]));

  // Once the other copy is done, or removed, the four paths get equal rates again.
  for (const bool told : {false, true}) {
    forecast.add(1'000'000'000, told ? &forecast : nullptr, {other});
    if (told) forecast.remove(&forecast);
    const uint64_t later = 2'000'000'000;
    forecast.share(later, {all_of(flows, kBytes)}, &flows);
    for (const Flow& flow : flows) CHECK(near(flow.bytes, kBytes / 4));
  }
}

// A path that begins later carries fewer bytes. Each socket's bytes go over its own paths.
TEST(delays_and_pools) {
  test::running() = "delays and stocks";
  FlowForecast forecast(&board());
  std::vector<Flow> flows = flows_of(Place{-1, kStriped}, Place{0});
  CHECK(flows.size() == 8);
  std::vector<FlowForecast::Stock> stocks(2);
  for (size_t i = 0; i < flows.size(); ++i) stocks[i % 2].paths.push_back(i);
  stocks[0].bytes = kBytes;
  stocks[1].bytes = 0;
  flows[2].delay_ns = 1e6;
  forecast.share(0, stocks, &flows);
  for (const size_t i : stocks[1].paths) CHECK(flows[i].bytes == 0);
  CHECK(near(sum(flows), kBytes));
  CHECK(flows[2].bytes < 0.9 * flows[0].bytes);
}

// Copies of one stream flow one after the other, so another copy shares its links with one of them
// at a time. All of them together keep it waiting for as long as if they were one.
TEST(copies_of_one_stream) {
  test::running() = "copies of one stream";
  const Flow one{board().host_to_device(0, 0), 55, 2, 0, kBytes};
  const glake::StreamKey own{0, 5}, other{1, 6};
  const std::vector<int> keys(4);
  FlowForecast forecast(&board());
  const double alone = forecast.end_ns(0, {one});
  for (const int& key : keys) forecast.add(0, &key, {one}, own);
  CHECK(near(forecast.end_ns(0, {one}), 2 * alone));  // beside the one that flows
  CHECK(near(forecast.end_ns(0, {one}, other), 2 * alone));
  CHECK(near(forecast.busiest({one}), 2 * alone));
  CHECK(near(forecast.all_end_ns(0, {one}), 5 * alone));
  // It begins when its stream comes to it, and is not slowed by the copies before it.
  CHECK(near(forecast.end_ns(0, {one}, own), alone));
  CHECK(near(forecast.busiest({one}, own), alone));
  CHECK(!forecast.idle(0) && !forecast.idle(0, other) && forecast.idle(0, own));

  // After one and a half copies, two and a half are left. Three of a kind would be left if all
  // flowed at once.
  const auto later = static_cast<uint64_t>(1.5 * alone);
  CHECK(near(forecast.all_end_ns(later, {}), 2.5 * alone));
  CHECK(near(forecast.busiest({}), 0.5 * alone));
  forecast.remove(&keys[2]);  // one in the middle, which has not begun
  CHECK(near(forecast.all_end_ns(later, {}), 1.5 * alone));
  forecast.remove(&keys[1]);  // the one that flows
  CHECK(near(forecast.all_end_ns(later, {}), alone));
  CHECK(near(forecast.busiest({}), alone));
  forecast.remove(&keys[0]);  // it is done already
  CHECK(near(forecast.all_end_ns(later, {}), alone));
  forecast.remove(&keys[3]);
  CHECK(forecast.idle(later) && forecast.all_end_ns(later, {}) == 0);
}

// The sums of a queue stay right, whatever comes and goes, over routes that are the same and that
// are not.
TEST(sums_of_a_queue) {
  std::mt19937 random(3);
  const std::vector<int> keys(40);
  for (int round = 0; round < 20; ++round) {
    test::running() = "sums of a queue, round " + std::to_string(round);
    FlowForecast forecast(&board());
    std::vector<const int*> there;
    std::vector<double> left(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) {
      left[i] = kBytes / 64 * (1 + static_cast<double>(random() % 8));
      const Flow flow{board().host_to_device(0, 0), 55, 2, 0, left[i]};
      forecast.add(0, &keys[i], {flow}, {0, 5});
      there.push_back(&keys[i]);
      if (random() % 2 == 0) {
        const size_t gone = random() % there.size();
        left[static_cast<size_t>(there[gone] - keys.data())] = 0;
        forecast.remove(there[gone]);
        there.erase(there.begin() + static_cast<std::ptrdiff_t>(gone));
      }
      const double sum = std::accumulate(left.begin(), left.end(), 0.0);
      if (sum == 0) {
        CHECK(forecast.idle(0));
        continue;
      }
      const Flow all{board().host_to_device(0, 0), 55, 2, 0, sum};
      CHECK(near(forecast.all_end_ns(0, {}), FlowForecast(&board()).end_ns(0, {all})));
    }
  }
}

// Hundreds of copies of one stream that nobody removes are done when their time has come, also if
// the forecast is not asked meanwhile.
TEST(a_long_queue_ends) {
  test::running() = "a long queue ends";
  FlowForecast forecast(&board());
  const Flow one{board().host_to_device(0, 0), 55, 2, 10'000, kBytes / 256};
  for (int i = 0; i < 1000; ++i) forecast.add(0, nullptr, {one}, {0, 5});
  CHECK(near(forecast.all_end_ns(0, {}), 1000.0 / 256 * kBytes / 55));
  CHECK(forecast.idle(3'600'000'000'000));
}

// With a part of each limit lent, the forecast uses only these parts.
TEST(parts) {
  test::running() = "parts";
  FlowForecast forecast(&board());
  forecast.set_parts(std::vector<double>(board().limits().size(), 0.5));
  std::vector<Flow> flows = flows_of(Place{-1, 0}, Place{0});
  const double ns = forecast.share(0, {all_of(flows, kBytes)}, &flows);
  CHECK(near(kBytes / ns, 221 / 2.0));
}

// The first flows of a set get the same rates as these flows alone, also after other flows were
// added.
TEST(some_of_many) {
  test::running() = "some of many";
  std::mt19937 random(7);
  const std::vector<double> none;
  glake::topology::FairRates fair(board(), none);
  std::vector<glake::topology::Route> routes;
  for (int gpu = 0; gpu < board().gpus(); ++gpu) {
    routes.push_back(board().host_to_device(gpu % 2, gpu));
    routes.push_back(board().device_to_device(gpu, (gpu + 3) % board().gpus()));
    for (size_t i = routes.size() - 2; i < routes.size(); ++i) fair.add(routes[i], 1.0 + gpu);
    for (int round = 0; round < 20; ++round) {
      std::vector<char> open;
      std::vector<const glake::topology::Route*> those;
      std::vector<double> weights;
      for (size_t i = 0; i < routes.size(); ++i) {
        open.push_back(random() % 2 == 0);
        if (open[i] == 0) continue;
        those.push_back(&routes[i]);
        weights.push_back(1.0 + static_cast<double>(i / 2));
      }
      const std::vector<double> alone = board().rates(those, weights);
      const std::vector<double>& found = fair.rates(open);
      size_t next = 0;
      for (size_t i = 0; i < routes.size(); ++i) {
        CHECK(found[i] == (open[i] != 0 ? alone[next++] : 0));
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
