#include <dlfcn.h>

#include "emptied.h"
#include "harness.h"

namespace testing {

std::string libglake_path;
std::vector<std::string> command;
static void* adapter = nullptr;

std::map<std::string, Test>& tests() {
  static std::map<std::string, Test> all;
  return all;
}
bool add(const char* name, void (*body)()) {
  tests()[name].body = body;
  return true;
}
bool with(const char* name, Options options) {
  tests()[name].options = std::move(options);
  return true;
}
void* adapter_symbol(const char* name) {
  void* found = dlsym(adapter, name);
  CHECK(found != nullptr);
  return found;
}

static std::atomic<int> contexts{0};
std::shared_ptr<c10::GatheredContext> gather() {
  return std::make_shared<Frames>(contexts.fetch_add(1));
}
int gathered() { return contexts.load(); }

static void load(const char* path) {
  adapter = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (adapter == nullptr) std::fprintf(stderr, "%s\n", dlerror());
  CHECK(adapter != nullptr);
}

std::string install() {
  auto* install = reinterpret_cast<int (*)(const char*, int, int, double, char*, size_t)>(
      adapter_symbol("glake_adapter_install"));
  char text[4096] = "";
  return install(libglake_path.c_str(), 1, 0, -1, text, sizeof text) == 0 ? "" : text;
}

static int run(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--list") == 0) {
    for (const auto& [name, test] : tests()) std::printf("%s\n", name.c_str());
    return 0;
  }
  if (argc == 2 && std::strcmp(argv[1], "--functions") == 0) {
    list_functions();
    return 0;
  }
  CHECK(argc >= 4);
  command = {argv[0], argv[1], argv[2]};
  libglake_path = argv[2];
  auto test = tests().find(argv[3]);
  if (test == tests().end() || test->second.body == nullptr) {
    std::fprintf(stderr, "no test %s\n", argv[3]);
    return 2;
  }
  for (const auto& [key, value] : test->second.options) {
    CHECK_EQ(simcuda_configure(key.c_str(), value.c_str()), 0);
  }
  load(argv[1]);
  if (test->first.rfind("install", 0) != 0) CHECK_EQ(install(), std::string());
  const char* emptied = std::getenv("ADAPTER_TEST_EMPTY");
  if (emptied != nullptr && !empty_a_function(emptied)) {
    std::fprintf(stderr, "no function %s\n", emptied);
    return 2;
  }
  try {
    test->second.body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s threw: %s\n", argv[3], error.what());
    return 1;
  }
  return 0;
}

}  // namespace testing

int main(int argc, char** argv) { return testing::run(argc, argv); }
