// Virtual ranges as callers know them: by their first address. What pages take and give back is
// reported to those who record, watch or trace.
#pragma once

#include "process/process.h"

namespace glake {

class VirtualCalls {
 public:
  explicit VirtualCalls(Process& process) : process_(process) {}

  // As the methods of the same name of VirtualRanges. Throw Error.
  void* reserve(Bytes bytes, int device);
  void back(void* range, Bytes offset, Bytes bytes, StreamHandle stream);
  void unback(void* range, Bytes offset, Bytes bytes, StreamHandle stream);
  void alias(void* range, Bytes offset, void* from, Bytes from_offset, Bytes bytes,
             StreamHandle stream);
  void end(void* range);
  VirtualInfo info(void* range, Bytes offset, Bytes bytes);

 private:
  Heap& heap_of(void* range);
  void refuse_copied(void* range, Bytes offset, Bytes bytes);

  Process& process_;
};

}  // namespace glake
