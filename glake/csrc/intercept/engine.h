// glake's transfer engine, as the carrier uses it. libglake, beside this library, is opened at the
// first copy that may be carried. Most processes that load this library make no such copy.
#pragma once

#include <cstdint>
#include <string>

#include "glake/glake.h"

namespace glake::intercept {

class Engine {
 public:
  // Opens libglake and its transfer engine, unless the process has an engine already. False: it
  // cannot be opened, and why() gives the reason.
  bool open(std::string* why);
  // Ends an engine that open() opened.
  void close();
  // Also gives back the contexts that libglake holds, unless the program uses memory of glake.
  // False: the engine is one that the program has opened, and stays.
  bool leave();
  bool is_own() const { return mine_; }  // whether open() has opened it

  uint64_t start(const glake_copy_request& request) { return api_.start(&request); }
  int wait(uint64_t id, uint64_t timeout_ns) { return api_.wait(id, timeout_ns); }
  bool over(uint64_t id) { return api_.done(id) != 0; }  // also with an error
  void release(uint64_t id) { api_.release(id); }
  // Visits the paths of a copy. False: glake does not know the copy any more.
  bool visit_paths(uint64_t id, void* self, void (*visit)(void*, const glake_copy_path*)) {
    return api_.visit_paths(id, self, visit) == GLAKE_OK;
  }
  bool routed(uint64_t id);  // it took more than one plain copy of the driver
  std::string error();

 private:
  struct Api {
    int (*transfer_open)(const char*, const char*);
    int (*transfer_close)();
    int (*shutdown)();
    size_t (*transfer_stats)(char*, size_t);
    int (*lend)(uint32_t, const double*, size_t);
    uint64_t (*start)(const glake_copy_request*);
    int (*wait)(uint64_t, uint64_t);
    int (*done)(uint64_t);
    int (*release)(uint64_t);
    int (*progress)(uint64_t, uint64_t*, uint64_t*);
    int (*visit_paths)(uint64_t, void*, void (*)(void*, const glake_copy_path*));
    int (*last_error)(char*, size_t);
    int (*device_count)();
    const char* (*driver_path)();
  };

  bool load(std::string* why);

  Api api_{};
  bool mine_ = false;
};

}  // namespace glake::intercept
