// Device memory between processes: contents, counts, many blocks, many threads.
#include <chrono>
#include <functional>
#include <future>
#include <thread>

#include "ipc_play.h"

namespace {

using namespace test_ipc;
using test::stat;

// Other processes see all kinds of blocks: at home, stitched, at a granule's edge, small,
// contiguous.
TEST(contents_cross) {
  test::running() = "contents cross";
  const std::string machine = machine_name();
  start(machine, {{"limit", "64MiB"}});
  Other other(machine);
  void* parts[8];
  for (void*& p : parts) p = glake_malloc(6 * kMiB, 0, nullptr);
  void* odd = glake_malloc(3 * kMiB, 0, nullptr);
  void* odder = glake_malloc(2 * kMiB + 512, 0, nullptr);
  for (int i = 0; i < 8; i += 2) OK(glake_free(parts[i]));
  void* view = glake_malloc(23 * kMiB, 0, nullptr);
  CHECK(stat("glake.stitches") == 1);
  OK(glake_free(parts[1]));
  std::vector<std::pair<void*, size_t>> blocks{
      {parts[3], 6 * kMiB},
      {odder, 2 * kMiB + 512},
      {view, 23 * kMiB},
      {glake_malloc(1536, 0, nullptr), 1536},
      {glake_malloc_contiguous(5 * kMiB, 0, nullptr, GLAKE_CONTIGUOUS_VMM), 5 * kMiB},
      {glake_malloc_contiguous(5 * kMiB, 0, nullptr, GLAKE_CONTIGUOUS_LEGACY), 5 * kMiB}};
  const int before = descriptors();
  for (size_t i = 0; i < blocks.size(); ++i) {
    auto [ptr, bytes] = blocks[i];
    test::running() = "contents cross, block " + std::to_string(i);
    CHECK(ptr != nullptr);
    const unsigned seed = 1000 * static_cast<unsigned>(i);
    fill(ptr, bytes, seed);
    const std::string text = share(ptr);
    CHECK(share(ptr) == text);
    CHECK_TEXT(
        other.ask(opening(text)) == "opened " + std::to_string(i) + " " + std::to_string(bytes),
        other.ask("why"));
    CHECK(other.ask("holds " + range(i, bytes, seed)) == "yes");
    CHECK(other.ask("fill " + range(i, bytes, seed + 5)) == "filled");
    CHECK(holds(ptr, bytes, seed + 5));
  }
  // Neighbours in the granules were not touched. Only one socket per block stays open.
  CHECK(descriptors() <= before + 2 + static_cast<int>(blocks.size()));
  CHECK(stat("glake.shared_blocks") == static_cast<int64_t>(blocks.size()));
  OK(glake_check(0));
  // Blocks are freed here while the other process has them open. Their bytes stay until this
  // process reuses the memory.
  for (auto [ptr, bytes] : blocks) OK(glake_free(ptr));
  CHECK(stat("glake.shared_blocks") == 0 && stat("glake.pinned_bytes") != 0);
  OK(glake_empty_cache(0));
  for (size_t i = 0; i < blocks.size(); ++i) {
    const unsigned seed = 1000 * static_cast<unsigned>(i) + 5;
    CHECK(other.ask("holds " + range(i, blocks[i].second, seed)) == "yes");
    CHECK(other.ask("closed " + std::to_string(i)) == "0");
  }
  wait_until("glake.pinned_bytes", 0);
  CHECK(other.ask("leave") == "0");
  for (void* ptr : {parts[5], parts[7], odd}) OK(glake_free(ptr));
  // No statistic tells when the pins of contiguous blocks have ended.
  for (int i = 0; i < 10000 && stat("glake.physical_bytes") != 0; ++i) {
    OK(glake_empty_cache(0));
    usleep(1000);
  }
  CHECK(stat("glake.physical_bytes") == 0);
  finish();
}

// Other processes see the caller's bytes of a block with guards, also where a guard ends a granule.
TEST(guarded_contents_cross) {
  test::running() = "guarded contents cross";
  const std::string machine = machine_name();
  start(machine, {{"limit", "64MiB"}, {"debug", "guard"}});
  Other other(machine);
  const size_t sizes[] = {4 * kMiB - 1536, 3 * kMiB, 2048};
  void* blocks[3];
  for (size_t i = 0; i < 3; ++i) {
    blocks[i] = glake_malloc(sizes[i], 0, nullptr);
    fill(blocks[i], sizes[i], 100 * static_cast<unsigned>(i));
  }
  CHECK(at(blocks[1]) % test::kGranule == 0);  // its guard is in the granule before
  for (size_t i = 0; i < 3; ++i) {
    CHECK_TEXT(other.ask(opening(share(blocks[i]))) ==
                   "opened " + std::to_string(i) + " " + std::to_string(sizes[i]),
               other.ask("why"));
    CHECK(other.ask("holds " + range(i, sizes[i], 100 * static_cast<unsigned>(i))) == "yes");
    CHECK(other.ask("closed " + std::to_string(i)) == "0");
  }
  wait_until("glake.pinned_bytes", 0);
  CHECK(other.ask("leave") == "0");
  for (void* ptr : blocks) OK(glake_free(ptr));
  CHECK(stat("glake.shared_blocks") == 0);
  finish();  // which checks the guards
  OK(glake_configure("debug", "none"));
}

// The number in an answer: 3 in "opened 3 5000" and in "again 3".
std::string number_of(const std::string& said) {
  CHECK_TEXT(said.rfind("opened", 0) == 0 || said.rfind("again", 0) == 0, said);
  size_t from = said.find(' ') + 1;
  return said.substr(from, said.find(' ', from) - from);
}

TEST(opened_twice_is_counted) {
  test::running() = "opened twice";
  const std::string machine = machine_name();
  start(machine);
  Other other(machine);
  void* ptr = glake_malloc(5 * kMiB, 0, nullptr);
  const std::string text = share(ptr);
  CHECK(other.ask(opening(text)) == "opened 0 " + std::to_string(5 * kMiB));
  CHECK(other.ask(opening(text)) == "again 0");
  CHECK(other.ask("closed 0") == "0");
  CHECK(other.ask("leave") == std::to_string(GLAKE_INVALID_ARGUMENT));  // one is open
  CHECK(stat("glake.pinned_bytes") == 6 * static_cast<int64_t>(kMiB));
  CHECK(other.ask("closed 0") == "0");
  CHECK(other.ask("closed 0") == std::to_string(GLAKE_INVALID_POINTER));
  wait_until("glake.pinned_bytes", 0);
  // Opened again after its close.
  const std::string n = number_of(other.ask(opening(text)));
  CHECK(other.ask("closed " + n) == "0" && other.ask("leave") == "0");
  OK(glake_free(ptr));
  finish();
}

// A process that is stopped holds up those who open its block, and nobody else.
TEST(a_stopped_process_holds_up_its_own_openers) {
  test::running() = "a stopped process";
  const std::string machine = machine_name();
  start(machine);
  {
    Other stopped(machine), running(machine);
    const std::string late = stopped.ask("offer " + std::to_string(5 * kMiB));
    const std::string early = running.ask("offer " + std::to_string(3 * kMiB));
    stopped.stop();
    const auto open = [](const std::string& text) {
      return std::async(std::launch::async,
                        [text] { return glake_ipc_open(text.c_str(), 0, nullptr); });
    };
    std::future<void*> first = open(late);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    std::future<void*> second = open(late), other = open(early);
    const bool served = other.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
    const auto soon = std::chrono::milliseconds(0);
    const bool waits = first.wait_for(soon) != std::future_status::ready &&
                       second.wait_for(soon) != std::future_status::ready;
    stopped.go_on();
    void *a = first.get(), *b = second.get(), *c = other.get();
    CHECK(served);
    CHECK(waits);
    CHECK(a != nullptr && a == b && c != nullptr && a != c);
    for (void* block : {a, b, c}) OK(glake_ipc_close(block));
    GIVES(GLAKE_INVALID_POINTER, glake_ipc_close(a));
    CHECK(stopped.ask("leave") == "0" && running.ask("leave") == "0");
  }
  finish();
}

// Work that is enqueued on an opened block is done before the block is unmapped. The simulator
// notes nothing undefined.
TEST(closed_after_its_work) {
  test::running() = "closed after its work";
  const std::string machine = machine_name();
  start(machine);
  {
    Other other(machine);
    const std::string text = other.ask("offer " + std::to_string(5 * kMiB));
    test::CurrentContext context;
    CUstream stream = nullptr;
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    void* ptr = glake_ipc_open(text.c_str(), 0, nullptr);
    CHECK(ptr != nullptr);
    CU(cuMemsetD8Async(at(ptr), 9, 5 * kMiB, stream));
    OK(glake_ipc_close(ptr));
    test::end_stream(stream);
    CHECK(other.ask("leave") == "0");
  }
  finish();
}

// The other process has 100 blocks open at once. The granules of the largest one, of 150 MiB, are
// sent in several batches. Few descriptors stay open.
TEST(many_opens) {
  test::running() = "many opens";
  const std::string machine = machine_name();
  start(machine);
  Other other(machine);
  const int there = std::stoi(other.ask("descriptors"));
  std::vector<void*> blocks;
  for (int i = 0; i < 100; ++i) {
    blocks.push_back(glake_malloc(i == 0 ? 150 * kMiB : 1000, 0, nullptr));
    CHECK(blocks.back() != nullptr);
    fill(blocks.back(), 512, static_cast<unsigned>(i));
    CHECK(other.ask(opening(share(blocks.back()))).rfind("opened", 0) == 0);
  }
  const int then = std::stoi(other.ask("descriptors"));
  CHECK_TEXT(then <= there + 100 + 10, std::to_string(then));
  for (int i = 0; i < 100; ++i) {
    CHECK(other.ask("holds " + range(static_cast<size_t>(i), 512, static_cast<unsigned>(i))) ==
          "yes");
  }
  CHECK(stat("glake.pinned_bytes") == 152 * static_cast<int64_t>(kMiB));
  for (int i = 0; i < 100; ++i) CHECK(other.ask("closed " + std::to_string(i)) == "0");
  for (void* ptr : blocks) OK(glake_free(ptr));
  wait_until("glake.pinned_bytes", 0);
  CHECK(other.ask("leave") == "0");
  finish();
}

TEST(stale_blocks) {
  test::running() = "stale blocks";
  const std::string machine = machine_name();
  start(machine);
  Other other(machine);
  void* ptr = glake_malloc(5000, 0, nullptr);
  const std::string text = share(ptr);
  CHECK(glake_ipc_open(text.c_str(), 0, nullptr) == nullptr);  // a block of this process
  CHECK(glake_last_error(nullptr, 0) == GLAKE_INVALID_ARGUMENT);
  OK(glake_free(ptr));
  CHECK(other.ask(opening(text)) == "error " + std::to_string(GLAKE_INVALID_POINTER));
  void* again = glake_malloc(5000, 0, nullptr);
  CHECK(again == ptr);  // the same place, another block
  CHECK(other.ask(opening(text)) == "error " + std::to_string(GLAKE_INVALID_POINTER));
  const std::string fresh = share(again);
  CHECK(fresh != text && other.ask(opening(fresh)).rfind("opened", 0) == 0);
  char tiny[8];
  CHECK(glake_ipc_share(again, tiny, sizeof tiny) == fresh.size());  // as snprintf
  CHECK(glake_ipc_share(tiny, tiny, sizeof tiny) == 0);
  CHECK(glake_last_error(nullptr, 0) == GLAKE_INVALID_POINTER);
  CHECK(other.ask("closed 0") == "0" && other.ask("leave") == "0");
  OK(glake_free(again));
  finish();
}

TEST(many_threads_share) {
  test::running() = "many threads share";
  const std::string machine = machine_name();
  start(machine);
  Other others[2] = {Other(machine), Other(machine)};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&others, t] {
      Other& other = others[t];
      for (int i = 0; i < 40 / test::kSlowdown + 2; ++i) {
        size_t bytes = (static_cast<size_t>(i % 5) + 1) * 700 * test::kKiB;
        void* ptr = glake_malloc(bytes, 0, nullptr);
        unsigned seed = static_cast<unsigned>(i * 100 + t);
        fill(ptr, bytes, seed);
        const std::string n = number_of(other.ask(opening(share(ptr))));
        CHECK(other.ask("holds " + range(std::stoul(n), bytes, seed)) == "yes");
        OK(glake_free(ptr));
        CHECK(other.ask("closed " + n) == "0");
      }
    });
  }
  for (std::thread& t : threads) t.join();
  wait_until("glake.pinned_bytes", 0);
  for (Other& other : others) CHECK(other.ask("leave") == "0");
  finish();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--other") return serve(argv[2]);
  signal(SIGPIPE, SIG_IGN);
  return test::run_cases(argc, argv);
}
