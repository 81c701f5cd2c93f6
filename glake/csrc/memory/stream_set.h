// A short list of streams. Most lists are empty, and an empty list takes no more room than a
// pointer.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "memory/tickets.h"

namespace glake {

class StreamSet {
 public:
  const StreamId* begin() const { return some() ? ids_->data() : nullptr; }
  const StreamId* end() const { return begin() + size(); }
  bool empty() const { return size() == 0; }
  size_t size() const { return some() ? ids_->size() : 0; }
  bool has(StreamId id) const { return std::find(begin(), end(), id) != end(); }
  void add(StreamId id) {
    if (!some()) ids_ = std::make_unique<std::vector<StreamId>>();
    if (!has(id)) ids_->push_back(id);
  }
  void remove(StreamId id) {
    if (some()) ids_->erase(std::remove(ids_->begin(), ids_->end(), id), ids_->end());
  }
  void clear() { ids_.reset(); }

 private:
  bool some() const { return ids_ != nullptr; }
  std::unique_ptr<std::vector<StreamId>> ids_;
};

}  // namespace glake
