#include "intercept/engine.h"

#include <dlfcn.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/json.h"
#include "intercept/resolve.h"
#include "intercept/settings.h"

namespace glake::intercept {
namespace {

std::string beside_this() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&settings), &info) == 0 || info.dli_fname == nullptr) {
    return "libglake.so";
  }
  const std::string self = info.dli_fname;
  const size_t slash = self.find_last_of('/');
  return (slash == std::string::npos ? "" : self.substr(0, slash + 1)) + "libglake.so";
}

// Whether CUDA_VISIBLE_DEVICES, which numbers the GPUs, is the same as when the topology was made.
bool same_gpus(std::string* why) {
  const char* now = std::getenv("CUDA_VISIBLE_DEVICES");
  const std::string seen = now == nullptr ? "" : now;
  if (!settings().visible_given || seen == settings().visible) return true;
  *why = "CUDA_VISIBLE_DEVICES was \"" + settings().visible +
         "\" when glake looked at the GPUs' "
         "links, and is \"" +
         seen + "\": set it before `glake run --intercept`";
  return false;
}

bool read_topology(std::string* text, std::string* name, std::string* why) {
  *text = settings().topology;
  if (text->empty()) {
    *why =
        "nothing is known of the GPUs' links: start the program by `glake run --intercept`, or "
        "set GLAKE_INTERCEPT_TOPOLOGY to a platforms file";
    return false;
  }
  if ((*text)[0] != '{') {
    std::ifstream file(*text);
    std::stringstream all;
    all << file.rdbuf();
    if (!file) {
      *why = "cannot read GLAKE_INTERCEPT_TOPOLOGY=" + *text;
      return false;
    }
    *text = all.str();
  }
  try {
    const topology::Json file = topology::Json::parse(*text);
    if (file.find("gpus") != nullptr) return true;  // it has one platform, without a name
    for (const auto& [known, platform] : file.members()) {
      if (known[0] == '_' || known == "per_copy_us") continue;
      if (!name->empty()) {
        *why = "GLAKE_INTERCEPT_TOPOLOGY has several platforms: leave one in the file";
        return false;
      }
      *name = known;
    }
  } catch (const topology::JsonError& error) {
    *why = std::string("GLAKE_INTERCEPT_TOPOLOGY: ") + error.what();
    return false;
  }
  return true;
}

}  // namespace

bool Engine::load(std::string* why) {
  const std::string path = beside_this();
  void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    *why = reason != nullptr ? reason : path;
    return false;
  }
  const auto take = [&](const char* symbol, auto* function) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, symbol));
    if (*function == nullptr) *why = path + " has no " + symbol;
    return *function != nullptr;
  };
  return take("glake_transfer_open", &api_.transfer_open) &&
         take("glake_transfer_close", &api_.transfer_close) &&
         take("glake_shutdown", &api_.shutdown) &&
         take("glake_transfer_stats", &api_.transfer_stats) &&
         take("glake_transfer_lend", &api_.lend) && take("glake_copy_start", &api_.start) &&
         take("glake_copy_wait", &api_.wait) && take("glake_copy_done", &api_.done) &&
         take("glake_copy_release", &api_.release) && take("glake_copy_progress", &api_.progress) &&
         take("glake_copy_visit_paths", &api_.visit_paths) &&
         take("glake_last_error", &api_.last_error) &&
         take("glake_device_count", &api_.device_count) &&
         take("glake_driver_path", &api_.driver_path);
}

bool Engine::open(std::string* why) {
  if (api_.start == nullptr && !load(why)) return false;
  if (api_.device_count() <= 0) {
    *why = error();
    return false;
  }
  if (!is_programs_driver(api_.driver_path())) {
    *why = std::string("the program uses another driver than glake's, ") + api_.driver_path() +
           " (GLAKE_DRIVER)";
    return false;
  }
  api_.transfer_stats(nullptr, 0);
  // The program has opened its own (glake.transfer).
  if (api_.last_error(nullptr, 0) == GLAKE_OK) return true;
  std::string text, name;
  if (!same_gpus(why) || !read_topology(&text, &name, why)) return false;
  if (api_.transfer_open(text.c_str(), name.empty() ? nullptr : name.c_str()) != GLAKE_OK) {
    *why = error();
    return false;
  }
  mine_ = true;
  if (settings().own_gpus_only) api_.lend(0, nullptr, 0);
  return true;
}

void Engine::close() {
  if (mine_) api_.transfer_close();
  mine_ = false;
}

bool Engine::leave() {
  if (!mine_) return false;
  close();
  api_.shutdown();  // it refuses while the program has blocks of glake
  return true;
}

bool Engine::routed(uint64_t id) {
  uint64_t done = 0, total = 0;
  api_.progress(id, &done, &total);
  return total != 0;
}

std::string Engine::error() {
  char text[4096] = "";
  api_.last_error(text, sizeof text);
  return text;
}

}  // namespace glake::intercept
