// The pointer map: chains within a cell, blocks over several pages, removal.
#include "memory/pointer_map.h"

#include "address_space.h"
#include "harness.h"
#include "memory/block_table.h"

using namespace glake;

namespace {

TEST(slots_chain) {
  BlockTable table(8 * kGiB, 2 * kGiB, kMiB, nullptr);
  CHECK(table.peek(8 * kGiB) == nullptr && table.find(8 * kGiB) == nullptr);
  table.prepare(8 * kGiB, kMiB);
  Block blocks[3];
  const Address starts[] = {8 * kGiB, 8 * kGiB + 512, 8 * kGiB + kMiB - 512};
  for (int i = 0; i < 3; ++i) {
    blocks[i].ptr = starts[i];
    table.insert(&blocks[i]);
  }
  CHECK(table.peek(starts[2]) == &blocks[2] && table.peek(starts[0]) == nullptr);
  for (int i = 0; i < 3; ++i) CHECK(table.find(starts[i]) == &blocks[i]);
  CHECK(table.find(8 * kGiB + 1024) == nullptr && table.find(9 * kGiB) == nullptr);
  table.erase(&blocks[1]);
  CHECK(table.find(starts[1]) == nullptr && table.find(starts[0]) == &blocks[0]);
  table.erase(&blocks[1]);  // not there: nothing happens
  table.erase(&blocks[2]);
  CHECK(table.peek(starts[0]) == &blocks[0]);
  table.erase(&blocks[0]);
  CHECK(table.find(starts[0]) == nullptr);
  PointerMap::remove(&table);
}

// The cells of a page may exist while its neighbours have none yet.
TEST(around_a_page) {
  BlockTable table(8 * kGiB, 4 * kGiB, kMiB, nullptr);
  table.prepare(10 * kGiB - kMiB, 2 * kMiB);
  Block block;
  block.ptr = 10 * kGiB - 2 * kMiB;
  block.size = kGiB + 4 * kMiB;  // reaches into the third page and the fourth
  table.insert(&block);
  CHECK(table.around(10 * kGiB + 3, table.base()) == &block);
  CHECK(table.around(11 * kGiB + kMiB, table.base()) == &block);
  CHECK(table.around(11 * kGiB + 2 * kMiB, table.base()) == nullptr);
  CHECK(table.around(9 * kGiB, table.base()) == nullptr);
  table.erase(&block);
  PointerMap::remove(&table);
}

// A login node's `ulimit -v` is a few GiB; the range of a replay's device is TiBs long.
TEST(host_memory_by_need) {
  Bytes before = test::address_space();
  BlockTable table(8 * kGiB, 1024 * kGiB, kAlignment, nullptr);
  PointerMap::add(&table);
  CHECK(test::address_space() - before < kMiB);
  table.prepare(500 * kGiB, kGiB);
  CHECK(test::address_space() - before < 32 * kMiB);
  CHECK(table.find(499 * kGiB) == nullptr && table.peek(500 * kGiB) == nullptr);
  PointerMap::remove(&table);
  CHECK(test::address_space() - before < kMiB);
}

TEST(regions_by_address) {
  BlockTable a(8 * kGiB, 2 * kGiB, kMiB, nullptr), b(10 * kGiB, kGiB, kAlignment, nullptr);
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

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
