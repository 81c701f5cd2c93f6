// The functions of simcuda that a replay calls itself. They are resolved from the library that the
// core is told to use.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "policy.h"

namespace glake::replay {

struct SimDriver {
  explicit SimDriver(const std::string& path);

  int (*configure)(const char* key, const char* value);
  int (*reset)();
  void (*reset_calls)();
  int64_t (*calls)(const char* symbol);
  int64_t (*further_pages)(const char* symbol);
  int64_t (*further_mappings)(const char* symbol);
  int (*table_price)(const char* table, const char* symbol, double* first_us, double* further_us);
  int (*mapping_price)(const char* table, const char* symbol, double* mapping_us);
  size_t (*last_message)(char* text, size_t capacity);
  void (*tick)(uint64_t ticks);
  size_t (*violations)(char* json, size_t capacity, int clear);
  int (*init)(unsigned flags);
  int (*retain_context)(void** context, int device);
  int (*release_context)(int device);
  int (*set_context)(void* context);
  int (*create_stream)(void** stream, unsigned flags);
  int (*destroy_stream)(void* stream);
  int (*create_event)(void** event, unsigned flags);
  int (*record_with_flags)(void* event, void* stream, unsigned flags);
  int (*destroy_event)(void* event);
  int (*memory_info)(size_t* free_bytes, size_t* total_bytes);

  std::string last_error() const;  // why the last call on this thread was refused
  // "" means the simulator beside the core's own library.
  static std::string locate(const std::string& path);
  const std::string path;

 private:
  struct Close {
    void operator()(void* library) const { dlclose(library); }
  };
  template <typename Function>
  void resolve(Function*& function, const char* symbol);

  std::unique_ptr<void, Close> library_;
};

}  // namespace glake::replay
