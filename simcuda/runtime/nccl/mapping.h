// Mapped memory. The destructor unmaps it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace nccl {

// The makers return nullptr if they cannot. Then errno has the reason.
class Mapping {
 public:
  static std::shared_ptr<Mapping> make(const std::string& path, size_t bytes);  // of a file, shared
  static std::shared_ptr<Mapping> find(const std::string& path);
  // Private zeros, which take no memory before they are touched.
  static std::shared_ptr<Mapping> zeros(size_t bytes);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  char* data() const { return static_cast<char*>(data_); }
  size_t bytes() const { return bytes_; }

 private:
  Mapping(void* data, size_t bytes) : data_(data), bytes_(bytes) {}
  void* data_;
  size_t bytes_;
};

}  // namespace nccl
