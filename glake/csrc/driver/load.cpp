// Opens the driver by dlopen. Nothing links libcuda, so glake loads on machines without it.
#include "driver/load.h"

#include <dlfcn.h>

#include <vector>

#include "base/types.h"

namespace glake::driver {
namespace {

void* opened = nullptr;  // the library in use

// The simulator is beside this library.
std::string simulator_path() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&library_path), &info) == 0 || info.dli_fname == nullptr) {
    throw Error(GLAKE_DRIVER_ABSENT, "cannot tell where libglake.so was loaded from");
  }
  std::string self = info.dli_fname;
  size_t slash = self.find_last_of('/');
  return (slash == std::string::npos ? std::string(".") : self.substr(0, slash)) + "/libsimcuda.so";
}

bool is_simulator(const std::string& choice) {
  return choice == "sim" || choice.rfind("sim:", 0) == 0;
}

void* open_library(const std::string& path, const std::string& choice) {
  // If a library of this name is already in the process, dlopen returns it.
  void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library != nullptr) return library;
  const char* reason = dlerror();
  std::string help =
      choice == "cuda"
          ? "install an NVIDIA driver, or set GLAKE_DRIVER=sim to use the simulated one"
          : "GLAKE_DRIVER takes cuda, sim[:preset] or the path of a driver library";
  throw Error(GLAKE_DRIVER_ABSENT, "cannot open the driver (GLAKE_DRIVER=" + choice +
                                       "): " + (reason != nullptr ? reason : path) + "; " + help);
}

// A preset is an option of the simulator alone. Any other driver library may export the same
// function.
void configure_preset(void* library, const std::string& choice) {
  size_t colon = choice.find(':');
  if (!is_simulator(choice) || colon == std::string::npos) return;
  using Configure = int (*)(const char*, const char*);
  auto configure = reinterpret_cast<Configure>(dlsym(library, "simcuda_configure"));
  std::string preset = choice.substr(colon + 1);
  if (configure == nullptr || configure("preset", preset.c_str()) != 0) {
    throw Error(GLAKE_INVALID_OPTION,
                "the simulator knows no preset \"" + preset + "\"; `glake topo --list` lists them");
  }
}

using GetProc = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);

void* resolve(void* library, GetProc get, const char* name, const char* symbol, int version) {
  void* function = nullptr;
  CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
  if (get != nullptr &&
      get(name, &function, version, CU_GET_PROC_ADDRESS_DEFAULT, &found) == CUDA_SUCCESS &&
      function != nullptr) {
    return function;
  }
  return dlsym(library, symbol);
}

template <class F>
void find(void* library, const char* symbol, F* function) {
  *function = reinterpret_cast<F>(dlsym(library, symbol));
}

void fill_extras(Extras* extras, void* library) {
  find(library, "simcuda_now_ns", &extras->now_ns);
  find(library, "simcuda_work", &extras->thread);
  find(library, "simcuda_expect", &extras->expect);
  find(library, "simcuda_aside", &extras->aside);
  find(library, "simcuda_wait_event", &extras->wait_event);
  find(library, "simcuda_wait_any", &extras->wait_any);
  find(library, "simcuda_polled", &extras->polled);
  find(library, "simcuda_sleep", &extras->sleep);
  find(library, "simcuda_host_node", &extras->host_node);
  find(library, "simcuda_place_host", &extras->place_host);
}

}  // namespace

std::string library_path(const std::string& choice) {
  if (choice == "cuda") return "libcuda.so.1";
  if (is_simulator(choice)) return simulator_path();
  if (choice.find('/') != std::string::npos) return choice;
  throw Error(GLAKE_INVALID_OPTION,
              "GLAKE_DRIVER=" + choice + " must be cuda, sim[:preset] or a path (with a \"/\")");
}

void fill(Table& table, const std::string& path, const std::string& choice) {
  void* library = open_library(path, choice);
  opened = library;
  configure_preset(library, choice);
  auto get = reinterpret_cast<GetProc>(dlsym(library, "cuGetProcAddress_v2"));
  std::string missing;
#define GLAKE_RESOLVE(name, symbol, version, required)                                       \
  table.name =                                                                               \
      reinterpret_cast<decltype(table.name)>(resolve(library, get, #name, symbol, version)); \
  if (table.name == nullptr && (required))                                                   \
    missing += std::string(missing.empty() ? "" : ", ") + #name;
  GLAKE_DRIVER_FUNCTIONS(GLAKE_RESOLVE)
#undef GLAKE_RESOLVE
  table.copy_batch = reinterpret_cast<CopyBatch>(
      resolve(library, get, "cuMemcpyBatchAsync", "cuMemcpyBatchAsync", kCopyBatchVersion));
  fill_extras(&table.extras, library);
  if (!missing.empty()) {
    throw Error(GLAKE_DRIVER_ABSENT, path + " lacks " + missing +
                                         "; glake needs a driver with virtual memory management "
                                         "(CUDA 11.0 or newer)");
  }
}

std::string own_words() {
  using LastMessage = size_t (*)(char*, size_t);
  auto last = opened == nullptr
                  ? nullptr
                  : reinterpret_cast<LastMessage>(dlsym(opened, "simcuda_last_message"));
  char text[512] = "";
  if (last != nullptr) last(text, sizeof text);
  return text;
}

}  // namespace glake::driver
