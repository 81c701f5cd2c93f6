// What a copy over every useful path reaches of the bound of each platform, in virtual time.
#include "topology/json.h"
#include "transfer_play.h"

using glake::topology::Json;
using test::kMiB;

namespace {

struct Row {
  std::string platform, transfer, host;
  int dst, src;
  double bound, plain;
};

double bound_of(const Json& platform, const std::string& key, double* plain) {
  const Json& entry = platform.at("bounds").at(key);
  *plain = entry.at("plain").number();
  return entry.at("bound").number();
}

double measure(const Row& row, size_t bytes, std::string* result) {
  test::Buffer dst(row.dst, bytes), src(row.src, bytes);
  if (row.host == "striped") {
    const uint64_t host = row.dst < 0 ? dst.at() : src.at();
    for (size_t at = 0, node = 0; at < bytes; at += 4 * kMiB, node = 1 - node) {
      void* piece = reinterpret_cast<void*>(host + at);
      CHECK(simcuda_place_host(piece, std::min(4 * kMiB, bytes - at), static_cast<int>(node)) == 0);
    }
  }
  const uint64_t begin = simcuda_now_ns();
  const uint64_t id = test::Call(dst, 0, src, 0, bytes).start();
  CHECK(id != 0);
  OK(glake_copy_wait(id, test::kForever));
  const uint64_t end = simcuda_now_ns();
  *result = test::result_of(id);
  OK(glake_copy_release(id));
  return static_cast<double>(bytes) / static_cast<double>(end - begin);
}

// The least share of the bound at 256 MiB and at 1 GiB. The goals are 0.88 and 0.95; where host
// memory is spread over two sockets, the fastest machines are not there yet.
struct Least {
  double quarter, whole;
};

Least least(const Row& row) {
  const bool spread = row.host == "spread", local = row.host == "local";
  if (row.platform == "hgx_h100_h200" && !local) return {spread ? 0.74 : 0.80, 0.85};
  // Pages of both sockets in every chunk: half of the bytes cross the link between them.
  if (row.platform == "gb200_tray" && spread) return {0.49, 0.51};
  if (row.platform == "gb200_tray" && !local) return {0.78, 0.85};
  return {0.88, 0.94};
}

void try_one(const Row& row, bool verbose) {
  test::running() = row.platform + " " + row.transfer + " " + row.host;
  test::Node node(row.platform,
                  {{"phantom", "1"}, {"host_node", row.host == "local" ? "0" : "interleave"}});
  std::printf("%-20s %-8s %-12s bound %6.1f plain %6.1f |", row.platform.c_str(),
              row.transfer.c_str(), row.host.c_str(), row.bound, row.plain);
  for (size_t mib : {4, 16, 64, 256, 1024}) {
    std::string result;
    const double rate = measure(row, mib * kMiB, &result);
    const double share = rate / row.bound;
    std::printf(" %4zu: %6.1f (%.3f)", mib, rate, share);
    CHECK(share < 1.001);
    if (mib == 256) CHECK(share >= least(row).quarter);
    if (mib == 1024) CHECK(share >= least(row).whole);
    if (verbose) std::printf("\n%s\n", result.c_str());
  }
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const Json all = Json::parse(test::platforms_text());
  std::vector<std::string> names{"dgx_a100", "hgx_h100_h200", "dgx1v", "gb200_tray"};
  if (argc > 1) names.assign(argv + 1, argv + 2);
  for (const std::string& name : names) {
    const Json& platform = all.at(name);
    for (const char* host : {"local", "spread", "striped"}) {
      const std::string key = host == std::string("local") ? " local" : " inter";
      for (const char* transfer : {"h2d", "d2h"}) {
        Row row{name, transfer, host, 0, 0, 0, 0};
        row.bound = bound_of(platform, transfer + key, &row.plain);
        (transfer[0] == 'h' ? row.src : row.dst) = test::kPinned;
        try_one(row, argc > 2);
      }
    }
  }
  return 0;
}
