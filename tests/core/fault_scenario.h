// One scenario of fault_sweep.cpp: what it sets up before any call may fail, and what it does while
// one fails.
#pragma once

#include "fault_play.h"

namespace test::faults {

struct Scenario {
  const char* name;
  Options simulator;
  Options glake;
  int devices = 1;
  int streams = 0;
  std::function<void(Play&)> prepare;  // no call fails here
  std::function<void(Play&)> act;
};

// `count` blocks of `bytes`, then every other one (from the first) freed.
inline std::vector<void*> checkered(Play& play, int count, size_t bytes, int on = 0) {
  std::vector<void*> blocks;
  for (int i = 0; i < count; ++i) blocks.push_back(play.get(bytes, on));
  for (size_t i = 0; i < blocks.size(); i += 2) play.drop(blocks[i]);
  return blocks;
}

inline void nothing(Play&) {}
inline void open(Play& play) { play.drop(play.get(512)); }

}  // namespace test::faults
