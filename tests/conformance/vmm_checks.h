// Checks of what glake relies on in virtual memory management.
#pragma once

#include "cuda_table.h"

inline void check_granularity() {
  const CUmemAllocationProp prop = device_memory(0);
  size_t minimum = 0, recommended = 0;
  OK(cu.cuMemGetAllocationGranularity(&minimum, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  OK(cu.cuMemGetAllocationGranularity(&recommended, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  TRUE(minimum > 0 && (minimum & (minimum - 1)) == 0);
  TRUE(recommended % minimum == 0);
  TRUE((size_t{2} << 20) % minimum == 0);
}

inline void check_unaligned_sizes_fail() {
  CUdeviceptr base = 0;
  FAILS(cu.cuMemAddressReserve(&base, granule / 2, 0, 0, 0));
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp prop = device_memory(0);
  FAILS(cu.cuMemCreate(&handle, granule + 512, &prop, 0));
  FAILS(cu.cuMemCreate(&handle, 0, &prop, 0));
}

inline void check_map_rules() {
  Range range(4 * granule);
  Memory memory, other;
  FAILS(cu.cuMemMap(range.base, granule, granule, memory.handle, 0));  // offset
  FAILS(cu.cuMemMap(range.base + 512, granule, 0, memory.handle, 0));  // unaligned address
  FAILS(cu.cuMemMap(range.base, granule / 2, 0, memory.handle, 0));    // unaligned size
  range.map(0, memory);
  FAILS(cu.cuMemMap(range.base, granule, 0, other.handle, 0));  // over a live mapping
  FAILS(cu.cuMemUnmap(range.base + granule, granule));          // nothing there
}

inline void check_aliasing() {
  Memory memory;
  Range first(granule), second(2 * granule);
  first.map(0, memory);
  second.map(granule, memory);
  first.grant(0, granule);
  second.grant(granule, granule);
  put_word(first.base + 64, 0xfeedbeef);
  TRUE(word_at(second.base + granule + 64) == 0xfeedbeef);
  put_word(second.base + granule + 64, 0x12345678);
  TRUE(word_at(first.base + 64) == 0x12345678);
}

inline void check_stitching() {
  constexpr int kCount = 4, kOrder[] = {2, 0, 3, 1};
  Memory a, b, c, d;
  Memory* all[] = {&a, &b, &c, &d};
  Range home(kCount * granule), view(kCount * granule);
  for (int i = 0; i < kCount; ++i) home.map(i * granule, *all[i]);
  for (int i = 0; i < kCount; ++i) view.map(i * granule, *all[kOrder[i]]);
  home.grant(0, kCount * granule);
  view.grant(0, kCount * granule);  // one call over four mappings
  Stream stream;
  OK(cu.cuMemsetD32Async(home.base, 0, kCount * granule / 4, stream));
  OK(cu.cuMemsetD32Async(view.base + granule / 2, 7, 3 * granule / 4, stream));
  OK(cu.cuStreamSynchronize(stream));
  TRUE(word_at(home.base + 2 * granule + granule / 2 - 4) == 0);  // right before what was set
  TRUE(word_at(home.base + 2 * granule + granule / 2) == 7);
  TRUE(word_at(home.base) == 7 && word_at(home.base + 3 * granule) == 7);
  TRUE(word_at(home.base + granule + granule / 2 - 4) == 7);
  TRUE(word_at(home.base + granule + granule / 2) == 0);
}

inline void check_release_of_mapped_memory() {
  Range range(granule);
  {
    Memory memory;
    range.map(0, memory);
    range.grant(0, granule);
    put_word(range.base, 99);
    OK(cu.cuMemRelease(memory.handle));
    memory.handle = 0;
  }
  TRUE(word_at(range.base) == 99);
}

inline void check_partial_unmap_fails() {
  Range range(2 * granule);
  Memory memory(2 * granule);
  range.map(0, memory);
  FAILS(cu.cuMemUnmap(range.base, granule));
  FAILS(cu.cuMemUnmap(range.base + granule, granule));
}

inline void check_one_unmap_takes_many_mappings() {
  Range range(3 * granule);
  Memory a, b, c;
  range.map(0, a);
  range.map(granule, b);
  range.map(2 * granule, c);
  range.unmap(0, 3 * granule);
  range.map(granule, a);
}

inline void check_access_over_a_hole_fails() {
  Range range(2 * granule);
  Memory memory;
  range.map(0, memory);
  CUmemAccessDesc desc{};
  desc.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  FAILS(cu.cuMemSetAccess(range.base, 2 * granule, &desc, 1));
}

inline void check_access_starts_and_ends_with_the_mapping() {
  Range range(granule);
  Memory memory;
  CUmemLocation here{};
  here.type = CU_MEM_LOCATION_TYPE_DEVICE;
  unsigned long long flags = 99;
  range.map(0, memory);
  OK(cu.cuMemGetAccess(&flags, &here, range.base));
  TRUE(flags == CU_MEM_ACCESS_FLAGS_PROT_NONE);
  range.grant(0, granule);
  OK(cu.cuMemGetAccess(&flags, &here, range.base));
  TRUE(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  range.unmap(0, granule);
  range.map(0, memory);
  OK(cu.cuMemGetAccess(&flags, &here, range.base));
  TRUE(flags == CU_MEM_ACCESS_FLAGS_PROT_NONE);
}

inline void check_free_of_a_live_reservation_fails() {
  Range range(granule);
  Memory memory;
  range.map(0, memory);
  FAILS(cu.cuMemAddressFree(range.base, granule));
}

inline void check_retained_handle() {
  Range range(granule), second(granule);
  Memory memory;
  range.map(0, memory);
  range.grant(0, granule);
  put_word(range.base, 41);
  CUmemGenericAllocationHandle again = 0;
  OK(cu.cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(range.base)));
  CUmemAllocationProp prop{};
  const CUresult known = cu.cuMemGetAllocationPropertiesFromHandle(&prop, again);
  const CUresult mapped = cu.cuMemMap(second.base, granule, 0, again, 0);
  if (mapped == CUDA_SUCCESS) second.mapped.push_back({second.base, granule});
  OK(cu.cuMemRelease(again));
  OK(known);
  OK(mapped);
  TRUE(prop.type == CU_MEM_ALLOCATION_TYPE_PINNED && prop.location.id == 0);
  second.grant(0, granule);
  TRUE(word_at(second.base) == 41);
}

inline void check_remapping_an_address() {
  Range range(granule);
  Memory a, b;
  range.map(0, a);
  range.grant(0, granule);
  put_word(range.base, 1);
  range.unmap(0, granule);
  range.map(0, b);
  range.grant(0, granule);
  put_word(range.base, 2);
  range.unmap(0, granule);
  range.map(0, a);
  range.grant(0, granule);
  TRUE(word_at(range.base) == 1);
}

inline void check_memory_accounting() {
  size_t before = 0, during = 0, after = 0, total = 0;
  OK(cu.cuMemGetInfo(&before, &total));
  {
    Memory memory(16 * granule);
    OK(cu.cuMemGetInfo(&during, &total));
  }
  OK(cu.cuMemGetInfo(&after, &total));
  TRUE(during + 16 * granule <= before);
  TRUE(after >= during + 16 * granule);
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp prop = device_memory(0);
  GIVES(CUDA_ERROR_OUT_OF_MEMORY,
        cu.cuMemCreate(&handle, (total / granule + 1) * granule, &prop, 0));
}

inline void check_reservation_alignment() {
  CUdeviceptr base = 0;
  const size_t alignment = 16 * granule;
  OK(cu.cuMemAddressReserve(&base, granule, alignment, 0, 0));
  const bool aligned = base % alignment == 0;
  OK(cu.cuMemAddressFree(base, granule));
  TRUE(aligned);
}
