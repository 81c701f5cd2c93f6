// Compares times of copies on every preset with the plain single-path figures of the platforms
// file. Memory is phantom, so that gigabytes cost nothing.
#include <dlfcn.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "base/json.h"
#include "sim_harness.h"

namespace {

constexpr size_t kBytes = size_t{1} << 30;
constexpr double kTolerance = 0.005;  // the file rounds to two decimals

glake::topology::Json platforms() {
  Dl_info info{};
  dladdr(reinterpret_cast<void*>(&simcuda_configure), &info);
  const std::string library = info.dli_fname;
  std::ifstream file(library.substr(0, library.rfind('/') + 1) + "platforms.json");
  std::stringstream text;
  text << file.rdbuf();
  return glake::topology::Json::parse(text.str());
}

struct Copy {
  int from, to;  // -1: host
};

// The sum of the rates in GB/s of these copies, which start together.
double rate(const std::string& preset, const char* host_node, const std::vector<Copy>& copies,
            double per_copy_us) {
  Sim sim({{"preset", preset.c_str()}, {"phantom", "1"}, {"host_node", host_node}});
  void* host = nullptr;
  OK(cuMemHostAlloc(&host, kBytes, 0));
  const auto host_address = reinterpret_cast<CUdeviceptr>(host);
  std::vector<CUstream> streams;
  for (const Copy& copy : copies) {
    sim.use(copy.from >= 0 ? copy.from : copy.to);  // between GPUs the source writes
    streams.push_back(new_stream());
    const CUdeviceptr dst = copy.to < 0 ? host_address : Mapped(kBytes, copy.to).at;
    const CUdeviceptr src = copy.from < 0 ? host_address : Mapped(kBytes, copy.from).at;
    const bool peer = copy.from >= 0 && copy.to >= 0;
    int reaches = 0;
    if (peer) OK(cuDeviceCanAccessPeer(&reaches, copy.from, copy.to));
    if (reaches != 0) OK(grant(dst, kBytes, copy.from));
    OK(peer ? cuMemcpyPeerAsync(dst, context_of(copy.to), src, context_of(copy.from), kBytes,
                                streams.back())
            : cuMemcpyAsync(dst, src, kBytes, streams.back()));
  }
  double sum = 0;
  for (const CUstream stream : streams) {
    OK(cuStreamSynchronize(stream));
    const double ns = static_cast<double>(simcuda_now_ns()) - per_copy_us * 1000;
    sum = static_cast<double>(kBytes) * static_cast<double>(copies.size()) / ns;
  }
  TRUE(violations() == "[]");
  return sum;
}

// The copies that a bound's name means; empty if this test does not know the name.
std::vector<Copy> copies_of(const std::string& name, int gpus) {
  int a = 0, b = 0;
  if (name == "h2d local" || name == "h2d inter") return {{-1, 0}};
  if (name == "d2h local" || name == "d2h inter") return {{0, -1}};
  if (name == "bidir h2d+d2h") return {{-1, 0}, {0, -1}};
  if (std::sscanf(name.c_str(), "p2p %d>%d", &a, &b) == 2) return {{a, b}};
  const size_t pair = name.find('(');
  if (name.rfind("two h2d", 0) == 0 && pair != std::string::npos &&
      std::sscanf(name.c_str() + pair, "(%d,%d)", &a, &b) == 2) {
    return {{-1, a}, {-1, b}};
  }
  std::vector<Copy> all;
  for (int i = 0; i < gpus; ++i) {
    if (name == "all h2d inter") all.push_back({-1, i});
    if (name == "all d2h inter") all.push_back({i, -1});
  }
  return all;
}

void check_plain_figures() {
  const glake::topology::Json all = platforms();
  const double per_copy_us = all.at("per_copy_us").number();
  int compared = 0;
  std::string wrong;
  for (const auto& [preset, platform] : all.members()) {
    if (preset[0] == '_' || preset == "per_copy_us") continue;
    for (const auto& [name, bound] : platform.at("bounds").members()) {
      const auto copies = copies_of(name, static_cast<int>(platform.at("gpus").number()));
      if (copies.empty()) continue;
      const bool local = name.find("local") != std::string::npos;
      const double plain = bound.at("plain").number();
      const double got = rate(preset, local ? "0" : "interleave", copies, per_copy_us);
      ++compared;
      // For PCIe between sockets, the measured hardware of two presets has a limit that their
      // graphs do not have. So for these the simulator may be faster than the figure, and must not
      // be slower.
      const bool graph_is_faster = name.find("(nolink,xsock)") != std::string::npos && got > plain;
      if (graph_is_faster || std::abs(got - plain) <= kTolerance * plain) continue;
      wrong += "\n  " + preset + ": " + name + ": " + std::to_string(got) + " GB/s, not " +
               std::to_string(plain);
    }
  }
  std::printf("%d figures compared\n", compared);
  if (!wrong.empty()) throw Failed{wrong};
  TRUE(compared >= 90);
}

// Two copies of different lengths share a link until the shorter one ends. Then the longer one has
// the link alone.
void check_shares_change_over_time() {
  Sim sim({{"preset", "dgx1v"}, {"phantom", "1"}});
  void* host = nullptr;
  OK(cuMemHostAlloc(&host, kBytes, 0));
  CUstream streams[2];
  CUevent ends[2], start = new_event(CU_EVENT_DEFAULT);
  for (int i = 0; i < 2; ++i) {
    streams[i] = new_stream();
    ends[i] = new_event(CU_EVENT_DEFAULT);
  }
  Mapped memory(kBytes);
  OK(cuEventRecord(start, streams[0]));
  for (int i = 0; i < 2; ++i) {
    OK(cuMemcpyHtoDAsync(memory.at, host, kBytes / 2 * static_cast<size_t>(i + 1), streams[i]));
    OK(cuEventRecord(ends[i], streams[i]));
  }
  OK(cuCtxSynchronize());
  float shorter = 0, longer = 0;
  OK(cuEventElapsedTime(&shorter, start, ends[0]));
  OK(cuEventElapsedTime(&longer, start, ends[1]));
  const double alone_ms = static_cast<double>(kBytes) / 12.3e6;  // the whole uplink, 12.3 GB/s
  TRUE(std::abs(shorter - alone_ms - 0.008) < 0.01);             // half the bytes, half the rate
  TRUE(std::abs(longer - 1.5 * alone_ms - 0.008) < 0.01);
}

void check_same_inputs_same_times() {
  const std::vector<Copy> mix = {{-1, 0}, {-1, 1}, {0, -1}, {0, 3}, {3, 1}, {5, 0}};
  const double first = rate("dgx1v", "interleave", mix, 8);
  TRUE(first == rate("dgx1v", "interleave", mix, 8));
}

void check_bad_platform_files() {
  const std::string path = "bad_platforms." + std::to_string(getpid()) + ".json";
  const auto load = [&](const std::string& text) {
    simcuda_reset();
    std::ofstream(path) << text;
    OK(simcuda_configure("platforms", path.c_str()));
    OK(simcuda_configure("preset", "p"));
    const CUresult result = cuInit(0);
    std::remove(path.c_str());
    simcuda_reset();
    return result;
  };
  const auto platform = [](const std::string& edges) {
    return R"({"per_copy_us": 8, "p": {"gpus": 1, "sockets": [[0]], "joint": [], "edges": [)" +
           edges + "]}}";
  };
  const std::string host = R"(["m0", "s0", 9], ["s0", "m0", 9], ["g0", "s0", 5])";
  const std::string good = platform(host + R"(, ["s0", "g0", 5])");
  OK(load(good));
  GIVES(CUDA_ERROR_INVALID_VALUE, load(""));
  GIVES(CUDA_ERROR_INVALID_VALUE, load(good + "x"));
  GIVES(CUDA_ERROR_INVALID_VALUE, load(good.substr(0, good.size() - 1)));
  GIVES(CUDA_ERROR_INVALID_VALUE, load(R"({"per_copy_us": 8, "p": {"gpus": 1}})"));
  GIVES(CUDA_ERROR_INVALID_VALUE, load(platform(host + R"(, ["s0", "g0", 0])")));  // no rate
  GIVES(CUDA_ERROR_INVALID_VALUE, load(platform(host)));  // device 0 is out of the host's reach
}

}  // namespace

int main(int argc, char** argv) {
  return run_checks(argc, argv,
                    {
                        {"plain figures of every preset", check_plain_figures},
                        {"shares change over time", check_shares_change_over_time},
                        {"same inputs, same times", check_same_inputs_same_times},
                        {"bad platform files", check_bad_platform_files},
                    });
}
