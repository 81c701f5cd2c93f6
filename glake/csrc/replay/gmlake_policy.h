// `gmlake`: a model of GMLake, PyTorch's caching allocator with stitching of 2 MiB granules. All
// requests above 1 MiB are whole granules. If no idle block of the stream is large enough, there
// are three ways, in this order. First, the smallest wholly idle stitched range of the stream
// serves the request with its front, if it is at most `reuse_limit` times as long. Second, a
// request of at least `frag_limit` takes the stream's idle blocks, the largest first and the last
// one cut, and maps their granules once more, side by side, into a new stitched range. Third,
// memory grows, with one handle for each granule. A granule keeps its first mapping. While a
// stitched range is in use, its memory counts as busy in the blocks that it came from. When the
// range is freed, the memory is idle in these blocks again. Ranges stay mapped when idle. A range
// ends when one of its granules is released. All idle ranges end when `auto_gc` bytes have been
// stitched. `gmlake:SIZE` sets `frag_limit`, as in `gmlake:64MiB`.
//
// Sources: C. Guo et al., "GMLake: Efficient and Transparent GPU Memory Defragmentation for
// Large-scale DNN Training with Virtual Memory Stitching", ASPLOS 2024; the project's tutorial and
// public source for PyTorch 2.0 (github.com/antgroup/glake, GMLake/), read for their rules. Paper
// and source differ: the paper chooses the best fit, the source takes the largest blocks first. The
// model follows the source. All code here is our own.
//
// Known differences, beside those of caching_policy.h: Mapping never fails. So the model has no
// garbage collection after such a failure, and no limit on the number of mappings. The option
// `reAlloc` is off, as by default. A stitched range in use may cover granules beyond the bytes in
// use. If such granules are given back, they are released at once, and the published code keeps all
// but one of them until the range is freed. Prices: create, map and set access for each granule,
// one reserve and one unmap for each range, one release for each granule; small segments as in
// `native`. The event recorded at each free and its queries cost nothing here. Close to its
// smallest capacity a trace may fit at one capacity, fail at a larger one, and fit again, several
// times.
#pragma once

#include <map>
#include <tuple>

#include "native_policy.h"

namespace glake::replay {

// The published defaults.
struct GmlakeKnobs {
  uint64_t frag_limit = 512 * kMiB;  // the smallest request that is stitched
  uint64_t reuse_limit = 10;  // an idle range may be at most this many times as long as the request
  int defrag_level = 0;       // 1: stitch only once growth has failed
  uint64_t auto_gc = 1000 * 1024 * kMiB;  // bytes stitched before idle ranges are dropped
};

// A stretch of granules. A granule's number is its address in its own segment, divided by the
// granule size.
struct GranuleRun {
  uint64_t first;
  uint64_t count;
};

struct StitchedRange {
  uint64_t bytes = 0;
  std::vector<GranuleRun> runs;
  uint64_t busy = 0;           // a granule that was busy at the last look, and most often still is
  std::vector<Block*> pieces;  // the memory under its block; empty if it is idle
  uint64_t freed_at = 0;
  bool doomed = false;  // memory beyond the user's bytes is gone, so it is not used again

  bool live() const { return !pieces.empty(); }
};

class GmlakePolicy : public NativePolicy {
 public:
  explicit GmlakePolicy(const PolicyConfig& config, const GmlakeKnobs& knobs = {});
  uint64_t allocate(uint64_t bytes, uint32_t stream) override;
  void check() const override;
  // Access is set separately for each handle.
  DriverCalls growth_calls(uint64_t bytes) const override {
    const uint64_t granules = round_up(bytes, kGranule) / kGranule;
    DriverCalls calls;
    for (const Call call : {Call::kCreate, Call::kMap, Call::kAccess}) {
      calls.add(call, kGranule, granules);
    }
    return calls;
  }

 protected:
  uint64_t rounded(uint64_t bytes) const override;
  bool should_split(const Pool& pool, uint64_t remaining) const override;
  Block* assemble(Pool& pool, uint32_t stream, uint64_t bytes, int attempt) override;
  Block* grow(Pool& pool, uint32_t stream, uint64_t bytes) override;
  void release_idle(Pool& pool) override;
  void make_idle(Block* block) override;

 private:
  enum class Granule : uint8_t { kIdle, kBusy, kGone };
  using Key = std::tuple<uint32_t, uint64_t, uint64_t>;  // stream, bytes, serial number
  using Ranges = std::map<Key, StitchedRange>;

  Block* reuse(Pool& pool, uint32_t stream, uint64_t bytes);
  Block* stitch(Pool& pool, uint32_t stream, uint64_t bytes);
  Block* take(Pool& pool, Block* idle, uint64_t begin, uint64_t end);
  Block* hand_out(StitchedRange& range, uint32_t stream, uint64_t bytes);
  bool wholly_idle(StitchedRange& range) const;
  void mark(const Block* block, Granule state);
  Ranges::iterator drop(Ranges::iterator range);
  void drop_idle_ranges();
  void drop_ranges_over_gone();

  const GmlakeKnobs knobs_;
  std::vector<Granule> granules_;  // by number
  Ranges ranges_;
  uint64_t ranges_made_ = 0;
  uint64_t stitched_bytes_ = 0;
};

}  // namespace glake::replay
