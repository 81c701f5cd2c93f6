// The C interface of transfers.
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "capi/capi_call.h"
#include "glake/glake.h"
#include "process/transfer_use.h"
#include "transfer/engine.h"
#include "transfer/remote/relay_door.h"

using namespace glake::capi;
using glake::Process;
using glake::TransferUse;

namespace {

std::mutex door_mutex;
std::shared_ptr<glake::transfer::RelayDoor> door;  // of this process, if it is the service

glake_copy_request request_here(const glake_copy_request& given) {
  return as_here(given, "glake_copy_request", offsetof(glake_copy_request, also_stream));
}

// Turns the end of a wait into the status of the call.
void require_end(int end, std::string text) {
  if (end != GLAKE_OK) throw glake::Error(static_cast<glake_status>(end), std::move(text));
}

}  // namespace

extern "C" {

int glake_transfer_open(const char* topology, const char* name) {
  return api_call([&] {
    Process::instance().transfer().open(topology == nullptr ? "" : topology,
                                        name == nullptr ? "" : name);
  });
}

int glake_transfer_close(void) {
  return api_call([] { Process::instance().transfer().close(); });
}

uint64_t glake_copy_start(const glake_copy_request* request) {
  uint64_t id = 0;
  api_call([&] {
    require(request != nullptr, "glake_copy_start needs a request");
    TransferUse use;
    id = request->size == sizeof *request ? use->begin(*request)
                                          : use->begin(request_here(*request));
  });
  return id;
}

int glake_copy_start_all(const glake_copy_request* requests, size_t count, uint64_t* ids) {
  return api_call([&] {
    require(count == 0 || (requests != nullptr && ids != nullptr),
            "glake_copy_start_all needs requests, and room for their ids");
    std::fill_n(ids, count, 0);
    std::vector<glake_copy_request> given;
    for (size_t i = 0; i < count; ++i) {
      // The caller's structure may be longer or shorter than that of this library.
      const auto* at = reinterpret_cast<const char*>(requests) + i * requests->size;
      const auto* one = reinterpret_cast<const glake_copy_request*>(at);
      require(one->size == requests->size && one->size % alignof(glake_copy_request) == 0,
              "glake_copy_start_all: set each request's size to sizeof(glake_copy_request)");
      given.push_back(request_here(*one));
    }
    TransferUse()->begin_all(given, ids);
  });
}

int glake_copy_wait(uint64_t id, uint64_t timeout_ns) {
  return api_call([&] {
    std::string text;
    TransferUse engine;
    engine->end_burst();
    const int end = engine->copy(id)->wait(timeout_ns, &text);
    require_end(end, std::move(text));
  });
}

int glake_copy_done(uint64_t id) {
  bool done = false;
  const int code = api_call([&] { done = TransferUse()->copy(id)->done(); });
  return code == GLAKE_OK ? (done ? 1 : 0) : -code;
}

int glake_copy_settled(uint64_t id) {
  bool settled = false;
  const int code = api_call([&] { settled = TransferUse()->settled(id); });
  return code == GLAKE_OK ? (settled ? 1 : 0) : -code;
}

int glake_copy_stream_wait(uint64_t id, int device, void* stream) {
  return api_call([&] { TransferUse()->stream_wait(id, device, glake::stream_of(stream)); });
}

int glake_copy_cancel(uint64_t id) {
  return api_call([&] { TransferUse()->copy(id)->cancel(); });
}

int glake_copy_release(uint64_t id) {
  return api_call([&] { TransferUse()->copy(id)->release(); });
}

int glake_copy_progress(uint64_t id, uint64_t* done, uint64_t* total) {
  return api_call([&] {
    glake::Bytes arrived = 0, all = 0;
    TransferUse()->copy(id)->progress(&arrived, &all);
    if (done != nullptr) *done = arrived;
    if (total != nullptr) *total = all;
  });
}

size_t glake_copy_result(uint64_t id, char* json, size_t capacity) {
  size_t length = 0;
  api_call([&] { length = copy_out(TransferUse()->copy(id)->result(), json, capacity); });
  return length;
}

int glake_copy_visit_paths(uint64_t id, void* self,
                           void (*visit)(void* self, const glake_copy_path* path)) {
  return api_call([&] {
    require(visit != nullptr, "glake_copy_visit_paths needs a function");
    const std::vector<glake::transfer::CarriedPath> paths = TransferUse()->copy(id)->paths();
    glake::Alone outside(false);  // the caller's function may call glake
    for (const auto& path : paths) {
      const glake_copy_path shown = {path.name.c_str(), path.bytes, path.relayed ? 1 : 0};
      visit(self, &shown);
    }
  });
}

size_t glake_transfer_stats(char* json, size_t capacity) {
  size_t length = 0;
  api_call([&] { length = copy_out(TransferUse()->stats(), json, capacity); });
  return length;
}

size_t glake_transfer_explain(int dst_device, int src_device, int node, uint64_t bytes, char* json,
                              size_t capacity) {
  size_t length = 0;
  api_call([&] {
    length = copy_out(TransferUse()->explain({dst_device, node}, {src_device, node}, bytes), json,
                      capacity);
  });
  return length;
}

int glake_time_copies(const glake_timed_copy* copies, size_t count, uint64_t bytes, int repeats,
                      uint64_t* ns) {
  return api_call([&] {
    TransferUse use;
    if (count == 0) return use->timer().close();
    require(copies != nullptr && ns != nullptr,
            "glake_time_copies needs copies and room for times");
    std::vector<glake::transfer::TimedCopy> timed;
    for (size_t i = 0; i < count; ++i) {
      timed.push_back(
          {{copies[i].dst_device, copies[i].dst_node}, {copies[i].src_device, copies[i].src_node}});
    }
    use->timer().time(timed, bytes, repeats, ns);
  });
}

int glake_transfer_lend(uint32_t relays, const double* factors, size_t count) {
  return api_call([&] {
    require(factors != nullptr || count == 0, "glake_transfer_lend needs its factors");
    TransferUse()->lend(relays, std::vector<double>(factors, factors + count));
  });
}

int glake_transfer_open_relays(const char* path, const int* gpus, const int* there, size_t count) {
  return api_call([&] {
    require(path != nullptr && ((gpus != nullptr && there != nullptr) || count == 0),
            "glake_transfer_open_relays needs a path and GPUs");
    std::vector<std::pair<int, int>> named;
    for (size_t i = 0; i < count; ++i) named.emplace_back(gpus[i], there[i]);
    TransferUse()->open_relays(path, named);
  });
}

void* glake_shared_alloc(size_t bytes) {
  void* found = nullptr;
  api_call([&] {
    require(bytes != 0, "glake_shared_alloc needs a size");
    found = TransferUse()->allocate_shared(bytes);
  });
  return found;
}

int glake_shared_free(void* ptr) {
  return api_call([&] {
    if (glake::transfer::RemoteGpus::free_left(reinterpret_cast<uintptr_t>(ptr))) return;
    TransferUse()->free_shared(ptr);
  });
}

int glake_relay_open(const char* driver, const char* path) {
  return api_call([&] {
    require(driver != nullptr && path != nullptr, "glake_relay_open needs a driver and a path");
    std::lock_guard<std::mutex> guard(door_mutex);
    require(door == nullptr, "this process serves as a relay already");
    door = std::make_shared<glake::transfer::RelayDoor>(driver, path);
  });
}

int glake_relay_close(void) {
  return api_call([] {
    std::lock_guard<std::mutex> guard(door_mutex);
    if (door != nullptr) door->stop();  // a thread in glake_relay_wait() still holds it
    door.reset();
  });
}

int glake_relay_wait(void) {
  return api_call([] {
    std::shared_ptr<glake::transfer::RelayDoor> waited;
    {
      std::lock_guard<std::mutex> guard(door_mutex);
      waited = door;
    }
    const std::string lost = waited != nullptr ? waited->wait() : "";
    if (!lost.empty()) throw glake::Error(GLAKE_DRIVER_ERROR, lost);
  });
}

size_t glake_transfer_demands(char* json, size_t capacity) {
  size_t length = 0;
  api_call([&] { length = copy_out(TransferUse()->demands(), json, capacity); });
  return length;
}

int glake_transfer_demands_event(void) {
  int event = -1;
  const int code = api_call([&] { event = TransferUse()->demands_event(); });
  return code == GLAKE_OK ? event : -code;
}

int glake_register_host(void* base, size_t bytes, int background) {
  return api_call([&] { TransferUse()->pins().add(base, bytes, background != 0); });
}

int glake_register_host_wait(void* base, uint64_t timeout_ns) {
  return api_call([&] {
    std::string text;
    const int end = TransferUse()->pins().wait(base, timeout_ns, &text);
    require_end(end, std::move(text));
  });
}

int glake_register_host_progress(void* base, uint64_t* pinned, uint64_t* total) {
  return api_call([&] {
    glake::Bytes done = 0, all = 0;
    TransferUse()->pins().progress(base, &done, &all);
    if (pinned != nullptr) *pinned = done;
    if (total != nullptr) *total = all;
  });
}

int glake_unregister_host(void* base) {
  return api_call([&] { TransferUse()->pins().remove(base); });
}

int glake_place_of(const void* ptr, int* device, int* pinned) {
  return api_call([&] {
    require(device != nullptr && pinned != nullptr, "glake_place_of needs room for its answers");
    TransferUse()->place_of(ptr, device, pinned);
  });
}

}  // extern "C"
