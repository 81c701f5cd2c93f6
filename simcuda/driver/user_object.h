// User objects, which graphs keep alive. CUDA C++ Programming Guide, CUDA User Objects.
#pragma once

#include <map>
#include <memory>

#include "types.h"

namespace simcuda {

// It ends with its last reference. bury() then calls its destructor, which is the program's.
class UserObject {
 public:
  UserObject(void* pointer, CUhostFn destroy) : pointer_(pointer), destroy_(destroy) {}
  ~UserObject();
  UserObject(const UserObject&) = delete;
  UserObject& operator=(const UserObject&) = delete;

 private:
  void* pointer_;
  CUhostFn destroy_;
};
using UserObjectPtr = std::shared_ptr<UserObject>;

// The user objects that a graph, its instances and their launches hold, by the objects' handles.
struct HeldObject {
  UserObjectPtr object;
  uint64_t count = 0;
};
using HeldObjects = std::map<uint64_t, HeldObject>;

// Calls the destructors of the objects that ended. "The destructor is invoked asynchronously": the
// next caller of a graph function invokes it, without the driver's lock.
void bury();

}  // namespace simcuda
