// simcuda's options: set by simcuda_configure or GLAKE_SIM_<KEY>, read at cuInit.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>

namespace simcuda {

constexpr int64_t kAuto = INT64_MIN;

struct Options {
  std::string preset = "hgx_h100_h200";
  std::string platforms;  // "": platforms.json beside the library
  std::string costs;      // of calls: a device in the cost file; "": the file's default
  std::string cost_file;  // "": costs.json beside the library
  int devices = 0;        // 0: the preset's
  uint64_t memory = 0;    // 0: 1 GiB, phantom 80 GiB
  bool phantom = false;
  uint64_t context_memory = 0;  // that each context takes of its device
  uint64_t seed = 0;
  bool threaded = false;
  bool polled = false;           // who waits with a deadline asks again and again, as on a GPU
  bool sticky_errors = false;    // work that fails takes its context with it
  bool visible_devices = false;  // CUDA_VISIBLE_DEVICES counts (visible.h)
  uint64_t pace = 0;           // of the clock all processes share (shared_links.h); 0: each its own
  bool driver_lock = false;    // some calls keep others out and wait for work (driver_lock.h)
  std::string machine;         // "": private to the process
  std::string machine_dir;     // "": /dev/shm
  bool reuse_handles = false;  // a new stream may have the handle of a destroyed one
  int64_t max_maps = 0;        // 0: the kernel's vm.max_map_count
  std::string host_node = "0";  // socket of host memory: a number, "local" or "interleave"
  uint64_t batch_small_ns = 2400, batch_large_ns = 100;  // of each copy in a batch, by its size
};

// Options given by simcuda_configure, as text. They win over the environment.
using Given = std::map<std::string, std::string>;

// Sets one option from text; false, with *why filled, when it cannot.
bool set_option(Options* options, const std::string& key, const std::string& value,
                std::string* why);
// The environment, then `given`. Unknown GLAKE_SIM_ variables are errors.
bool load_options(Options* options, const Given& given, std::string* why);
bool is_option(const std::string& key);

// Options that may change at any time live here.
bool set_live_option(const std::string& key, const std::string& value, std::string* why);
bool is_live_option(const std::string& key);
std::atomic<int64_t>& complete_after();
std::atomic<bool>& call_time();  // calls that enqueue work take their time on the clock
std::atomic<int>& dead_link();   // what copies over a dead link end with; 0: they stand still

}  // namespace simcuda
