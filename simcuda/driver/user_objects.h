// User objects that the program holds, by their handles.
#pragma once

#include <memory>

#include "types.h"
#include "user_object.h"

namespace simcuda {

// The error for a number of references that the program does not have.
CUresult bad_count(const char* call, uint64_t count);

class UserObjects {
 public:
  // The references of the program.
  struct Owned {
    std::weak_ptr<UserObject> object;
    UserObjectPtr kept;  // while count > 0
    uint64_t count = 0;
  };
  uint64_t add(void* pointer, CUhostFn destroy, uint64_t count);
  Owned* find(CUuserObject handle) { return owned_.find(reinterpret_cast<uint64_t>(handle)); }
  static CUresult release(Owned* owned, uint64_t count);

 private:
  Slots<Owned, 11> owned_;
};

}  // namespace simcuda
