// Measures, in virtual time, which share of each platform's bound copies over all useful paths
// reach: alone, two at once, and in both directions.
//   transfer_rates_test [PLATFORM [TRANSFER [HOST [-v]]]]
#include <algorithm>
#include <cstring>

#include "base/json.h"
#include "transfer_play.h"

using glake::topology::Json;
using test::kMiB;

namespace {

struct Row {
  std::string platform, transfer, host;
  int dst, src;
  double bound, plain;
};

constexpr double kCopyNs = 8000, kGate = 1.15;
constexpr size_t kGainFrom = 4;    // MiB, if the host's links are slow; else twice that
constexpr double kSlowHost = 100;  // GB/s of a GPU's own link
const char* wanted[3];
bool verbose = false;

int sockets_of(const std::string& platform) {
  return static_cast<int>(
      Json::parse(test::platforms_text()).at(platform).at("sockets").items().size());
}

// Host memory that changes socket every 4 MiB.
void stripe(uint64_t host, size_t bytes, int sockets) {
  for (size_t at = 0, turn = 0; at < bytes; at += 4 * kMiB, ++turn) {
    void* piece = reinterpret_cast<void*>(host + at);
    const int node = static_cast<int>(turn) % sockets;
    if (sockets == 1) return;
    CHECK(simcuda_place_host(piece, std::min(4 * kMiB, bytes - at), node) == 0);
  }
}

// These machines have no driver lock. With one, the opening of relays for the first copies would
// show in the rates.
test::Options machine(const char* host_node) {
  return {{"phantom", "1"}, {"host_node", host_node}, {"driver_lock", "0"}};
}

double measure(const Row& row, size_t bytes, std::string* result) {
  test::Buffer dst(row.dst, bytes), src(row.src, bytes);
  if (row.host == "striped")
    stripe(row.dst < 0 ? dst.at() : src.at(), bytes, sockets_of(row.platform));
  const uint64_t begin = simcuda_now_ns();
  const uint64_t id = test::Call(dst, 0, src, 0, bytes).start();
  CHECK(id != 0);
  OK(glake_copy_wait(id, test::kForever));
  const uint64_t end = simcuda_now_ns();
  *result = test::result_of(id);
  OK(glake_copy_release(id));
  return static_cast<double>(bytes) / static_cast<double>(end - begin);
}

// The least share of the bound at 256 MiB and at 1 GiB.
struct Least {
  double quarter, whole;
};

Least least(const Row& row) {
  // Every chunk has pages of both sockets, so half of its bytes cross the link between them.
  if (row.platform == "gb200_tray" && row.host == "spread") return {0.49, 0.51};
  return {0.88, 0.95};
}

double plain_rate(const Row& row, size_t bytes) {
  return static_cast<double>(bytes) / (kCopyNs + static_cast<double>(bytes) / row.plain);
}

void try_one(const Row& row) {
  test::running() = row.platform + " " + row.transfer + " " + row.host;
  const char* node_of = row.host == "local" ? "0" : row.host == "-" ? "local" : "interleave";
  test::Node node(row.platform, machine(node_of));
  std::printf("%-20s %-8s %-8s bound %6.1f plain %6.1f |", row.platform.c_str(),
              row.transfer.c_str(), row.host.c_str(), row.bound, row.plain);
  const bool refused = row.bound < kGate * row.plain;  // then the planner must choose a plain copy
  for (size_t mib : {1, 2, 4, 8, 32, 256, 1024}) {
    std::string result;
    const size_t bytes = mib * kMiB;
    const double rate = measure(row, bytes, &result), plain = plain_rate(row, bytes);
    std::printf(" %zu: %.3f", mib, rate / row.bound);
    // For copies between GPUs the simulator puts staging memory on the socket of the GPU that uses
    // it. The bounds do not count on that, so a rate may be above them.
    if (row.host != "-") CHECK(rate < 1.001 * row.bound);
    CHECK(rate >= 0.98 * plain);
    if (mib == 256) CHECK(rate >= (refused ? 0.98 * plain : least(row).quarter * row.bound));
    if (mib == 1024) CHECK(rate >= (refused ? 0.98 * plain : least(row).whole * row.bound));
    if (mib == kGainFrom && row.transfer.find("p2p") != 0 && !refused) {
      CHECK(rate > (row.plain > kSlowHost ? 0.98 : 1.1) * plain);
    }
    if (mib == 2 * kGainFrom && row.transfer.find("p2p") != 0 && !refused) {
      CHECK(rate > 1.05 * plain);
    }
    if (verbose) std::printf("\n%s\n", result.c_str());
  }
  std::printf("\n");
  std::fflush(stdout);
}

void together(const std::string& platform, const std::string& key, int a, int b, double bound) {
  test::running() = platform + " " + key;
  test::Node node(platform, machine("interleave"));
  constexpr size_t kBytes = 512 * kMiB;
  const bool both = key.find("bidir") == 0;
  test::Buffer one(a, kBytes), two(b, kBytes), from(test::kPinned, kBytes),
      to(test::kPinned, kBytes);
  stripe(from.at(), kBytes, sockets_of(platform));
  stripe(to.at(), kBytes, sockets_of(platform));
  const uint64_t begin = simcuda_now_ns();
  const uint64_t first = test::Call(one, 0, from, 0, kBytes).start();
  const uint64_t second =
      both ? test::Call(to, 0, two, 0, kBytes).start() : test::Call(two, 0, to, 0, kBytes).start();
  OK(glake_copy_wait(first, test::kForever));
  OK(glake_copy_wait(second, test::kForever));
  const auto time = static_cast<double>(simcuda_now_ns() - begin);
  const auto rate = [&](uint64_t id) {  // an untracked plain copy has no time of its own
    const std::string result = test::result_of(id);
    const bool timed = result.find("time_ns") != std::string::npos;
    return kBytes / (timed ? static_cast<double>(test::number_in(result, "time_ns")) : time);
  };
  const double x = rate(first), y = rate(second);
  const double jain = (x + y) * (x + y) / (2 * (x * x + y * y));
  const double sum = 2 * kBytes / time;
  std::printf("%-20s %-28s bound %6.1f |%6.1f +%6.1f, together %6.1f (%.3f) Jain %.3f\n",
              platform.c_str(), key.c_str(), bound, x, y, sum, sum / bound, jain);
  CHECK(jain >= 0.95);
  CHECK(sum >= 0.90 * bound);
  if (verbose)
    std::printf("%s\n%s\n", test::result_of(first).c_str(), test::result_of(second).c_str());
  OK(glake_copy_release(first));
  OK(glake_copy_release(second));
}

bool skip(int at, const std::string& name) {
  return wanted[at] != nullptr && std::strcmp(wanted[at], "-") != 0 && name.find(wanted[at]) != 0;
}

TEST(rates_reach_their_bounds) {
  size_t rows = 0;
  const std::string text = test::platforms_text();
  const Json all = Json::parse(text);
  for (const auto& [name, platform] : all.members()) {
    if (name[0] == '_' || name == "per_copy_us" || skip(0, name)) continue;
    for (const auto& [key, entry] : platform.at("bounds").members()) {
      if (!test::full_width() && wanted[0] == nullptr && rows++ % 3 != 0) continue;
      const double bound = entry.at("bound").number(), plain = entry.at("plain").number();
      if (skip(1, key)) continue;
      int a = 0, b = 0;
      if (std::sscanf(key.c_str(), "p2p %d>%d", &a, &b) == 2) {
        try_one({name, key.substr(0, 7), "-", b, a, bound, plain});
      } else if (key == "h2d local" || key == "d2h local" || key == "h2d inter" ||
                 key == "d2h inter") {
        for (const char* host : {"local", "spread", "striped"}) {
          if ((std::string(host) == "local") != (key.substr(4) == "local") || skip(2, host))
            continue;
          Row row{name, key.substr(0, 3), host, 0, 0, bound, plain};
          (key[0] == 'h' ? row.src : row.dst) = test::kPinned;
          try_one(row);
        }
      } else if (key.find("two h2d") == 0) {
        CHECK(std::sscanf(key.c_str() + key.find('('), "(%d,%d)", &a, &b) == 2);
        together(name, key, a, b, bound);
      } else if (key.find("bidir") == 0) {
        together(name, key, 0, 0, bound);
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const test::Choice choice(argc, argv);
  if (choice.list || !choice.filter.empty()) return test::run_cases(argc, argv);
  if (argc > 1 && std::string(argv[argc - 1]) == "-v") verbose = true, --argc;
  for (int i = 1; i < std::min(argc, 4); ++i) wanted[i - 1] = argv[i];
  return test::run_cases(argc, argv);
}
