// The C interface. It checks arguments and turns exceptions into codes, and does nothing else.
#include <algorithm>
#include <cstring>
#include <string>

#include "capi/capi_call.h"
#include "debug/debug_device.h"
#include "glake/glake.h"
#include "process/alloc_hooks.h"
#include "process/process.h"

namespace glake::capi {

// The definition needs the attribute too. Without it the compiler forgets the one of the header.
__thread int last_code __attribute__((tls_model("initial-exec"))) = GLAKE_OK;

namespace {
std::string& last_text() {
  thread_local std::string text;
  return text;
}
}  // namespace

int fail(int code, const char* text) noexcept {
  last_text() = text;
  return last_code = code;  // set last, because a signal handler may have set its own
}

// It allocates nothing, because the handler may have interrupted malloc itself.
int fail_reentered() noexcept { return last_code = GLAKE_REENTERED; }

void refuse_size(size_t bytes) {
  // From this size on the text is PyTorch's own, because other software reads it.
  constexpr size_t kExbibyte = size_t{1} << 60;
  throw Error(GLAKE_INVALID_ARGUMENT,
              (bytes >= kExbibyte ? std::string("Tried to allocate more than 1EB memory: ")
                                  : std::string()) +
                  "cannot allocate " + std::to_string(bytes) + " bytes: a block has 1 to " +
                  std::to_string(kMaxRequest) + " bytes" +
                  (bytes > SIZE_MAX / 2 ? " (was the size negative?)" : ""));
}

size_t copy_out(const std::string& text, char* out, size_t capacity) {
  if (out != nullptr && capacity != 0) {
    size_t n = std::min(text.size(), capacity - 1);
    std::memcpy(out, text.data(), n);
    out[n] = '\0';
  }
  return text.size();
}

}  // namespace glake::capi

using namespace glake::capi;
using glake::Block;
using glake::DeviceAllocator;
using glake::Process;

extern "C" {

void* glake_malloc(size_t bytes, int device, void* stream) {
  void* result = nullptr;
  if (Process* plain = Process::plain()) {
    caught([&] {
      require_size(bytes);
      result = glake::plain_malloc(*plain, bytes, device, glake::stream_of(stream));
    });
  } else {
    api_call([&] {
      require_size(bytes);
      result = glake::hooked_malloc(Process::instance(), bytes, device, glake::stream_of(stream));
    });
  }
  return result;
}

int glake_free(void* ptr) {
  if (ptr == nullptr) return last_code = GLAKE_OK;
  if (Process* plain = Process::plain()) return caught([&] { glake::plain_free(*plain, ptr); });
  return api_call([&] { glake::hooked_free(Process::instance(), ptr); });
}

int glake_record_stream(void* ptr, void* stream) {
  return api_call([&] {
    Process& process = Process::instance();
    Block& b = process.block(ptr, false);
    if (process.hooks().has(glake::kTraced))
      process.trace().recorded(ptr, glake::stream_of(stream));
    b.heap->record_stream(&b, glake::stream_of(stream));
  });
}

int glake_capturing(int device) {
  bool capturing = false;
  const int code = api_call([&] { capturing = Process::instance().device(device).capturing(); });
  return code == GLAKE_OK ? static_cast<int>(capturing) : -code;
}

int glake_stream_wait(int device, void* stream, void* for_stream) {
  return api_call([&] {
    Process::instance().device(device).stream_wait(glake::stream_of(stream),
                                                   glake::stream_of(for_stream));
  });
}

int glake_forget_stream(int device, void* stream) {
  return api_call([&] {
    Process& process = Process::instance();
    process.stream_ends(device, glake::stream_of(stream), glake::StreamEnd::kNow);
    process.transfer().forget_stream(device, glake::stream_of(stream));
  });
}

int glake_stream_may_end(int device, void* stream) {
  return api_call([&] {
    Process::instance().stream_ends(device, glake::stream_of(stream), glake::StreamEnd::kAnyTime);
  });
}

int glake_empty_cache(int device) {
  return api_call([&] {
    DeviceAllocator& allocator = Process::instance().device(device);
    if (debug_of(allocator) != nullptr) {
      debug_of(allocator)->check();  // memory that goes back can no longer be checked
      debug_of(allocator)->release_kept();
    }
    Process::instance().settle_ipc();
    allocator.regions().drop_freed();
    glake::watched_trim([&] { allocator.reclaim().empty_cache(); });
  });
}

int glake_trim(int device, size_t bytes, size_t* given) {
  return api_call([&] {
    require(given != nullptr, "glake_trim needs room for the bytes given");
    DeviceAllocator& allocator = Process::instance().device(device);
    glake::watched_trim(
        [&] { *given = allocator.reclaim().give_some(glake::Granules::ceil(bytes)).bytes(); });
  });
}

size_t glake_stats(int device, char* json, size_t capacity) {
  size_t length = 0;
  api_call([&] {
    DeviceAllocator& allocator = Process::instance().device(device);
    allocator.regions().drop_freed();
    length = copy_out(allocator.report().json(), json, capacity);
  });
  return length;
}

int64_t glake_owed_bytes(int device) {
  int64_t bytes = 0;
  int code = api_call([&] {
    Process::instance().check_usable();
    Process::instance().for_each_device([&](DeviceAllocator& used) {
      if (used.number() == device) bytes = static_cast<int64_t>(used.owed_bytes());
    });
  });
  return code == GLAKE_OK ? bytes : -code;
}

int glake_reset_peak_stats(int device) {
  return api_call([&] { Process::instance().device(device).report().reset_peaks(); });
}

int glake_last_error(char* text, size_t capacity) {
  if (last_code == GLAKE_REENTERED) {
    constexpr char kText[] =
        "called in a signal handler (or an observer) that interrupted glake on this thread, whose "
        "locks are held: as with malloc, set a flag there and call glake later";
    if (text != nullptr && capacity != 0) {
      size_t n = std::min(sizeof kText, capacity);
      std::memcpy(text, kText, n);
      text[n - 1] = '\0';
    }
    return last_code;
  }
  // In a handler that interrupted glake the text may be half written.
  if (last_code == GLAKE_OK || glake::Alone::now()) {
    if (text != nullptr && capacity != 0) *text = '\0';
    return last_code;
  }
  glake::Alone alone(Process::checked());
  copy_out(last_text(), text, capacity);
  return last_code;
}

int glake_configure(const char* key, const char* value) {
  return api_call([&] {
    require(key != nullptr && value != nullptr, "glake_configure needs a key and a value");
    Process::instance().configure(key, value);
  });
}

size_t glake_options(char* json, size_t capacity) {
  size_t length = 0;
  api_call([&] { length = copy_out(Process::instance().options().describe(), json, capacity); });
  return length;
}

int64_t glake_option(const char* key, char* value, size_t capacity) {
  int64_t length = 0;
  const int code = api_call([&] {
    require(key != nullptr, "glake_option needs the option's name");
    length =
        static_cast<int64_t>(copy_out(Process::instance().options().get(key), value, capacity));
  });
  return code == GLAKE_OK ? length : -code;
}

int glake_block_info(const void* ptr, size_t* bytes, int* device, void** stream) {
  return api_call([&] {
    Block& b = Process::instance().block(ptr, false);
    if (bytes != nullptr) *bytes = b.requested;
    if (device != nullptr) *device = b.heap->number;
    if (stream != nullptr) *stream = reinterpret_cast<void*>(glake::given_name(b.stream));
  });
}

int glake_device_count(void) {
  int count = 0;
  int code = api_call([&] { count = Process::instance().device_count(); });
  return code == GLAKE_OK ? count : -code;
}

int glake_enable_peer_access(int device, int peer) {
  return api_call([&] {
    require(device != peer, "a device reaches its own memory already");
    Process& process = Process::instance();
    process.device(peer);  // its context must exist
    DeviceAllocator& on = process.device(device);
    process.ipc().enable_peer(on, peer);
  });
}

int glake_mark_step(int device) {
  return api_call([&] {
    Process& process = Process::instance();
    process.device(device).report().mark_step();
    if (process.hooks().has(glake::kTraced)) process.trace().step();
  });
}

int glake_trace(const char* path) {
  return api_call([&] {
    if (path == nullptr) {
      Process::instance().stop_trace();
    } else {
      Process::instance().start_trace(path);
    }
  });
}

int glake_check(int device) {
  return api_call([&] {
    DeviceAllocator& allocator = Process::instance().device(device);
    allocator.check();
    if (debug_of(allocator) == nullptr) return;
    debug_of(allocator)->check();
    std::string found = glake::FindingBook::instance().read();
    if (!found.empty()) throw glake::Error(GLAKE_CORRUPTED, found);
  });
}

int glake_shutdown(void) {
  return api_call([&] { Process::instance().shutdown(); });
}

const char* glake_driver_path(void) {
  const char* path = "";
  api_call([&] { path = Process::instance().driver_path(); });
  return path;
}

const char* glake_version(void) { return GLAKE_VERSION; }

}  // extern "C"
