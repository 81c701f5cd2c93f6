#include "process/region_calls.h"

#include <algorithm>

#include "heap/saved_bytes.h"
#include "process/region_copier.h"

namespace glake {
namespace {

// Adds the region's name to an error of files or copies.
Error naming(const Error& error, PoolId id) {
  const std::string region = RegionBook::instance().text(id), text = error.what();
  const bool named = text.find(region) != std::string::npos;
  return Error(error.code(), named ? text : region + ": " + text);
}

}  // namespace

void RegionCalls::pause(int device, PoolId id, const PauseTo& to) {
  Regions own = process_.device(device).regions();
  HostPool& pinned = process_.host();
  std::vector<SavedPart> parts = own.begin_pause(id);
  std::unique_ptr<SavedBytes> saved;
  try {
    saved = std::make_unique<SavedBytes>(pinned, to.kind, to.folder);
    RegionCopier copier(process_.driver(), pinned, device);
    for (const SavedPart& part : parts) {
      if (copier.copying(part.at, part.at + part.bytes)) {
        throw Error(GLAKE_REGION_REFUSED,
                    RegionBook::instance().text(id) + " on " + device_text(device) +
                        " cannot be paused: its block at " + hex(part.at) +
                        " is being copied, in no stream's order; pause when the copy is done");
      }
      saved->add(part.at, part.bytes, part.block);
    }
    saved->save(copier);
  } catch (const Error& e) {
    own.cancel_pause(id);
    throw naming(e, id);
  } catch (...) {
    own.cancel_pause(id);
    throw;
  }
  own.finish_pause(id, std::move(saved));
}

void RegionCalls::resume(int device, PoolId id, bool verify) {
  Regions own = process_.device(device).regions();
  HostPool& pinned = process_.host();
  const Regions::Resumed resumed = own.begin_resume(id);
  if (resumed.saved == nullptr) return;
  auto live = [&](Address at) {
    if (resumed.whole) return true;
    auto after = [](Address a, const std::pair<Address, Address>& block) {
      return a < block.first;
    };
    auto block = std::upper_bound(resumed.live.begin(), resumed.live.end(), at, after);
    return block != resumed.live.begin() && at < std::prev(block)->second;
  };
  try {
    RegionCopier copier(process_.driver(), pinned, device);
    resumed.saved->load(copier, verify, live);
  } catch (const Error& e) {
    own.cancel_resume(id);
    throw naming(e, id);
  } catch (...) {
    own.cancel_resume(id);
    throw;
  }
  own.end_resume(id);
}

void RegionCalls::set_budget(PoolId id, Bytes bytes) {
  RegionName* region = RegionBook::instance().find(id);
  if (region == nullptr) {
    throw Error(GLAKE_INVALID_ARGUMENT,
                RegionBook::instance().text(id) + " is no region; glake_region_pool() makes one");
  }
  region->budget.store(bytes);
}

void RegionCalls::drop_freed() {
  process_.for_each_device([](DeviceAllocator& device) { device.regions().drop_freed(); });
}

std::string RegionCalls::list() {
  std::string json = "[";
  process_.for_each_device([&](DeviceAllocator& device) {
    for (const RegionInfo& info : device.regions().list()) {
      const RegionName* region = RegionBook::instance().find(info.pool);
      std::string one = "{";
      auto number = [&](const char* key, uint64_t value) {
        append_number(one, key, static_cast<int64_t>(value));
      };
      number("device", static_cast<uint64_t>(device.number()));
      number("first", info.pool.first);
      number("second", info.pool.second);
      number("budget", region != nullptr ? region->budget.load() : 0);
      number("blocks", info.blocks);
      number("live_bytes", info.live);
      number("reserved_bytes", info.reserved);
      number("paused_bytes", info.paused);
      number("saved_bytes", info.saved);
      number("state", static_cast<uint64_t>(info.state));
      number("to", static_cast<uint64_t>(info.to));
      json += (json.size() == 1 ? "" : ", ") + one + "}";
    }
  });
  return json + "]";
}

}  // namespace glake
