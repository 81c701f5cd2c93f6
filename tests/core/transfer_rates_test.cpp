// What copies over every useful path reach of the bound of each platform, in virtual time: alone,
// two at once, and in both directions.
//   transfer_rates_test [PLATFORM [TRANSFER [HOST [-v]]]]
#include <algorithm>
#include <cstring>
#include <memory>

#include "topology/json.h"
#include "transfer_play.h"

using glake::topology::Json;
using test::kMiB;

namespace {

struct Row {
  std::string platform, transfer, host;
  int dst, src;
  double bound, plain, equal;
};

const char* wanted[3];
bool verbose = false;

int sockets_of(const std::string& platform) {
  return static_cast<int>(Json::parse(test::platforms_text()).at(platform).at("sockets").items().size());
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

double measure(const Row& row, size_t bytes, std::string* result) {
  test::Buffer dst(row.dst, bytes), src(row.src, bytes);
  if (row.host == "striped") stripe(row.dst < 0 ? dst.at() : src.at(), bytes, sockets_of(row.platform));
  const uint64_t begin = simcuda_now_ns();
  const uint64_t id = test::Call(dst, 0, src, 0, bytes).start();
  CHECK(id != 0);
  OK(glake_copy_wait(id, test::kForever));
  const uint64_t end = simcuda_now_ns();
  *result = test::result_of(id);
  OK(glake_copy_release(id));
  return static_cast<double>(bytes) / static_cast<double>(end - begin);
}

void try_one(const Row& row) {
  test::running() = row.platform + " " + row.transfer + " " + row.host;
  test::Node node(row.platform,
                  {{"phantom", "1"}, {"host_node", row.host == "local" ? "0" : row.host == "-" ? "local" : "interleave"}});
  std::printf("%-20s %-8s %-8s bound %6.1f plain %6.1f |", row.platform.c_str(),
              row.transfer.c_str(), row.host.c_str(), row.bound, row.plain);
  for (size_t mib : {1, 2, 4, 8, 16, 32, 64, 256, 1024}) {
    if (getenv("MIB") && atoi(getenv("MIB")) != (int)mib) continue;
 std::fprintf(stderr, "TR size %zu\n", mib);
    std::string result;
    const double rate = measure(row, mib * kMiB, &result);
    const double share = rate / row.bound;
    const double alone = static_cast<double>(mib * kMiB) / (8000 + static_cast<double>(mib * kMiB) / row.plain);
    std::printf(" %zu: %.3f%s%s", mib, share, rate < 0.98 * alone ? "!" : rate > 1.02 * alone ? "+" : "", 
     mib >= 64 && rate < 0.95 * row.equal ? "e" : "");
    if (mib == 256 && share < 0.88) std::printf("*");
    if (mib == 1024 && share < 0.95) std::printf("*");
    if (verbose) std::printf("\n%s\n", result.c_str());
  }
  std::printf("\n");
  std::fflush(stdout);
}

void together(const std::string& platform, const std::string& key, int a, int b, double bound,
              double fair) {
  test::running() = platform + " " + key;
  test::Node node(platform, {{"phantom", "1"}, {"host_node", "interleave"}});
  constexpr size_t kBytes = 512 * kMiB;
  const bool both = key.find("bidir") == 0;
  test::Buffer one(a, kBytes), two(b, kBytes), from(test::kPinned, kBytes), to(test::kPinned, kBytes);
  stripe(from.at(), kBytes, sockets_of(platform));
  stripe(to.at(), kBytes, sockets_of(platform));
  const uint64_t begin = simcuda_now_ns();
  const uint64_t first = test::Call(one, 0, from, 0, kBytes).start();
  const uint64_t second =
      both ? test::Call(to, 0, two, 0, kBytes).start() : test::Call(two, 0, to, 0, kBytes).start();
  OK(glake_copy_wait(first, test::kForever));
  OK(glake_copy_wait(second, test::kForever));
  const auto time = static_cast<double>(simcuda_now_ns() - begin);
  const auto rate = [](uint64_t id) {
    return kBytes / static_cast<double>(test::number_in(test::result_of(id), "time_ns"));
  };
  const double x = rate(first), y = rate(second);
  const double jain = (x + y) * (x + y) / (2 * (x * x + y * y));
  std::printf("%-20s %-28s bound %6.1f fair %6.1f | %6.1f + %6.1f (%.3f) all %6.1f (%.3f) Jain %.3f%s\n",
              platform.c_str(), key.c_str(), bound, fair, x, y, (x + y) / bound, 2 * kBytes / time,
              2 * kBytes / time / bound, jain, 2 * kBytes / time < .9 * bound || jain < .95 ? " *" : "");
  if (verbose) std::printf("%s\n%s\n", test::result_of(first).c_str(), test::result_of(second).c_str());
  OK(glake_copy_release(first));
  OK(glake_copy_release(second));
}

// As many copies as GPUs, each of its own host memory.
void all_of(const std::string& platform, bool load, double bound, double plain) {
  test::running() = platform + " all";
  for (size_t mib : {4, 16, 64, 256}) {
    const size_t bytes = mib * kMiB;
    test::Node node(platform, {{"phantom", "1"}, {"host_node", "interleave"}});
    std::vector<std::unique_ptr<test::Buffer>> hosts, gpus;
    for (int gpu = 0; gpu < node.gpus(); ++gpu) {
      gpus.push_back(std::make_unique<test::Buffer>(gpu, bytes));
      hosts.push_back(std::make_unique<test::Buffer>(test::kPinned, bytes));
      stripe(hosts.back()->at(), bytes, sockets_of(platform));
    }
    const uint64_t begin = simcuda_now_ns();
    std::vector<uint64_t> ids;
    for (size_t i = 0; i < gpus.size(); ++i) {
      ids.push_back(load ? test::Call(*gpus[i], 0, *hosts[i], 0, bytes).start() : test::Call(*hosts[i], 0, *gpus[i], 0, bytes).start());
    }
    for (const uint64_t id : ids) OK(glake_copy_wait(id, test::kForever));
    const auto rate = static_cast<double>(bytes * ids.size()) / static_cast<double>(simcuda_now_ns() - begin);
    std::printf("%-20s all-%s %zu: %.1f (%.3f of bound, %.3f of plain)\n", platform.c_str(), load ? "h2d" : "d2h", mib, rate, rate / bound, rate / plain);
    if (verbose) std::printf("%s\n", test::result_of(ids[0]).c_str());
    for (const uint64_t id : ids) OK(glake_copy_release(id));
  }
}

bool skip(int at, const std::string& name) {
  return wanted[at] != nullptr && std::strcmp(wanted[at], "-") != 0 &&
         name.find(wanted[at]) != 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string text = test::platforms_text();
  const Json all = Json::parse(text);
  if (argc > 1 && std::string(argv[argc - 1]) == "-v") verbose = true, --argc;
  for (int i = 1; i < std::min(argc, 4); ++i) wanted[i - 1] = argv[i];
  for (const auto& [name, platform] : all.members()) {
    if (name[0] == '_' || name == "per_copy_us" || skip(0, name)) continue;
    for (const auto& [key, entry] : platform.at("bounds").members()) {
      const double bound = entry.at("bound").number(), plain = entry.at("plain").number(),
                   equal = entry.at("equal_shares").number();
      if (skip(1, key)) continue;
      int a = 0, b = 0;
      if (std::sscanf(key.c_str(), "p2p %d>%d", &a, &b) == 2) {
        try_one({name, key.substr(0, 7), "-", b, a, bound, plain, equal});
      } else if (key == "h2d local" || key == "d2h local" || key == "h2d inter" || key == "d2h inter") {
        for (const char* host : {"local", "spread", "striped"}) {
          if ((std::string(host) == "local") != (key.substr(4) == "local") || skip(2, host)) continue;
          Row row{name, key.substr(0, 3), host, 0, 0, bound, plain, equal};
          (key[0] == 'h' ? row.src : row.dst) = test::kPinned;
          try_one(row);
        }
      } else if (key.find("two h2d") == 0) {
        CHECK(std::sscanf(key.c_str() + key.find('('), "(%d,%d)", &a, &b) == 2);
        together(name, key, a, b, bound, entry.at("fair_each").number());
      } else if (key == "all h2d inter" || key == "all d2h inter") {
        all_of(name, key == "all h2d inter", bound, plain);
      } else if (key.find("bidir") == 0) {
        together(name, key, 0, 0, bound, entry.at("fair_each").number());
      }
    }
  }
  return 0;
}
