// Opening simcuda and resolving its symbols.
#include "sim_driver.h"

#include <algorithm>

#include "glake/glake.h"

namespace glake::replay {

std::string SimDriver::locate(const std::string& path) {
  if (!path.empty()) return path;
  Dl_info core;
  const auto address = reinterpret_cast<const void*>(&glake_malloc);
  if (dladdr(address, &core) == 0 || core.dli_fname == nullptr) {
    throw ReplayError("cannot tell where glake's library lies; name the simulator's path");
  }
  const std::string beside = core.dli_fname;
  const size_t slash = beside.rfind('/');
  return (slash == std::string::npos ? "" : beside.substr(0, slash + 1)) + "libsimcuda.so";
}

SimDriver::SimDriver(const std::string& wanted)
    : path(locate(wanted)), library_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (!library_) {
    const char* why = dlerror();
    throw ReplayError("cannot open the simulator: " + std::string(why != nullptr ? why : path));
  }
  resolve(configure, "simcuda_configure");
  resolve(reset, "simcuda_reset");
  resolve(reset_calls, "simcuda_reset_calls");
  resolve(calls, "simcuda_calls");
  resolve(further_pages, "simcuda_further_pages");
  resolve(further_mappings, "simcuda_further_mappings");
  resolve(table_price, "simcuda_table_price");
  resolve(mapping_price, "simcuda_mapping_price");
  resolve(last_message, "simcuda_last_message");
  resolve(tick, "simcuda_tick");
  resolve(violations, "simcuda_violations");
  resolve(init, "cuInit");
  resolve(retain_context, "cuDevicePrimaryCtxRetain");
  resolve(release_context, "cuDevicePrimaryCtxRelease_v2");
  resolve(set_context, "cuCtxSetCurrent");
  resolve(create_stream, "cuStreamCreate");
  resolve(destroy_stream, "cuStreamDestroy_v2");
  resolve(create_event, "cuEventCreate");
  resolve(record_with_flags, "cuEventRecordWithFlags");
  resolve(destroy_event, "cuEventDestroy_v2");
  resolve(memory_info, "cuMemGetInfo_v2");
}

template <typename Function>
void SimDriver::resolve(Function*& function, const char* symbol) {
  function = reinterpret_cast<Function*>(dlsym(library_.get(), symbol));
  if (function == nullptr) {
    throw ReplayError(path + " lacks " + symbol + "; a replay needs the simulated driver");
  }
}

std::string SimDriver::last_error() const {
  std::string text(1024, '\0');
  text.resize(std::min(last_message(text.data(), text.size()), text.size() - 1));
  return text;
}

}  // namespace glake::replay
