// Loans come and go under copies of several threads. Every byte is right, and nothing is left
// behind.
#include <sys/eventfd.h>

#include <atomic>
#include <thread>

#include "plan/topology.h"
#include "transfer_play.h"

using test::Buffer;
using test::Call;
using test::kMiB;
using test::kPinned;
using test::Node;

namespace {

constexpr const char* kPreset = "dgx_a100";

size_t limits() {
  const auto topology = glake::topology::Topology::parse(test::platforms_text(), kPreset);
  return topology.limits().size();
}

std::string demands() {
  return test::text_of([](char* to, size_t room) { return glake_transfer_demands(to, room); });
}

TEST(loans_under_copies) {
  test::running() = "loans under copies";
  Node node(kPreset, {{"memory", "256MiB"}});
  const int event = glake_transfer_demands_event();
  CHECK(event >= 0);
  std::atomic<bool> over{false};
  std::thread lender([&] {
    test::Dice dice(5);
    const size_t count = limits();
    std::vector<double> factors(count);
    while (!over) {
      for (double& part : factors) part = dice.chance(5) ? 0 : dice(1, 100) / 100.0;
      const bool all = dice.chance(20);
      OK(glake_transfer_lend(static_cast<uint32_t>(dice(0, 255)), factors.data(), all ? 0 : count));
      eventfd_t changes = 0;
      eventfd_read(event, &changes);
      CHECK(demands().find("\"demands\": [") != std::string::npos);
      CHECK(test::transfer_stats().find("\"relays\": [") != std::string::npos);
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> copiers;
  for (int gpu : {0, 3}) {
    copiers.emplace_back([gpu] {
      Buffer host(kPinned, 12 * kMiB), device(gpu, 12 * kMiB);
      for (uint64_t seed = 1; seed <= 6; ++seed) {
        host.fill(seed);
        const std::string result = test::finish(Call(device, 0, host, 0, 12 * kMiB).start());
        CHECK_TEXT(device.holds(seed, 0, 12 * kMiB, 0), result);
      }
    });
  }
  for (std::thread& copier : copiers) copier.join();
  over = true;
  lender.join();
  CHECK(demands().find("\"demands\": []") != std::string::npos);
  CHECK(demands().find("\"gpus\": [0, 3]") != std::string::npos);
}

TEST(refusals) {
  test::running() = "refusals";
  const double parts[] = {0.5, 0.5};
  CHECK(glake_transfer_lend(0, parts, 2) == GLAKE_TRANSFER_CLOSED);
  CHECK(glake_transfer_demands_event() == -GLAKE_TRANSFER_CLOSED);
  Node node(kPreset);
  CHECK(glake_transfer_lend(0, parts, 2) == GLAKE_INVALID_ARGUMENT);
  CHECK(glake_transfer_lend(0, nullptr, 2) == GLAKE_INVALID_ARGUMENT);
  OK(glake_transfer_lend(0, nullptr, 0));
}

TEST(no_topology) {
  test::running() = "no topology";
  Node node(kPreset, {}, false);
  OK(glake_transfer_lend(0, nullptr, 0));
  const double part = 1;
  CHECK(glake_transfer_lend(0, &part, 1) == GLAKE_INVALID_ARGUMENT);
  CHECK(demands().find("\"demands\": []") != std::string::npos);
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
