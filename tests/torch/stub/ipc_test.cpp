// Tensors sent between processes, as torch.multiprocessing sends them.
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

using namespace testing;

namespace {

struct Sent {
  std::string handle;
  ptrdiff_t offset;
};

// Pipes from and to the other process. A message is a line.
int from_other = -1, to_other = -1;

void say(const std::string& line) {
  std::string whole = line + "\n";
  CHECK_EQ(write(to_other, whole.data(), whole.size()), static_cast<ssize_t>(whole.size()));
}

std::string hear() {
  std::string line;
  for (char c = 0; read(from_other, &c, 1) == 1 && c != '\n';) line += c;
  return line;
}

// Runs `test` of this program in a process of its own.
pid_t start(const char* test) {
  int down[2], up[2];
  CHECK(pipe(down) == 0 && pipe(up) == 0);
  pid_t child = fork();
  if (child == 0) {
    setenv("ADAPTER_TEST_PIPES", (std::to_string(down[0]) + " " + std::to_string(up[1])).c_str(),
           1);
    close(down[1]);
    close(up[0]);
    execl(command[0].c_str(), command[0].c_str(), command[1].c_str(), command[2].c_str(), test,
          nullptr);
    _exit(126);
  }
  close(down[0]);
  close(up[1]);
  from_other = up[0];
  to_other = down[1];
  return child;
}

void connect() {
  const char* pipes = std::getenv("ADAPTER_TEST_PIPES");
  CHECK(pipes != nullptr);
  CHECK_EQ(std::sscanf(pipes, "%d %d", &from_other, &to_other), 2);
}

bool succeeded(pid_t child) {
  int status = 0;
  close(to_other);
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Stands for a storage that was sent. When it dies, its block waits in limbo for the receivers.
struct SentData {
  DataPtr original;
};
std::vector<DataPtr> limbo;
void collect() {  // a block that was sent twice waits twice
  while (!limbo.empty()) std::exchange(limbo, {}).clear();
}

Sent share(DataPtr* storage) {
  native::ShareableHandle shared = allocator()->shareIpcHandle(storage->get());
  void* data = storage->get();
  auto* context = new SentData{std::move(*storage)};
  *storage = DataPtr(
      data, context,
      [](void* sent) {
        limbo.push_back(std::move(static_cast<SentData*>(sent)->original));
        delete static_cast<SentData*>(sent);
      },
      c10::Device(c10::kCUDA, 0));
  return {shared.handle, shared.offset};
}

void send(const Sent& sent) {
  CHECK(!has(sent.handle, "\n"));
  say(sent.handle);
  say(std::to_string(sent.offset));
}

// A storage of the receiver, and its cache of storages by handle and offset, as in torch's Python.
struct Received {
  std::shared_ptr<void> base;
  char* data = nullptr;
};
using Cache = std::map<std::pair<std::string, ptrdiff_t>, std::weak_ptr<Received>>;

std::shared_ptr<Received> receive(Cache* cache) {
  std::string handle = hear();
  ptrdiff_t offset = std::atol(hear().c_str());
  std::weak_ptr<Received>& known = (*cache)[{handle, offset}];
  if (auto live = known.lock()) return live;
  std::shared_ptr<void> base = allocator()->getIpcDevPtr(handle);
  auto made = std::make_shared<Received>(Received{base, static_cast<char*>(base.get()) + offset});
  known = made;
  return made;
}

}  // namespace

// The other process of the next test. It opens the handle that it is given, checks the memory, and
// answers by writing into it.
TEST(ipc_receiver) {
  connect();
  std::string handle = hear();
  void* where = nullptr;
  {
    std::shared_ptr<void> ptr = allocator()->getIpcDevPtr(handle);
    std::shared_ptr<void> again = allocator()->getIpcDevPtr(handle);
    CHECK(ptr.get() != nullptr && ptr == again);
    CHECK(filled(ptr.get(), 0x77, 3 * kMiB));
    std::memset(ptr.get(), 0x78, 3 * kMiB);
    where = ptr.get();
  }
  CHECK_EQ(glake_ipc_close(where), static_cast<int>(GLAKE_INVALID_POINTER));  // it is closed
  CHECK(has(thrown<c10::Error>([] { allocator()->getIpcDevPtr("\1abc"); }), "GLAKE_ALLOCATOR"));
}

TEST(ipc) {
  DataPtr ptr = allocator()->allocate(3 * kMiB);
  std::memset(ptr.get(), 0x77, 3 * kMiB);
  native::ShareableHandle handle = allocator()->shareIpcHandle(ptr.get());
  CHECK_EQ(handle.offset, ptrdiff_t{0});
  pid_t child = start("ipc_receiver");
  say(handle.handle);
  CHECK(succeeded(child));
  CHECK(filled(ptr.get(), 0x78, 3 * kMiB));
  int value = 0;
  CHECK(!thrown<c10::Error>([&] { allocator()->shareIpcHandle(&value); }).empty());
}

TEST(ipc_storages_receiver) {
  connect();
  Cache cache;
  {
    auto first = receive(&cache), again = receive(&cache), second = receive(&cache);
    CHECK(first == again);  // two tensors of one storage: opened once
    CHECK(first->data != second->data);
    CHECK(filled(first->data, 0x31, 3 * kMiB) && filled(second->data, 0x32, 5000));
    std::weak_ptr<Received> key = first;
    std::shared_ptr<void> base = first->base;
    first.reset();
    again.reset();
    CHECK(key.expired());
    say("opened");
    CHECK_EQ(hear(), std::string("freed"));  // the sender's storages are gone, this one is not
    CHECK(filled(base.get(), 0x31, 3 * kMiB) && filled(second->data, 0x32, 5000));
  }
  say("closed");
  auto third = receive(&cache);  // a new one, even at the same address
  CHECK(filled(third->data, 0x33, 3 * kMiB));
  std::memset(third->data, 0x34, 3 * kMiB);
  third.reset();
  say("answered");
}

TEST(ipc_storages) {
  DataPtr first = allocator()->allocate(3 * kMiB), second = allocator()->allocate(5000);
  std::memset(first.get(), 0x31, 3 * kMiB);
  std::memset(second.get(), 0x32, 5000);
  pid_t child = start("ipc_storages_receiver");
  Sent sent = share(&first), again = share(&first), other = share(&second);
  CHECK(sent.handle == again.handle && sent.offset == again.offset);
  CHECK(sent.handle != other.handle);
  for (const Sent& each : {sent, again, other}) send(each);
  CHECK_EQ(hear(), std::string("opened"));
  first.clear();
  second.clear();
  CHECK_EQ(live_bytes(), static_cast<int64_t>(3 * kMiB + 5000));
  allocator()->emptyCache();
  DataPtr third = allocator()->allocate(3 * kMiB), small = allocator()->allocate(5000);
  std::memset(third.get(), 0x33, 3 * kMiB);
  std::memset(small.get(), 0x33, 5000);
  say("freed");
  CHECK_EQ(hear(), std::string("closed"));
  collect();
  Sent next = share(&third);
  allocator()->recordStream(third, new_stream());  // not a block of glake's any more, so no effect
  CHECK(next.handle != sent.handle);               // two blocks never share one
  send(next);
  CHECK_EQ(hear(), std::string("answered"));
  CHECK(filled(third.get(), 0x34, 3 * kMiB));
  CHECK(succeeded(child));
  third.clear();
  small.clear();
  collect();
  CHECK_EQ(live_bytes(), 0);
  allocator()->emptyCache();
  CHECK_EQ(reserved(), 0);
  CHECK_EQ(violations(), std::string("[]"));
  CHECK_EQ(glake_check(0), 0);
}
