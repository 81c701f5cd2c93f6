// Another process may send anything over a relay service's socket: packets of any kind and length,
// numbers of any size, descriptors of anything. None of it moves a byte outside of what the client
// owns, ends the service, or leaves something open.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <thread>

#include "base/transfer_tuning.h"
#include "harness.h"
#include "transfer/remote/relay_door.h"

namespace {

using glake::TransferTuning;
using glake::transfer::Answer;
using glake::transfer::connect_to;
using glake::transfer::Descriptor;
using glake::transfer::Got;
using glake::transfer::kWireVersion;
using glake::transfer::Order;
using glake::transfer::RelayDoor;
using test::kKiB;
using test::kMiB;

constexpr uint64_t kHuge = ~uint64_t{0};
constexpr int kGpus = 2;

size_t open_files() {
  DIR* folder = opendir("/proc/self/fd");
  CHECK(folder != nullptr);
  size_t count = 0;
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

// A relay service in this process. At its end nothing of it may be left.
class Service {
 public:
  explicit Service(const char* what, const test::Options& more = {}) {
    test::running() = what;
    test::Options options{
        {"memory", "256MiB"}, {"devices", std::to_string(kGpus)}, {"sticky_errors", "0"}};
    options.insert(options.end(), more.begin(), more.end());
    test::fresh_simulator(options);
    CHECK(mkdtemp(folder_) != nullptr);
    for (int gpu = 0; gpu < kGpus; ++gpu)
      test::CurrentContext opened(gpu);  // the simulator's files
    files_ = open_files();
    door_ = std::make_unique<RelayDoor>("sim", path());
  }
  ~Service() {
    end();
    CHECK_TEXT(open_files() == files_, std::to_string(open_files()) + " files are open");
    for (int gpu = 0; gpu < kGpus && !lost_; ++gpu) test::check_nothing_left(gpu);
    CHECK(unlink(path().c_str()) == 0 && rmdir(folder_) == 0);
  }
  std::string path() const { return std::string(folder_) + "/door"; }
  void end() { door_.reset(); }
  // Waits until the service ends by itself, as a GPU is lost with all in its context.
  // Returns why, in words.
  std::string wait_for_loss() {
    lost_ = true;
    return door_->wait();
  }

 private:
  char folder_[32] = "/tmp/glake-relay-XXXXXX";
  size_t files_ = 0;
  bool lost_ = false;
  std::unique_ptr<RelayDoor> door_;
};

class Client {
 public:
  explicit Client(const Service& service) : socket_(connect_to(service.path())) {}

  void send(void* packet, size_t bytes, int descriptor = -1) {
    glake::transfer::send_packet(socket_.get(), packet, bytes, descriptor);
  }
  // False: the service has hung up.
  bool hear(Answer* answer) {
    Descriptor with;
    const Got got =
        glake::transfer::take_packet(socket_.get(), answer, sizeof *answer, &with, true);
    CHECK(got != Got::kNone);
    return got == Got::kPacket;
  }
  void order(Order order) {
    order.order_id = ++order_id_;
    send(&order, sizeof order);
  }
  bool ask(Order order, Answer* answer, int descriptor = -1) {
    order.order_id = ++order_id_;
    send(&order, sizeof order, descriptor);
    return hear(answer);
  }
  bool greet() {
    Order hello;
    hello.at = kWireVersion;
    Answer answer;
    return ask(hello, &answer) && answer.failed == 0;
  }
  uint32_t ticket() const { return order_id_; }
  // Sends an order that must be refused with a text that has `words`. The service goes on serving
  // this client.
  void refused(const Order& order, const char* words, int descriptor = -1) {
    Answer answer;
    CHECK_TEXT(ask(order, &answer, descriptor), words);
    CHECK_TEXT(answer.failed != 0 && answer.order_id == order_id_, words);
    CHECK_TEXT(std::string(answer.why).find(words) != std::string::npos, answer.why);
  }
  void granted(const Order& order, int descriptor = -1) {
    Answer answer;
    CHECK(ask(order, &answer, descriptor));
    CHECK_TEXT(answer.failed == 0 && answer.order_id == order_id_, answer.why);
  }
  // Checks that the service hangs up, with at most one answer before that.
  void sent_away() {
    Answer answer;
    if (hear(&answer)) CHECK(answer.failed != 0 && !hear(&answer));
  }

 private:
  Descriptor socket_;
  uint32_t order_id_ = 0;
};

Order order_of(Order::Kind kind, int gpu = 0, uint64_t memory = 0, uint64_t at = 0, uint64_t to = 0,
               uint64_t bytes = 0) {
  Order order;
  order.kind = kind;
  order.gpu = gpu;
  order.memory = memory;
  order.at = at;
  order.to = to;
  order.bytes = bytes;
  return order;
}

Order across(int gpu, uint64_t at, int peer, uint64_t to, uint64_t bytes) {
  Order order = order_of(Order::kAcross, gpu, 0, at, to, bytes);
  order.peer = peer;
  return order;
}

// A file of host memory as clients make them.
Descriptor file_of(size_t bytes, int seals = F_SEAL_SHRINK | F_SEAL_GROW) {
  Descriptor file(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  CHECK(file && ftruncate(file.get(), static_cast<off_t>(bytes)) == 0);
  CHECK(seals == 0 || fcntl(file.get(), F_ADD_SEALS, seals) == 0);
  return file;
}

// An honest client makes all kinds of orders, and they succeed.
void serves(const Service& service) {
  Client client(service);
  CHECK(client.greet());
  const Descriptor file = file_of(kMiB);
  void* memory = mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  CHECK(memory != MAP_FAILED);
  std::memset(memory, 7, kMiB / 2);
  client.granted(order_of(Order::kOpen, 0));
  client.granted(order_of(Order::kOpen, 1));
  client.granted(order_of(Order::kShare, 0, 5, 0, 0, kMiB), file.get());
  client.granted(order_of(Order::kIn, 0, 5, 0, 4096, kMiB / 2));
  client.granted(across(0, 4096, 1, 512, kMiB / 2));
  client.granted(order_of(Order::kOut, 1, 5, kMiB / 2, 512, kMiB / 2));
  const auto* bytes = static_cast<const char*>(memory);
  for (size_t i = 0; i < kMiB; ++i) CHECK(bytes[i] == 7);
  client.granted(order_of(Order::kForget, 0, 5));
  munmap(memory, kMiB);
}

}  // namespace

TEST(serves_a_client) {
  Service service("serves a client");
  serves(service);
}

TEST(greetings) {
  Service service("greetings");
  Order wrong = order_of(Order::kHello);
  wrong.at = kWireVersion + 1;
  for (Order first : {wrong, order_of(Order::kOpen), order_of(Order::kOut, 0, 0, 0, 0, 1)}) {
    Client client(service);
    client.send(&first, sizeof first);
    Answer answer;
    CHECK(client.hear(&answer));
    CHECK_TEXT(std::string(answer.why).find("another version") != std::string::npos, answer.why);
    client.sent_away();
  }
  Client silent(service);  // holds up nobody
  serves(service);
}

TEST(packets_of_other_lengths) {
  Service service("packets of other lengths");
  std::vector<char> packet(64 * kKiB, 0);
  for (size_t bytes : {size_t{1}, sizeof(Order) - 1, sizeof(Order) + 1, packet.size()}) {
    for (bool greets : {false, true}) {
      Client client(service);
      if (greets) CHECK(client.greet());
      client.send(packet.data(), bytes);
      client.sent_away();
    }
  }
  serves(service);
}

TEST(kinds_that_there_are_not) {
  Service service("kinds that there are not");
  for (uint32_t kind : {7U, 1000U, ~0U}) {
    Client client(service);
    CHECK(client.greet());
    client.granted(order_of(Order::kOpen, 0));
    Order order;
    order.kind = kind;
    client.send(&order, sizeof order);
    client.sent_away();
  }
  serves(service);
}

TEST(numbers_out_of_range) {
  Service service("numbers out of range");
  Client client(service);
  CHECK(client.greet());
  for (int gpu : {-1, kGpus, 1 << 30}) {
    client.refused(order_of(Order::kOpen, gpu), "sees no");
    client.refused(order_of(Order::kIn, gpu, 1, 0, 0, 1), "no buffer");
  }
  client.refused(order_of(Order::kIn, 0, 1, 0, 0, 1), "no buffer");
  client.granted(order_of(Order::kOpen, 0));
  client.granted(order_of(Order::kOpen, 0));  // again: the same buffer
  const Descriptor file = file_of(kMiB);
  client.granted(order_of(Order::kShare, 0, 1, 0, 0, kMiB), file.get());
  client.refused(order_of(Order::kShare, 0, 1, 0, 0, kMiB), "is there", file.get());
  for (Order::Kind kind : {Order::kIn, Order::kOut}) {
    client.refused(order_of(kind, 0, 2, 0, 0, 512), "not there");
    client.refused(order_of(kind, 1, 1, 0, 0, 512), "no buffer");
    for (uint64_t at : {kMiB - 511, kMiB, kHuge, kHuge - 511}) {
      client.refused(order_of(kind, 0, 1, at, 0, 512), "end of host memory");
    }
    for (uint64_t to :
         {TransferTuning::kClientBuffer - 511, TransferTuning::kClientBuffer, kHuge, kHuge - 511}) {
      client.refused(order_of(kind, 0, 1, 0, to, 512), "buffer's end");
    }
    for (uint64_t bytes : {uint64_t{0}, kMiB + 1, kHuge, kHuge - 511}) {
      client.refused(order_of(kind, 0, 1, 0, 0, bytes), "end");
    }
  }
  client.refused(across(0, 0, 1, 0, 512), "no buffer");
  client.granted(order_of(Order::kOpen, 1));
  for (uint64_t end : {TransferTuning::kClientBuffer - 511, kHuge - 511, kHuge}) {
    client.refused(across(0, end, 1, 0, 512), "buffer's end");
    client.refused(across(0, 0, 1, end, 512), "buffer's end");
  }
  client.granted(order_of(Order::kForget, 0, 77));  // never there: nothing to forget
  serves(service);
}

// The service takes no memory that could shrink under a copy, and no descriptor of anything else.
// It keeps no descriptor open.
TEST(descriptors_of_other_things) {
  Service service("descriptors of other things");
  Client client(service);
  CHECK(client.greet());
  const Order share = order_of(Order::kShare, 0, 1, 0, 0, kMiB);
  const size_t files = open_files();
  {
    int pipe[2];
    CHECK(pipe2(pipe, O_CLOEXEC) == 0);
    const Descriptor in(pipe[0]), out(pipe[1]), none(open("/dev/null", O_RDWR | O_CLOEXEC));
    const Descriptor unsealed = file_of(kMiB, 0), grows = file_of(kMiB, F_SEAL_SHRINK);
    const Descriptor shorter = file_of(kMiB / 2), longer = file_of(2 * kMiB);
    client.refused(share, "no such file");
    for (const Descriptor* other : {&in, &none}) {
      client.refused(share, "host memory for two processes", other->get());
    }
    for (const Descriptor* other : {&unsealed, &grows, &shorter, &longer}) {
      client.refused(share, "not sealed, or not of", other->get());
    }
    // Descriptors beside an order that takes none.
    client.granted(order_of(Order::kOpen, 0), longer.get());
    client.refused(order_of(Order::kShare, 0, 1, 0, 0, 0), "not sealed, or not of",
                   file_of(0).get());
  }
  client.refused(share, "no such file");
  // At most one file stays open: the service may keep the descriptor of the buffer that it
  // exported.
  CHECK_TEXT(open_files() <= files + 1, std::to_string(open_files()));
}

TEST(too_much_of_something) {
  Service service("too much of something");
  Client client(service);
  CHECK(client.greet());
  client.granted(order_of(Order::kOpen, 0));
  const Descriptor page = file_of(4 * kKiB);
  uint64_t shared = 0;
  for (Answer answer{}; answer.failed == 0; ++shared) {
    CHECK(shared < 2000);
    CHECK(client.ask(order_of(Order::kShare, 0, shared, 0, 0, 4 * kKiB), &answer, page.get()));
  }
  client.refused(order_of(Order::kShare, 0, shared, 0, 0, 4 * kKiB), "too many", page.get());
  std::vector<std::unique_ptr<Client>> others;  // these take all of a GPU's room for buffers
  for (Answer answer{}; answer.failed == 0;) {
    CHECK(others.size() < 64);
    others.push_back(std::make_unique<Client>(service));
    CHECK(others.back()->greet());
    CHECK(others.back()->ask(order_of(Order::kOpen, 0), &answer));
    CHECK_TEXT(
        answer.failed == 0 || std::string(answer.why).find("other clients'") != std::string::npos,
        answer.why);
  }
  client.granted(order_of(Order::kIn, 0, 0, 0, 0, 4 * kKiB));  // a client keeps the buffer it has
}

// If there is no descriptor left for a new client, the service waits for one without spinning, and
// then goes on.
TEST(no_files_left) {
  Service service("no files left");
  Client early(service);
  CHECK(early.greet());
  rlimit before{};
  CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
  std::vector<Descriptor> waiting;
  for (int i = 0; i < 3; ++i)
    waiting.emplace_back(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, service.path().c_str());
  const rlimit none{3, before.rlim_max};  // these are open; poll() takes no more than the limit
  CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
  timespec begun{}, ended{};
  CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begun) == 0);
  for (const Descriptor& each : waiting) {
    CHECK(connect(each.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ended) == 0);
  CHECK(ended.tv_sec * 1000 + ended.tv_nsec / 1000000 - begun.tv_sec * 1000 -
            begun.tv_nsec / 1000000 <
        250);
  CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
  serves(service);
}

// A client learns that the service ends only when nothing touches the client's memory any more,
// because the client may then free it.
TEST(copies_end_before_the_goodbye) {
  Service service("copies end before the goodbye");
  Client client(service);
  constexpr size_t kBytes = 8 * kMiB;
  const Descriptor file = file_of(kBytes);
  auto* memory =
      static_cast<char*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0));
  CHECK(memory != MAP_FAILED);
  CHECK(client.greet());
  client.granted(order_of(Order::kOpen));
  client.granted(order_of(Order::kShare, 0, 1, 0, 0, kBytes), file.get());
  // The buffer has other bytes than the client's memory, so that late writes show.
  std::memset(memory, 9, kBytes);
  for (int i = 0; i < 50; ++i) client.order(order_of(Order::kOut, 0, 1, 0, 0, kBytes));
  std::thread ends([&] { service.end(); });
  Answer answer;
  while (client.hear(&answer) && answer.order_id != 0) {
  }
  CHECK(answer.order_id == 0 && std::string(answer.why) == "it has ended");
  std::memset(memory, 9, kBytes);
  ends.join();
  for (size_t i = 0; i < kBytes; ++i) CHECK(memory[i] == 9);
  munmap(memory, kBytes);
}

// The GPU of an order that comes during another GPU's copy has nothing to do. So the order begins
// at once. On this clock, the time that threads take to wake up is short.
TEST(orders_are_heard_during_copies) {
  const std::string machine = "relay-test-" + std::to_string(getpid());
  Service service("orders are heard during copies", {{"machine", machine}, {"pace", "40000"}});
  Client client(service);
  constexpr size_t kLong = 4 * kMiB, kShort = 4 * kKiB;
  constexpr uint64_t kSoon = 30'000;  // ns; the long copy takes much longer
  const Descriptor file = file_of(kLong);
  CHECK(client.greet());
  for (int gpu = 0; gpu < kGpus; ++gpu) client.granted(order_of(Order::kOpen, gpu));
  client.granted(order_of(Order::kShare, 0, 1, 0, 0, kLong), file.get());
  client.order(order_of(Order::kIn, 0, 1, 0, 0, kLong));
  const uint32_t first = client.ticket();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // its copy is under way
  const uint64_t asked = simcuda_now_ns();
  Answer answer;
  CHECK(client.ask(order_of(Order::kIn, 1, 1, 0, 0, kShort), &answer));
  CHECK(answer.order_id == client.ticket() && answer.failed == 0);
  const uint64_t took = simcuda_now_ns() - asked;
  CHECK_TEXT(took < kSoon, std::to_string(took));
  CHECK(client.hear(&answer) && answer.order_id == first && answer.failed == 0);
}

// A GPU's context that an error has ended is lost for good. The service says which, and serves
// nobody any more, so that another process can.
size_t free_bytes() {
  const test::CurrentContext context(0);
  size_t free = 0, total = 0;
  CU(cuMemGetInfo(&free, &total));
  return free;
}

// A child that the client forked has its connection, and lives on.
TEST(a_killed_client_leaves_nothing_whatever_children_it_has) {
  Service service("killed");
  const size_t before = free_bytes();
  int told[2];
  CHECK(pipe(told) == 0);
  const pid_t killed = fork();
  CHECK(killed >= 0);
  if (killed == 0) {
    Client client(service);
    CHECK(client.greet());
    client.granted(order_of(Order::kOpen));
    const pid_t child = fork();
    if (child != 0) CHECK(write(told[1], &child, sizeof child) == sizeof child);
    for (;;) pause();
  }
  pid_t child = 0;
  CHECK(read(told[0], &child, sizeof child) == sizeof child);
  CHECK(free_bytes() < before);
  CHECK(kill(killed, SIGKILL) == 0 && waitpid(killed, nullptr, 0) == killed);
  while (free_bytes() < before) std::this_thread::yield();
  CHECK(kill(child, SIGKILL) == 0);
  for (const int end : told) close(end);
}

TEST(a_gpu_is_lost) {
  Service service("a gpu is lost", {{"sticky_errors", "1"}});
  Client first(service), second(service);
  for (Client* each : {&first, &second}) CHECK(each->greet());
  const Descriptor file = file_of(kMiB);
  first.granted(order_of(Order::kOpen, 1));
  first.granted(order_of(Order::kShare, 0, 1, 0, 0, kMiB), file.get());
  CHECK(simcuda_fail_copy("host", "g1", 1, CUDA_ERROR_LAUNCH_FAILED, 1) == 0);
  first.refused(order_of(Order::kIn, 1, 1, 0, 0, kMiB), "719");
  CHECK(service.wait_for_loss().find("start it again") != std::string::npos);
  for (Client* each : {&first, &second}) {
    Answer goodbye;
    CHECK(each->hear(&goodbye) && goodbye.order_id == 0);
  }
}

// Orders with any numbers, many under way at once, and clients that end in the middle of them.
TEST(random_orders) {
  Service service("random orders");
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    test::running() = "random orders, seed " + std::to_string(seed);
    test::Dice dice(seed);
    Client client(service);
    CHECK(client.greet());
    const Descriptor file = file_of(kMiB);
    auto number = [&](uint64_t end) -> uint64_t {
      const uint64_t wild[] = {0, end - 1, end, end + 1, kHuge, kHuge - end, uint64_t{1} << 63};
      return dice.chance(70) ? dice(0, end) : wild[dice(0, 6)];
    };
    uint32_t asked = 0, answered = 0;
    bool there = true;
    for (int i = 0; i < 60 && there; ++i) {
      Order order;
      order.kind = static_cast<uint32_t>(dice.chance(98) ? dice(1, 6) : dice(0, 9));
      order.order_id = ++asked;
      order.gpu = static_cast<int32_t>(dice.chance(90) ? dice(0, kGpus - 1) : dice(0, 99)) - 1 +
                  static_cast<int32_t>(dice.chance(95));
      order.peer = static_cast<int32_t>(dice(0, kGpus));
      order.memory = dice(0, 3);
      order.at = number(kMiB);
      order.to = number(TransferTuning::kClientBuffer);
      order.bytes = order.kind == Order::kShare ? kMiB : number(kMiB / 4);
      client.send(&order, sizeof order, dice.chance(30) ? file.get() : -1);
      for (Answer answer; there && asked - answered > dice(0, 20); ++answered) {
        there = client.hear(&answer);
        // Each order has one answer, and answers may come in any sequence. An answer with the id 0
        // says why the service hangs up.
        CHECK(!there || answer.order_id <= asked);
        if (there && answer.order_id == 0) CHECK(answer.failed != 0);
      }
    }
  }
  serves(service);
}

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
