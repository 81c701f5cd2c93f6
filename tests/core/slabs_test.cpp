// Slabs of records: small ones, then huge pages; what they hold, and what they give back.
#include "memory/slabs.h"

#include <sys/resource.h>

#include <set>

#include "address_space.h"
#include "harness.h"

using namespace glake;

namespace {

// A record that counts how many there are.
struct alignas(64) Record {
  static inline size_t alive = 0;
  size_t number = 0;
  char rest[500] = {};
  Record() { ++alive; }
  ~Record() { --alive; }
};
constexpr size_t kSmall = Tuning::kHugeSlabsFrom / sizeof(Record);  // in slabs from the heap
constexpr size_t kInHuge = HugePages::kBytes / sizeof(Record);
static_assert(kSmall % Tuning::kSlabRecords == 0, "the last small slab is full");

// Makes `count` more records, which have numbers from `from` on.
void fill(Slabs<Record>& slabs, size_t from, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    Record* record = slabs.make();
    CHECK(reinterpret_cast<Address>(record) % alignof(Record) == 0 && record->number == 0);
    record->number = from + i;
  }
}

// The records are those numbered 0 to count - 1, in the order in which they were made.
void holds(const Slabs<Record>& slabs, size_t count) {
  size_t seen = 0;
  std::set<const Record*> places;
  slabs.for_each([&](const Record& record) {
    CHECK(record.number == seen++);
    places.insert(&record);
  });
  CHECK(seen == count && places.size() == count && Record::alive == count);
}

TEST(small_then_huge) {
  {
    Slabs<Record> slabs;
    holds(slabs, 0);
    fill(slabs, 0, 1);
    holds(slabs, 1);
    fill(slabs, 1, kSmall - 1);
    holds(slabs, kSmall);
    CHECK(HugePages::mapped() == 0);
    fill(slabs, kSmall, 1);
    CHECK(HugePages::mapped() == HugePages::kBytes);
    holds(slabs, kSmall + 1);
    fill(slabs, kSmall + 1, 2 * kInHuge - 1);
    CHECK(HugePages::mapped() == 2 * HugePages::kBytes);
    fill(slabs, kSmall + 2 * kInHuge, 5);
    CHECK(HugePages::mapped() == 3 * HugePages::kBytes);
    holds(slabs, kSmall + 2 * kInHuge + 5);
  }
  CHECK(Record::alive == 0 && HugePages::mapped() == 0);
}

TEST(huge_pages_are_aligned_and_given_back) {
  const Bytes before = test::address_space();
  std::vector<void*> pages;
  for (int i = 0; i < 9; ++i) {
    void* page = HugePages::map();
    pages.push_back(page);
    CHECK(reinterpret_cast<Address>(page) % HugePages::kBytes == 0);
    const auto* bytes = static_cast<const unsigned char*>(page);
    CHECK(bytes[0] == 0 && bytes[HugePages::kBytes - 1] == 0);
    std::memset(page, i + 1, HugePages::kBytes);
  }
  CHECK(test::address_space() - before < 9 * HugePages::kBytes + kMiB);
  for (size_t i = 0; i < pages.size(); ++i) {
    const auto* bytes = static_cast<const unsigned char*>(pages[i]);
    CHECK(bytes[0] == i + 1 && bytes[HugePages::kBytes - 1] == i + 1);
    HugePages::unmap(pages[i]);
  }
  CHECK(HugePages::mapped() == 0 && test::address_space() - before < kMiB);
}

// The process has no room for one more huge page. Nothing is lost, and later there is room again.
TEST(no_host_memory) {
  Slabs<Record> slabs;
  fill(slabs, 0, kSmall);
  rlimit limit{};
  CHECK(getrlimit(RLIMIT_AS, &limit) == 0);
  rlimit low = limit;
  low.rlim_cur = test::address_space() + kMiB;
  CHECK(setrlimit(RLIMIT_AS, &low) == 0);
  for (int i = 0; i < 2; ++i) {
    bool refused = false;
    try {
      slabs.make();
    } catch (const std::bad_alloc&) {
      refused = true;
    }
    CHECK(refused && HugePages::mapped() == 0);
  }
  CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
  holds(slabs, kSmall);
  fill(slabs, kSmall, kInHuge + 1);
  holds(slabs, kSmall + kInHuge + 1);
  CHECK(HugePages::mapped() == 2 * HugePages::kBytes);
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
