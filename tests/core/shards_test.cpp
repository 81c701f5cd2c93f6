// Shards: memory that processes have in common and that none can write.
#include <chrono>
#include <functional>
#include <future>
#include <thread>

#include "ipc_play.h"

namespace {

using namespace test_ipc;
using test::stat;

constexpr size_t kBytes = 5 * kMiB;

void* sealed() {
  void* ptr = glake_shard_create(kBytes, 0);
  CHECK(ptr != nullptr);
  fill(ptr, kBytes, 77);
  OK(glake_shard_seal(ptr));
  return ptr;
}

// How many granules of the GPU all processes of the machine hold.
uint64_t used() {
  test::CurrentContext context;
  size_t free = 0, total = 0;
  CU(cuMemGetInfo(&free, &total));
  return (total - free) / kGranule;
}

TEST(one_copy_for_all) {
  const std::string machine = machine_name();
  start(machine);
  Other other(machine);
  const uint64_t before = used();
  const std::string text = other.ask("seal " + std::to_string(kBytes));
  CHECK(used() == before + 3);
  size_t bytes = 0;
  void* ptr = glake_shard_open(text.c_str(), 0, &bytes);
  CHECK(ptr != nullptr && bytes == kBytes && holds(ptr, bytes, 77));
  CHECK(used() == before + 3);
  CHECK(glake_shard_open(text.c_str(), 0, nullptr) == ptr);  // twice: closed twice
  OK(glake_shard_close(ptr));
  CHECK(holds(ptr, kBytes, 77));
  OK(glake_shard_close(ptr));
  GIVES(GLAKE_INVALID_POINTER, glake_shard_close(ptr));
  CHECK(other.ask("put_back 0") == "0");
  CHECK(used() == before);
  CHECK(other.ask("leave") == "0");
  finish();
}

// A write ends the context of the process that makes it, and changes no other process's bytes.
TEST(nobody_can_write) {
  const std::string machine = machine_name();
  for (int maker = 0; maker < 2; ++maker) {
    test::running() = "a write by the maker: " + std::to_string(maker);
    start(machine);
    Other other(machine);
    void* ptr = nullptr;
    if (maker != 0) {
      ptr = glake_shard_open(other.ask("seal " + std::to_string(kBytes)).c_str(), 0, nullptr);
    } else {
      ptr = sealed();
      CHECK(other.ask(opening(share_shard(ptr))).rfind("opened", 0) == 0);
    }
    CHECK(ptr != nullptr);
    CHECK(other.ask("write 0") == std::to_string(CUDA_ERROR_ILLEGAL_ADDRESS));
    CHECK(holds(ptr, kBytes, 77));
    other.kill_it();
    CHECK(holds(ptr, kBytes, 77));
    OK(glake_shard_close(ptr));
    finish();
  }
}

// A shard lives as long as any process has it, and each of them can give it to others.
TEST(the_maker_may_leave) {
  const std::string machine = machine_name();
  for (int killed = 0; killed < 2; ++killed) {
    test::running() = "the maker leaves, killed " + std::to_string(killed);
    start(machine);
    auto maker = std::make_unique<Other>(machine);
    Other third(machine);
    const uint64_t before = used();
    const std::string text = maker->ask("seal " + std::to_string(kBytes));
    void* ptr = glake_shard_open(text.c_str(), 0, nullptr);
    CHECK(ptr != nullptr);
    const std::string again = share_shard(ptr);
    if (killed != 0) {
      maker->kill_it();
    } else {
      CHECK(maker->ask("put_back 0") == "0" && maker->ask("leave") == "0");
    }
    CHECK(third.ask(opening(text)) == "error " + std::to_string(GLAKE_INVALID_POINTER));
    CHECK(third.ask(opening(again)).rfind("opened", 0) == 0);
    CHECK(third.ask("holds " + range(0, kBytes, 77)) == "yes");
    CHECK(used() == before + 3);
    OK(glake_shard_close(ptr));
    CHECK(third.ask("holds " + range(0, kBytes, 77)) == "yes");
    const std::string last = third.ask("pass_on 0");
    ptr = glake_shard_open(last.c_str(), 0, nullptr);
    CHECK(ptr != nullptr && holds(ptr, kBytes, 77));
    CHECK(third.ask("put_back 0") == "0" && third.ask("leave") == "0");
    CHECK(glake_shard_open(again.c_str(), 0, nullptr) == nullptr);
    OK(glake_shard_close(ptr));
    CHECK(used() == before);
    maker.reset();
    finish();
  }
}

// Another process opens a shard while it is closed here: it has the whole shard, or an error.
TEST(closed_while_it_is_opened) {
  const std::string machine = machine_name();
  start(machine);
  Other other(machine);
  size_t opened = 0;
  for (int turn = 0; turn < 60; ++turn) {
    void* ptr = sealed();
    other.tell(opening(share_shard(ptr)));
    usleep(static_cast<useconds_t>(turn * 20));
    OK(glake_shard_close(ptr));
    void* next = glake_shard_create(kBytes, 0);  // perhaps where the closed one was
    fill(next, kBytes, 5);
    const std::string answer = other.answer();
    unsigned long which = 0;
    // "again": at the address of one that it has put back.
    if (std::sscanf(answer.c_str(), "opened %lu", &which) == 1 ||
        std::sscanf(answer.c_str(), "again %lu", &which) == 1) {
      CHECK(other.ask("holds " + range(which, kBytes, 77)) == "yes");
      CHECK(other.ask("put_back " + std::to_string(which)) == "0");
      ++opened;
    } else {
      CHECK_TEXT(answer == "error " + std::to_string(GLAKE_INVALID_POINTER), answer);
    }
    OK(glake_shard_close(next));
  }
  CHECK(opened > 0);
  CHECK(other.ask("leave") == "0");
  finish();
}

// A process that is stopped holds up those who open its shard, and nobody else.
TEST(a_stopped_process_holds_up_its_own_openers) {
  const std::string machine = machine_name();
  start(machine);
  {
    Other stopped(machine);
    const std::string late = stopped.ask("seal " + std::to_string(kBytes));
    stopped.stop();
    const auto open = [&late] { return glake_shard_open(late.c_str(), 0, nullptr); };
    std::future<void*> first = std::async(std::launch::async, open);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    std::future<void*> second = std::async(std::launch::async, open);
    std::future<void> other = std::async(std::launch::async, [] {
      OK(glake_shard_close(sealed()));
      OK(glake_empty_cache(0));
    });
    const bool served = other.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
    stopped.go_on();
    void *a = first.get(), *b = second.get();
    other.get();
    CHECK(served && a != nullptr && a == b && holds(a, kBytes, 77));
    OK(glake_shard_close(a));
    OK(glake_shard_close(a));
    GIVES(GLAKE_INVALID_POINTER, glake_shard_close(a));
    CHECK(stopped.ask("put_back 0") == "0" && stopped.ask("leave") == "0");
  }
  finish();
}

// A device that is let in later reaches what was shared before, and only reads shards.
TEST(a_peer_reaches_what_is_shared) {
  const std::string machine = machine_name();
  start(machine);
  Other other(machine);
  void *mine = sealed(), *open = glake_shard_create(kBytes, 0);
  void* theirs = glake_shard_open(other.ask("seal " + std::to_string(kBytes)).c_str(), 0, nullptr);
  void* block = glake_ipc_open(other.ask("offer " + std::to_string(kBytes)).c_str(), 0, nullptr);
  const auto access = [](void* ptr) {
    const CUmemLocation peer{CU_MEM_LOCATION_TYPE_DEVICE, 1};
    unsigned long long flags = 0;
    CU(cuMemGetAccess(&flags, &peer, at(ptr)));
    return flags;
  };
  {
    test::CurrentContext context;
    for (void* each : {mine, open, theirs, block}) CHECK(access(each) == 0);
    CHECK(simcuda_fail("cuMemSetAccess", 2, CUDA_ERROR_UNKNOWN, 1) == 0);
    GIVES(GLAKE_DRIVER_ERROR, glake_enable_peer_access(0, 1));
    CHECK(simcuda_fail(nullptr, 1, 0, 1) == 0);
    OK(glake_enable_peer_access(0, 1));
    CHECK(access(mine) == CU_MEM_ACCESS_FLAGS_PROT_READ);
    CHECK(access(theirs) == CU_MEM_ACCESS_FLAGS_PROT_READ);
    CHECK(access(open) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CHECK(access(block) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    OK(glake_shard_seal(open));
    CHECK(access(open) == CU_MEM_ACCESS_FLAGS_PROT_READ);
  }
  for (void* each : {mine, open, theirs}) OK(glake_shard_close(each));
  OK(glake_ipc_close(block));
  CHECK(other.ask("put_back 0") == "0" && other.ask("leave") == "0");
  finish();
}

// The waits of a seal and of a close would break a capture. So they are refused, and the capture
// goes on.
TEST(refused_during_a_capture) {
  const std::string machine = machine_name();
  for (auto mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED}) {
    start(machine);
    Other other(machine);
    const std::string block = other.ask("offer " + std::to_string(kBytes));
    void *ptr = sealed(), *open = glake_shard_create(kBytes, 0);
    void* theirs = glake_ipc_open(block.c_str(), 0, nullptr);
    CUstream stream = nullptr;
    CUgraph graph = nullptr;
    {
      test::CurrentContext context;
      CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
      OK(glake_free(glake_malloc(kMiB, 0, stream)));  // names it
      CU(cuStreamBeginCapture(stream, mode));
      GIVES(GLAKE_INVALID_ARGUMENT, glake_shard_close(ptr));
      GIVES(GLAKE_INVALID_ARGUMENT, glake_shard_seal(open));
      GIVES(GLAKE_INVALID_ARGUMENT, glake_ipc_close(theirs));
      CU(cuStreamEndCapture(stream, &graph));
      CU(cuGraphDestroy(graph));
    }
    CHECK(holds(ptr, kBytes, 77));
    CHECK(other.ask(opening(share_shard(ptr))).rfind("opened", 0) == 0);
    OK(glake_shard_seal(open));
    OK(glake_shard_close(open));
    OK(glake_shard_close(ptr));
    OK(glake_ipc_close(theirs));
    CHECK(other.ask("put_back 0") == "0" && other.ask("leave") == "0");
    test::end_stream(stream);
    finish();
  }
}

TEST(wrong_calls) {
  const std::string machine = machine_name();
  start(machine);
  Other other(machine);
  char text[600];
  CHECK(glake_shard_create(0, 0) == nullptr);
  CHECK(glake_last_error(nullptr, 0) == GLAKE_INVALID_ARGUMENT);
  CHECK(glake_shard_create(size_t{1} << 40, 0) == nullptr);
  CHECK(glake_last_error(nullptr, 0) == GLAKE_OUT_OF_MEMORY);
  void* ptr = glake_shard_create(kBytes, 0);
  CHECK(glake_shard_share(ptr, text, sizeof text) == 0);  // not sealed
  CHECK(glake_last_error(nullptr, 0) == GLAKE_INVALID_ARGUMENT);
  fill(ptr, kBytes, 1);  // writable
  GIVES(GLAKE_INVALID_ARGUMENT, glake_shutdown());
  OK(glake_shard_seal(ptr));
  OK(glake_shard_seal(ptr));
  const std::string mine = share_shard(ptr);
  CHECK(share_shard(ptr) == mine);
  CHECK(glake_shard_open(mine.c_str(), 0, nullptr) == nullptr);  // this process's own
  CHECK(glake_last_error(nullptr, 0) == GLAKE_INVALID_ARGUMENT);
  // A block is not opened as a shard, nor a shard as a block, which could be written.
  const std::string shard = other.ask("seal " + std::to_string(kBytes));
  const std::string block = other.ask("offer " + std::to_string(kBytes));
  CHECK(glake_ipc_open(shard.c_str(), 0, nullptr) == nullptr);
  CHECK(glake_last_error(nullptr, 0) == GLAKE_INVALID_ARGUMENT);
  CHECK(glake_shard_open(block.c_str(), 0, nullptr) == nullptr);
  CHECK(glake_last_error(nullptr, 0) == GLAKE_INVALID_ARGUMENT);
  const std::string forged = "glake-ipc" + shard.substr(std::strlen("glake-shard"));
  CHECK(glake_ipc_open(forged.c_str(), 0, nullptr) == nullptr);
  CHECK(glake_last_error(nullptr, 0) == GLAKE_INVALID_POINTER);
  const std::string disguised = "glake-shard" + block.substr(std::strlen("glake-ipc"));
  CHECK(glake_shard_open(disguised.c_str(), 0, nullptr) == nullptr);
  CHECK(glake_last_error(nullptr, 0) == GLAKE_INVALID_POINTER);
  CHECK(glake_shard_open(shard.c_str(), 1, nullptr) == nullptr);  // another GPU
  CHECK(glake_last_error(nullptr, 0) == GLAKE_INVALID_DEVICE);
  GIVES(GLAKE_INVALID_POINTER, glake_shard_seal(text));
  unsigned char first[16], second[16];
  OK(glake_device_uuid(0, first));
  OK(glake_device_uuid(1, second));
  CHECK(std::memcmp(first, second, sizeof first) != 0);
  OK(glake_shard_close(ptr));
  CHECK(other.ask("put_back 0") == "0" && other.ask("leave") == "0");
  finish();
}

// A seal that the driver refuses leaves the shard writable.
TEST(a_refused_seal) {
  start(machine_name());
  void* ptr = glake_shard_create(kBytes, 0);
  CHECK(simcuda_fail("cuMemSetAccess", 1, CUDA_ERROR_NOT_SUPPORTED, 1) == 0);
  GIVES(GLAKE_DRIVER_ERROR, glake_shard_seal(ptr));
  char text[600];
  CHECK(glake_shard_share(ptr, text, sizeof text) == 0);
  fill(ptr, kBytes, 77);
  OK(glake_shard_seal(ptr));
  CHECK(holds(ptr, kBytes, 77) && glake_shard_share(ptr, text, sizeof text) != 0);
  OK(glake_shard_close(ptr));
  finish();
}

// Closes a shard although calls of the driver are refused. It holds `77` until it is closed.
void close_under_refusals(void* ptr) {
  if (ptr == nullptr) return;
  const int closed = glake_shard_close(ptr);
  if (closed == GLAKE_OK || closed == GLAKE_MEMORY_OWED) return;
  CHECK(closed == GLAKE_DRIVER_ERROR);
  CHECK(simcuda_fail(nullptr, 1, 0, 1) == 0);
  OK(glake_shard_close(ptr));
}

// Each driver call of a shard's life is refused in turn. No memory is lost.
TEST(every_call_refused) {
  const std::string machine = machine_name();
  for (int64_t times : {1, 2, -1}) {
    for (int64_t k = 1;; ++k) {
      test::running() =
          "shard, call " + std::to_string(k) + " refused " + std::to_string(times) + " times";
      start(machine);
      Other other(machine);
      const std::string theirs = other.ask("seal " + std::to_string(kBytes));
      OK(glake_free(glake_malloc(kMiB, 0, nullptr)));
      const int64_t calls = simcuda_calls("*");
      CHECK(simcuda_fail("*", k, CUDA_ERROR_UNKNOWN, times) == 0);
      char text[600] = "";
      void* mine = glake_shard_create(kBytes, 0);
      if (mine != nullptr && glake_shard_seal(mine) == GLAKE_OK) {
        if (glake_shard_share(mine, text, sizeof text) == 0) {
          CHECK(glake_last_error(nullptr, 0) == GLAKE_DRIVER_ERROR);
        }
      }
      void* ptr = glake_shard_open(theirs.c_str(), 0, nullptr);
      CHECK(ptr != nullptr || glake_last_error(nullptr, 0) == GLAKE_DRIVER_ERROR);
      close_under_refusals(ptr);
      close_under_refusals(mine);
      const bool past = simcuda_calls("*") - calls < k;
      CHECK(simcuda_fail(nullptr, 1, 0, 1) == 0);
      ptr = glake_shard_open(theirs.c_str(), 0, nullptr);
      CHECK(ptr != nullptr && holds(ptr, kBytes, 77));
      OK(glake_shard_close(ptr));
      OK(glake_empty_cache(0));
      CHECK(glake_owed_bytes(0) == 0);
      CHECK(other.ask("put_back 0") == "0" && other.ask("leave") == "0");
      finish();
      if (past) break;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--other") return serve(argv[2]);
  signal(SIGPIPE, SIG_IGN);
  return test::run_cases(argc, argv);
}
