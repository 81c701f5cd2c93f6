// Which GPU's copy engine makes the first copies of relayed paths out of a GPU. The relays read,
// where they may have access to the memory. Then the calls are made in their contexts.
#include "base/json.h"
#include "transfer_play.h"

using glake::topology::Json;
using test::Buffer;
using test::Call;
using test::kMiB;
using test::kPinned;
using test::Node;

namespace {

constexpr size_t kBytes = 64 * kMiB;

// The load of a copy that is read is larger where it enters the reader than where it leaves the
// other GPU. Of all bytes that left GPU 0 by NVLink, this is the load where they entered relays.
double load_at_relays() {
  const Json all =
      Json::parse(test::text_of([](char* to, size_t room) { return simcuda_edges(to, room, 1); }));
  double entered = 0;
  for (const auto& [name, edge] : all.at("edges").members()) {
    if (name.rfind("N>g", 0) == 0 && name != "N>g0") entered += edge.at("bytes").number();
  }
  return entered / all.at("edges").at("g0>N").at("bytes").number();
}

double load_of_copy(uint64_t dst, int to, uint64_t src) {
  test::text_of([](char* out, size_t room) { return simcuda_edges(out, room, 1); });
  test::finish(Call({{dst, src, kBytes}}, to, 0).start());
  return load_at_relays();
}

bool is_read(double load) { return load > 1.24 && load < 1.26; }
bool is_written(double load) { return load > 0.99 && load < 1.01; }

TEST(relays_read_memory_of_glake_and_of_the_driver) {
  Node node("hgx_h100_h200", {{"memory", "1GiB"}});
  Buffer host(kPinned, kBytes), block(0, kBytes);
  block.fill(1);
  CHECK(is_read(load_of_copy(host.at(), GLAKE_HOST, block.at())));
  CHECK(host.holds(1, 0, kBytes, 0));
  CUcontext context = nullptr;
  CU(cuDevicePrimaryCtxRetain(&context, 0));
  CU(cuCtxSetCurrent(context));
  CUdeviceptr foreign = 0;
  CU(cuMemAlloc(&foreign, kBytes));
  Buffer::write(2, 0, reinterpret_cast<unsigned char*>(foreign), kBytes);
  CHECK(is_read(load_of_copy(host.at(), GLAKE_HOST, foreign)));
  CHECK(host.holds(2, 0, kBytes, 0));
  CU(cuMemFree(foreign));
  CU(cuCtxSetCurrent(nullptr));
  CU(cuDevicePrimaryCtxRelease(0));
}

// Only who mapped the memory can give other GPUs access. PyTorch's expandable segments are such.
TEST(a_gpu_writes_memory_that_others_mapped) {
  Node node("hgx_h100_h200", {{"memory", "1GiB"}});
  Buffer host(kPinned, kBytes);
  test::ForeignMapping mapped(kBytes);
  Buffer::write(3, 0, mapped.data(), kBytes);
  CHECK(is_written(load_of_copy(host.at(), GLAKE_HOST, mapped.at())));
  CHECK(host.holds(3, 0, kBytes, 0));
}

// Relays bring nothing here. The plain copy goes over NVLink, because its GPU has got access.
TEST(a_plain_copy_between_gpus_is_not_staged) {
  Node node("hgx_h100_h200", {{"memory", "1GiB"}, {"phantom", "1"}});
  Buffer from(0, kBytes), to(1, kBytes);
  test::text_of([](char* out, size_t room) { return simcuda_edges(out, room, 1); });
  const std::string result = test::finish(Call(to, 0, from, 0, kBytes).start());
  CHECK_TEXT(result.find("\"relayed\": true") == std::string::npos, result);
  const Json all = Json::parse(
      test::text_of([](char* out, size_t room) { return simcuda_edges(out, room, 0); }));
  CHECK(all.at("edges").at("g0>N").at("bytes").number() == kBytes);
  CHECK(test::text_in(test::transfer_stats(), "without_access") == "");
}

TEST(a_copy_is_made_where_access_is_refused) {
  for (const char* call : {"cuMemSetAccess", "cuCtxEnablePeerAccess"}) {
    Node node("hgx_h100_h200", {{"memory", "256MiB"}});
    Buffer from(0, kMiB), to(1, kMiB);
    from.fill(7);
    CHECK(simcuda_fail(call, 1, CUDA_ERROR_TOO_MANY_PEERS, -1) == 0);
    for (int round = 0; round < 2; ++round) {
      test::finish(Call(to, 0, from, 0, kMiB).start());
      CHECK(to.holds(7, 0, kMiB, 0));
    }
    CHECK(simcuda_fail(nullptr, 1, 0, 1) == 0);
    const std::string why = test::text_in(test::transfer_stats(), "without_access");
    CHECK_TEXT(why.find("cuda:0 to memory of cuda:1: ") != std::string::npos, why);
    CHECK_TEXT(why.find("CUDA_ERROR_TOO_MANY_PEERS") != std::string::npos, why);
  }
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
