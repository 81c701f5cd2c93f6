// Which copies come a moment after a copy: a loop that copies to every GPU begins the others next.
// The first of them cannot know, but the last time shows: a copy of the same ends and about the
// same size is expected to have the same company again. A guess only: a copy that comes alone after
// all was planned as one of several, once.
//
// Company is what begins soon (the caller says until when), as long as some copy is under way all
// the time: copies that each wait for the one before are not together.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "plan/plan.h"

namespace glake::transfer {

struct Companion {
  Demand demand;
  Bytes bytes = 0;
};

class Companions {
 public:
  // A copy begins, whose company comes until `until`. Returns those that came after the last such
  // copy.
  std::vector<Companion> begin(uint64_t now, uint64_t until, const Companion& copy);
  // The copy between these ends is done.
  void ended(const Place& src, const Place& dst);

 private:
  // Ends, and the size's power of two.
  using Key = std::tuple<int, int, int, int, int>;
  struct Open {
    Companion copy;
    uint64_t until;
    bool done;
    std::vector<Companion> came;
  };
  static Key key_of(const Companion& copy);
  void close(size_t which);

  std::vector<Open> open_;
  std::map<Key, std::vector<Companion>> known_;
};

}  // namespace glake::transfer
