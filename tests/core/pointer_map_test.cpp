// From addresses to blocks: chains within a slot, regions over several pages, removal.
#include "core/pointer_map.h"

#include "harness.h"

using namespace glake;

namespace {

void slots_chain() {
  Region region(8 * kGiB, 2 * kGiB, kMiB, nullptr);
  Block blocks[3];
  const Address starts[] = {8 * kGiB, 8 * kGiB + 512, 8 * kGiB + kMiB - 512};
  for (int i = 0; i < 3; ++i) {
    blocks[i].ptr = starts[i];
    region.insert(&blocks[i]);
  }
  CHECK(region.peek(starts[2]) == &blocks[2] && region.peek(starts[0]) == nullptr);
  for (int i = 0; i < 3; ++i) CHECK(region.find(starts[i]) == &blocks[i]);
  CHECK(region.find(8 * kGiB + 1024) == nullptr && region.find(9 * kGiB) == nullptr);
  region.erase(&blocks[1]);
  CHECK(region.find(starts[1]) == nullptr && region.find(starts[0]) == &blocks[0]);
  region.erase(&blocks[1]);  // not there: nothing happens
  region.erase(&blocks[2]);
  CHECK(region.peek(starts[0]) == &blocks[0]);
  region.erase(&blocks[0]);
  CHECK(region.find(starts[0]) == nullptr);
}

void regions_by_address() {
  Region a(8 * kGiB, 2 * kGiB, kMiB, nullptr), b(10 * kGiB, kGiB, kAlignment, nullptr);
  PointerMap::add(&a);
  PointerMap::add(&b);
  CHECK(PointerMap::find(8 * kGiB) == &a && PointerMap::find(10 * kGiB - 1) == &a);
  CHECK(PointerMap::find(10 * kGiB) == &b && PointerMap::find(11 * kGiB) == nullptr);
  CHECK(PointerMap::find(8 * kGiB - 1) == nullptr && PointerMap::find(0) == nullptr);
  CHECK(PointerMap::find(~Address{0}) == nullptr);
  PointerMap::remove(&a);
  CHECK(PointerMap::find(9 * kGiB) == nullptr && PointerMap::find(10 * kGiB) == &b);
  PointerMap::remove(&b);
}

}  // namespace

int main() {
  slots_chain();
  regions_by_address();
  return 0;
}
