// A rank's reductions with a factor, by their handles.
#pragma once

#include <map>
#include <mutex>

#include "operation.h"

namespace nccl {

class Scales {
 public:
  // `address` is the place of the factor in device memory. nullptr: the factor is `value`.
  int add(double value, const void* address, int type);
  bool drop(int op);
  // False: there is none, or it has another type.
  bool find(int op, Part* part) const;

 private:
  struct Scale {
    double value;
    const void* address;
    int type;
  };

  mutable std::mutex mutex_;
  std::map<int, Scale> scales_;
  int next_ = ncclNumOps;
};

}  // namespace nccl
