// Errors that end their GPU's context, as CUDA documents for errors of a GPU's work. Copies over
// other GPUs go on. Copies that need that GPU are refused, and the message says what to do. Nothing
// hangs. Memory that a lost copy may still use is not reused.
#include "transfer_play.h"

using test::Buffer;
using test::Call;
using test::kForever;
using test::kMiB;
using test::kPinned;

namespace {

constexpr size_t kBytes = 48 * kMiB;

// Opens the engine over an A100 node. The tests give nothing back, because much of it cannot be
// given back.
void open_engine(const char* what, const test::Options& options) {
  test::running() = what;
  test::fresh_simulator({{"memory", "256MiB"}, {"preset", "dgx_a100"}, {"sticky_errors", "1"}});
  test::configure({{"driver", "sim"}});
  test::configure(options);
  CHECK(glake_device_count() == 8);
  OK(glake_transfer_open(test::platforms_text().c_str(), "dgx_a100"));
}

Buffer& buffer(int device, uint64_t seed) {
  static auto& kept = *new std::vector<Buffer*>;  // never destroyed, and no leak to a sanitizer
  kept.push_back(new Buffer(device, kBytes));
  kept.back()->fill(seed);
  return *kept.back();
}

void fails(const char* a, const char* b) {
  CHECK(simcuda_fail_copy(a, b, 2, CUDA_ERROR_LAUNCH_FAILED, 1) == 0);
}

bool says(const char* words) {
  CHECK_TEXT(test::last_error().find(words) != std::string::npos, words);
  return true;
}

// The text of the transfer that hits the error tells what is written, what may be, and the way out.
void fails_once(Buffer& dst, Buffer& src) {
  const uint64_t id = Call(dst, 0, src, 0, kBytes).start();
  GIVES(GLAKE_COPY_FAILED, glake_copy_wait(id, kForever));
  CHECK(says("719") && says("start it again") && says("unknown are bytes"));
  CHECK(glake_copy_settled(id) == 0);
  OK(glake_copy_release(id));
}

// A range that a lost copy may write is not freed, and the engine does not claim to be closed.
void ends_without_a_hang(Buffer& dst) {
  CHECK(glake_free(dst.data()) == GLAKE_INVALID_POINTER && says("may still use it"));
  CHECK(glake_transfer_close() == GLAKE_DRIVER_ERROR && says("until the process ends"));
  CHECK(glake_shutdown() != GLAKE_OK);
}

void relay_is_lost(const char* what, const test::Options& options) {
  open_engine(what, options);
  Buffer &dst = buffer(0, 1), &src = buffer(kPinned, 2);
  fails("g2", "g0");
  fails_once(dst, src);
  for (int i = 0; i < 3; ++i) {  // over the other paths, all of it
    const std::string result = test::finish(Call(dst, 0, src, 0, kBytes).start());
    CHECK_TEXT(test::text_in(result, "state") == "done" && dst.holds(2, 0, kBytes, 0), result);
    dst.fill(1);
  }
  void* elsewhere = glake_malloc(8 * kMiB, 1, nullptr);
  CHECK(elsewhere != nullptr);
  OK(glake_free(elsewhere));
  CHECK(glake_malloc(8 * kMiB, 2, nullptr) == nullptr && says("start it again"));
  ends_without_a_hang(dst);
}

}  // namespace

TEST(a_relay_is_lost) { relay_is_lost("a relay is lost", {}); }

TEST(a_relay_is_lost_to_held_copies) {
  relay_is_lost("a relay is lost to held copies", test::kHeld);
}

TEST(the_destination_is_lost) {
  open_engine("the destination is lost", {});
  Buffer &dst = buffer(0, 1), &src = buffer(kPinned, 2), &other = buffer(3, 3);
  fails("host", "g0");
  fails_once(dst, src);
  CHECK(Call(dst, 0, src, 0, kBytes).start() == 0 && says("start it again"));
  CHECK(glake_malloc(8 * kMiB, 0, nullptr) == nullptr && says("start it again"));
  test::finish(Call(other, 0, src, 0, kBytes).start());
  CHECK(other.holds(2, 0, kBytes, 0));
  ends_without_a_hang(dst);
}

// The driver is asked about memory in the context of a GPU that the copy uses, also if the caller
// names none. GPU 0, which was opened first, answers no more.
TEST(copies_of_other_gpus_name_no_gpu) {
  open_engine("copies of other GPUs", {});
  Buffer &dst = buffer(0, 1), &src = buffer(kPinned, 2), &other = buffer(3, 3);
  test::finish(Call(dst, 0, src, 0, kMiB).start());
  fails("host", "g0");
  fails_once(dst, src);
  for (const size_t bytes : {size_t{1000}, kBytes}) {
    Call in(other, 0, src, 0, bytes), out(src, 0, other, 0, bytes);
    for (Call* call : {&in, &out}) {
      call->request.dst_device = call->request.src_device = GLAKE_ASK;
      test::finish(call->start());
    }
    other.fill(3);
  }
  int device = 0, pinned = 0;
  OK(glake_place_of(other.data(), &device, &pinned));
  CHECK(device == 3 && pinned == 1);
  ends_without_a_hang(dst);
}

// An ordered copy is wholly enqueued in the driver. Its stream reports the error, and so does the
// copy.
TEST(an_ordered_copy_is_lost) {
  open_engine("an ordered copy is lost", {});
  Buffer &dst = buffer(0, 1), &src = buffer(kPinned, 2);
  const test::CurrentContext context(0);
  CUstream stream = nullptr;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  fails("host", "g0");
  const uint64_t id = Call(dst, 0, src, 0, kBytes).on(stream, 0).start();
  CHECK(id != 0);
  GIVES(GLAKE_COPY_FAILED, glake_copy_wait(id, kForever));
  CHECK(says("719"));
  OK(glake_copy_release(id));
  CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_LAUNCH_FAILED);
  CHECK(Call(dst, 0, src, 0, kBytes).on(stream, 0).start() == 0 && says("start it again"));
  OK(glake_transfer_close());
  CHECK(glake_shutdown() != GLAKE_OK);
}

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
