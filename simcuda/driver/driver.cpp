// Starts and ends the driver, and sets options and prices before.
#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>

#include <cstdlib>

#include "costs.h"

namespace simcuda {
namespace {

constexpr const char kDefaultPreset[] = "hgx_h100_h200";  // as glake/config.py says

std::mutex start_mutex;

void mark_child() { forked.store(true); }

std::string beside_library(const char* name) {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&mark_child), &info) == 0 || info.dli_fname == nullptr) {
    return name;
  }
  const std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? name : path.substr(0, slash + 1) + name;
}

}  // namespace

std::atomic<Driver*> running{nullptr};
std::atomic<bool> forked{false};
std::atomic<bool> obey_visible_devices{false};

CUresult not_initialized() {
  if (forked) {
    return fail(CUDA_ERROR_NOT_INITIALIZED,
                "this process is a forked child: CUDA does not survive fork");
  }
  return fail(CUDA_ERROR_NOT_INITIALIZED, "cuInit has not been called; use a device first");
}

Given& given_options() {
  static Given* given = new Given;
  return *given;
}

CUresult initialize() {
  std::lock_guard<std::mutex> lock(start_mutex);
  if (running != nullptr) return CUDA_SUCCESS;
  std::unique_ptr<Driver> driver;
  const CUresult result = Driver::start(given_options(), &driver);
  if (result != CUDA_SUCCESS) return result;
  static const int registered = pthread_atfork(nullptr, nullptr, mark_child);
  if (registered != 0) return fail(CUDA_ERROR_OPERATING_SYSTEM, "pthread_atfork");
  running = driver.release();
  return CUDA_SUCCESS;
}

int price(const std::string& symbol, CallCost* found) {
  const int index = find_symbol(symbol);
  if (index < 0) return fail(CUDA_ERROR_NOT_FOUND, "simcuda has no call " + symbol);
  std::lock_guard<std::mutex> lock(start_mutex);
  if (running.load() == nullptr) {  // otherwise cuInit has applied the costs
    Options options;
    std::string why;
    if (!load_options(&options, given_options(), &why)) {
      return fail(CUDA_ERROR_INVALID_VALUE, why);
    }
    const CUresult result = apply_costs(options, beside_library("costs.json"));
    if (result != CUDA_SUCCESS) return result;
  }
  *found = books().price(index);
  return CUDA_SUCCESS;
}

int table_price(const std::string& table, const std::string& symbol, CallCost* found) {
  const int index = find_symbol(symbol);
  if (index < 0) return fail(CUDA_ERROR_NOT_FOUND, "simcuda has no call " + symbol);
  std::lock_guard<std::mutex> lock(start_mutex);
  Options options;
  std::string why;
  if (!load_options(&options, given_options(), &why)) return fail(CUDA_ERROR_INVALID_VALUE, why);
  options.costs = table;
  std::vector<CallCost> costs;
  const CUresult result = read_costs(options, beside_library("costs.json"), &costs);
  if (result != CUDA_SUCCESS) return result;
  *found = published_cost(index);
  for (const CallCost& cost : costs) {
    if (cost.symbol == index) *found = cost;
  }
  return CUDA_SUCCESS;
}

int configure(const std::string& key, const std::string& value) {
  std::lock_guard<std::mutex> lock(start_mutex);
  std::string why;
  if (running != nullptr && is_option(key) && !is_live_option(key)) {
    return fail(
        CUDA_ERROR_INVALID_VALUE,
        "option " + key + " must be set before the first use of a device, or after a reset");
  }
  Options checked;
  if (!set_option(&checked, key, value, &why)) return fail(CUDA_ERROR_INVALID_VALUE, why);
  given_options()[key] = value;
  return CUDA_SUCCESS;
}

void reset() {
  if (forked) return;  // the driver belongs to the parent
  std::lock_guard<std::mutex> lock(start_mutex);
  delete running.exchange(nullptr);
  given_options().clear();
  reset_live_options();
  books().reset();
}

static CUresult load_topology(const std::string& path, const std::string& preset, Topology* made) {
  try {
    *made = Topology::load(path, preset);
  } catch (const glake::topology::NoSuchFile& error) {
    return fail(CUDA_ERROR_FILE_NOT_FOUND,
                std::string(error.what()) + " (option platforms, GLAKE_SIM_PLATFORMS)");
  } catch (const glake::topology::TopologyError& error) {
    return fail(CUDA_ERROR_INVALID_VALUE, error.what());
  }
  return CUDA_SUCCESS;
}

static void refuse_peers(glake::PciePeersKind allowed, Topology* topology) {
  using Kind = glake::PciePeersKind;
  if (allowed == Kind::kSocket) return;
  for (int b = 1; b < topology->gpus(); ++b) {
    for (int a = 0; a < b; ++a) {
      if (topology->linked(a, b)) continue;
      if (allowed == Kind::kNone || !topology->same_switch(a, b)) topology->refuse_peers(a, b);
    }
  }
}

// Computes the options in use, with every default filled in, and loads the platform.
static CUresult settle(const Given& given, Options* options, Topology* topology) {
  std::string why;
  if (!load_options(options, given, &why)) return fail(CUDA_ERROR_INVALID_VALUE, why);
  if (options->preset.empty()) options->preset = kDefaultPreset;
  if (options->memory == 0) options->memory = uint64_t{options->phantom ? 80u : 1u} << 30;
  options->memory = options->memory / kGranule * kGranule;
  options->context_memory = options->context_memory / kGranule * kGranule;
  if (options->platforms.empty()) options->platforms = beside_library("platforms.json");
  const CUresult result = load_topology(options->platforms, options->preset, topology);
  if (result != CUDA_SUCCESS) return result;
  refuse_peers(options->pcie_peers, topology);
  if (options->devices == 0) options->devices = topology->gpus();
  if (options->devices <= topology->gpus()) return CUDA_SUCCESS;
  return fail(CUDA_ERROR_INVALID_VALUE,
              "preset " + options->preset + " has " + std::to_string(topology->gpus()) +
                  " devices, option devices asks for " + std::to_string(options->devices));
}

CUresult describe(Options* options, Topology* topology) {
  std::lock_guard<std::mutex> lock(start_mutex);
  return settle(given_options(), options, topology);
}

static CUresult choose_gpus(const Options& options, VisibleGpus* gpus) {
  const bool obey = obey_visible_devices || options.visible_devices;
  const char* list = obey ? std::getenv("CUDA_VISIBLE_DEVICES") : nullptr;
  if (list == nullptr) {
    gpus->all(options.devices);
  } else {
    gpus->choose(list, options.machine, options.devices);
  }
  if (gpus->count() != 0) return CUDA_SUCCESS;
  return fail(CUDA_ERROR_NO_DEVICE, std::string("CUDA_VISIBLE_DEVICES=") + list +
                                        " leaves none of the machine's " +
                                        std::to_string(options.devices) + " GPUs");
}

CUresult Driver::start(const Given& given, std::unique_ptr<Driver>* driver) {
  std::unique_ptr<Driver> made(new Driver);
  Options& options = made->options;
  CUresult result = settle(given, &options, &made->topology);
  const std::string costs = beside_library("costs.json");
  if (result == CUDA_SUCCESS) result = apply_costs(options, costs);
  if (result == CUDA_SUCCESS) result = read_kernel_costs(options, costs, &made->kernel_costs);
  if (result != CUDA_SUCCESS) return result;
  result = choose_gpus(options, &made->gpus);
  if (result != CUDA_SUCCESS) return result;
  made->devices = made->gpus.count();
  result = Machine::open(options, options.devices, &made->machine);
  if (result == CUDA_SUCCESS) {
    std::vector<uint32_t> reach;
    for (int owner = 0; owner < made->gpus.machine(); ++owner) {
      reach.push_back(owner < made->devices ? 1u << owner : 0);
      for (int other = 0; other < made->devices; ++other) {
        if (made->topology.peers(made->gpus.gpu(other), made->gpus.gpu(owner)))
          reach.back() |= 1u << other;
      }
    }
    result = made->memory.start(made->machine.get(), &made->gpus, options.phantom, std::move(reach),
                                options.max_maps);
  }
  if (result != CUDA_SUCCESS) return result;
  made->contexts.start(made->devices, made->machine.get(), &made->gpus, options.context_memory);
  made->pools.start(made->devices);
  std::unique_ptr<SharedLinks> links;
  if (options.pace != 0) {
    result = made->machine->share_links(options, made->topology, &links);
    if (result != CUDA_SUCCESS) return result;
  }
  made->scheduler =
      std::make_unique<Scheduler>(options, &made->mutex, &made->topology, &made->memory,
                                  &made->host, &made->streams, std::move(links));
  made->calls.start(made->scheduler.get(), &made->contexts, options.driver_lock,
                    options.call_lock == glake::CallLockKind::kContext);
  *driver = std::move(made);
  return CUDA_SUCCESS;
}

Driver::~Driver() { scheduler.reset(); }

// A process that exits without a reset leaves a shared machine here. Linux takes everything else
// back.
__attribute__((destructor)) static void leave_machine() {
  Driver* driver = running.load();
  if (driver == nullptr || forked || !driver->machine->shared()) return;
  std::unique_lock<std::mutex> lock(driver->mutex, std::try_to_lock);
  if (lock.owns_lock()) driver->machine->leave();
}

}  // namespace simcuda
