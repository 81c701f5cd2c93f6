#include "transfer/call/request.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "base/transfer_tuning.h"
#include "driver/device_scope.h"
#include "memory/host_pool.h"
#include "transfer/buffers/host_access.h"
#include "transfer/call/overlap.h"

namespace glake::transfer {
namespace {

[[noreturn]] void bad(const std::string& text) { throw Error(GLAKE_INVALID_ARGUMENT, text); }

std::vector<Part> read_parts(const glake_copy_request& given) {
  if (given.parts == nullptr || given.count == 0) bad("a copy needs at least one part");
  std::vector<Part> parts;
  parts.reserve(given.count);
  Bytes total = 0;
  for (size_t i = 0; i < given.count; ++i) {
    const glake_copy_part& part = given.parts[i];
    total += part.bytes;
    if (part.bytes > kMaxRequest || total > kMaxRequest) {
      bad("a copy of " + std::to_string(part.bytes) + " bytes: one has 1 to " +
          std::to_string(kMaxRequest) + " bytes in all");
    }
    if (part.bytes != 0 && (part.dst == 0 || part.src == 0)) {
      throw Error(GLAKE_INVALID_POINTER, "part " + std::to_string(i) + " of a copy is at NULL");
    }
    if (part.bytes > UINT64_MAX - std::max(part.dst, part.src)) {
      throw Error(GLAKE_INVALID_POINTER,
                  "part " + std::to_string(i) + " of a copy reaches beyond the last address");
    }
    parts.push_back({part.dst, part.src, part.bytes});
  }
  if (total == 0) bad("a copy of 0 bytes");
  return parts;
}

// One end of a request, as the driver sees it.
struct End {
  Place place;
  bool pinned = true;
  bool known = false;
  bool peers = false;  // other GPUs may be given access
};

// The places of all parts at one end.
class Ends {
 public:
  Ends(Driver& driver, Allocator& allocator, const char* name, int declared, bool checked,
       int context)
      : driver_(driver),
        allocator_(allocator),
        name_(name),
        written_(name[0] == 'd'),
        declared_(declared),
        checked_(checked),
        context_(context),
        access_(written_) {}

  // Finds where the parts are. All must be in the declared place. For a small copy the declaration
  // is believed, unless a check is requested. Throws Error.
  End find(const glake_copy_request& given, bool small) {
    if (declared_ < GLAKE_ASK || declared_ >= driver_.device_count()) {
      throw Error(GLAKE_INVALID_DEVICE,
                  "no " + device_text(declared_) + ": the driver has " +
                      counted(static_cast<uint64_t>(driver_.device_count()), "device"));
    }
    End end;
    end.place.gpu = std::max<int>(declared_, GLAKE_HOST);
    if (declared_ != GLAKE_ASK && small && !checked_) {
      if (declared_ >= 0 && allocator_.any_paused()) refuse_paused(given);
      return end;
    }
    bool first = true;
    // Uses the parts as they are given, because neighbours that Parts joins may be of several
    // blocks.
    for (size_t i = 0; i < given.count; ++i) {
      const glake_copy_part& part = given.parts[i];
      if (part.bytes == 0) continue;
      const End found = look(at(part), part.bytes);
      if (first) end = found;
      first = false;
      if (!(found.place == end.place)) {
        bad("the parts of one copy are between the same two places");
      }
      end.pinned = end.pinned && found.pinned;
      end.peers = end.peers && found.peers;
      // The driver knows nothing of pageable blocks. The first and the last ones stand for all of
      // them.
      constexpr size_t kLooked = TransferTuning::kBlocksLooked;
      const bool few = given.count <= 2 * kLooked;
      if (found.pinned || i < kLooked || few || i >= given.count - kLooked - 1) continue;
      if (checked_) check_access(given);
      i = given.count - kLooked - 1;
    }
    return end;
  }

 private:
  Address at(const glake_copy_part& part) const { return written_ ? part.dst : part.src; }

  // For small copies, which are not checked any further.
  void refuse_paused(const glake_copy_request& given) {
    Owned owned;
    for (size_t i = 0; i < given.count; ++i) {
      const glake_copy_part& part = given.parts[i];
      if (part.bytes == 0 || at(part) - owned.begin < owned.bytes) continue;
      owned = allocator_.owned(at(part));
      refuse_paused(owned, at(part));
    }
  }

  void refuse_paused(const Owned& owned, Address at) const {
    if (owned.paused.empty()) return;
    throw Error(GLAKE_REGION_PAUSED, text(at) + " lies in " + owned.paused);
  }

  // Checks parts together if they are close to each other, because a call for each takes as long as
  // copying it.
  void check_access(const glake_copy_request& given) {
    Address begin = UINT64_MAX, end = 0;
    for (size_t i = 0; i < given.count; ++i) {
      const glake_copy_part& part = given.parts[i];
      if (part.bytes == 0) continue;
      begin = std::min(begin, at(part));
      end = std::max(end, at(part) + part.bytes);
    }
    if (end - begin <= TransferTuning::kOneCheck && access_.reach(begin, end - begin).end == end)
      return;
    for (size_t i = 0; i < given.count; ++i) check_access(at(given.parts[i]), given.parts[i].bytes);
  }

  // For pageable memory. Memory that may not be used would end the process, perhaps long after this
  // call.
  void check_access(Address at, Bytes bytes) {
    const Reach reach = access_.reach(at, bytes);
    if (reach.limit == Reach::Limit::kNone) return;
    if (reach.limit == Reach::Limit::kNoPage) {
      throw Error(GLAKE_INVALID_POINTER,
                  text(at) + ": the memory at " + hex(reach.end) +
                      " is mapped, but has no page (was a mapped file cut short?)");
    }
    if (reach.limit == Reach::Limit::kProtected) {
      throw Error(GLAKE_INVALID_POINTER, text(at) + ": the memory at " + hex(reach.end) +
                                             " may not be " + (written_ ? "written to" : "read") +
                                             ", as it is mapped (mmap, mprotect)");
    }
    if (reach.end == at) throw nobodys(at);
    throw Error(GLAKE_INVALID_POINTER, beyond(at, bytes, reach.end));
  }

  struct Range {
    Address begin = 0, end = 0;
    End where;
    bool block = false;  // a block of glake's
    bool holds(Address at, Bytes bytes) const {
      return at >= begin && at < end && bytes <= end - at;
    }
  };

  // Looks up each block of glake's, and each range that the driver knows, only once. The blocks of
  // a buffer have one range.
  End look(Address at, Bytes bytes) {
    if (range_.holds(at, bytes)) return range_.where;
    auto after = ranges_.upper_bound(at);
    if (after != ranges_.begin() && std::prev(after)->second.holds(at, bytes)) {
      range_ = std::prev(after)->second;
      return range_.where;
    }
    const Owned owned = allocator_.owned(at);
    return owned.device >= 0 ? in_block(owned, at, bytes) : ask(at, bytes);
  }

  End in_block(const Owned& owned, Address at, Bytes bytes) {
    if (owned.bytes == 0 && owned.pages) {
      throw Error(GLAKE_INVALID_POINTER, text(at) +
                                             " is in a page of a virtual range that is not backed: "
                                             "glake_virtual_back() first");
    }
    if (owned.bytes == 0) {
      throw Error(GLAKE_INVALID_POINTER, text(at) +
                                             " is in no live block of glake's: freed already, or "
                                             "never given out");
    }
    refuse_paused(owned, at);
    if (bytes > owned.bytes - (at - owned.begin)) {
      throw Error(GLAKE_INVALID_POINTER,
                  beyond(at, bytes, owned.begin + owned.bytes) +
                      (owned.pages ? " (backed pages of " : " (a block of ") +
                      std::to_string(owned.bytes) + " bytes at " + hex(owned.begin) + ")");
    }
    End end;
    end.place.gpu = owned.device;
    end.known = end.peers = true;
    check_place(at, end);
    range_ = ranges_[owned.begin] = {owned.begin, owned.begin + owned.bytes, end, true};
    return end;
  }

  End ask(Address at, Bytes bytes) {
    const PointerFacts facts = facts_of(at);
    const End first = judge(at, facts);
    if (range_.holds(at, bytes)) return first;
    // The next range may continue this one, as the granules of a buffer do.
    const Address last = at + bytes - 1;
    const PointerFacts more = facts_of(last);
    const bool whole = (more.kind == facts.kind && more.device == facts.device) ||
                       (is_host(more) && is_host(facts));
    const bool pageable = more.kind == PointerFacts::Kind::kUnregistered;
    if (!whole || (pageable && !checked_ && !mapped(last, 1))) {
      const Address end = facts.size != 0 ? facts.base + facts.size : 0;
      throw Error(GLAKE_INVALID_POINTER, beyond(at, bytes, end));
    }
    const End end = judge(last, more);
    const bool pinned = first.pinned && end.pinned && (!is_host(facts) || all_pinned(at, bytes));
    if (!pinned && checked_) check_access(at, bytes);
    return {first.place, pinned, true, first.peers && end.peers};
  }

  static bool is_host(const PointerFacts& facts) {
    using Kind = PointerFacts::Kind;
    return facts.kind == Kind::kHost || facts.kind == Kind::kUnregistered;
  }

  // Whether host memory that is pinned at both ends is also pinned in between. A driver refuses a
  // copy of memory with a hole.
  bool all_pinned(Address at, Bytes bytes) {
    for (const Address end = at + bytes; at < end;) {
      const PointerFacts facts = facts_of(at);
      if (!judge(at, facts).pinned) return false;
      // The driver does not say where the range ends.
      if (facts.size == 0) return true;
      at = facts.base + facts.size;
    }
    return true;
  }

  PointerFacts facts_of(Address at) {
    if (!scope_) scope_.emplace(driver_, context_);
    if (!scope_->status().ok()) {
      throw Error(GLAKE_DRIVER_ERROR, "a context: " + driver_.describe(scope_->status()));
    }
    PointerFacts facts;
    const Status s = driver_.pointer_facts(at, &facts, written_);
    if (!s.ok()) {
      throw Error(GLAKE_DRIVER_ERROR, "asking about " + hex(at) + ": " + driver_.describe(s));
    }
    return facts;
  }

  End judge(Address at, const PointerFacts& facts) {
    using Kind = PointerFacts::Kind;
    End end;
    end.known = true;
    end.pinned = facts.kind != Kind::kUnregistered;
    const bool device = facts.kind == Kind::kDevice || facts.kind == Kind::kManaged;
    end.place.gpu = device ? facts.device : -1;
    end.peers = device && !written_ && driver_.device_count() > 1 && driver_.peers_reach(at);
    if (!end.pinned && !mapped(at, 1)) throw nobodys(at);
    check_place(at, end);
    if (written_ && facts.read_only) {
      throw Error(GLAKE_INVALID_POINTER, text(at) + " may only be read");
    }
    if (facts.size != 0) remember({facts.base, facts.base + facts.size, end});
    return end;
  }

  void check_place(Address at, const End& end) const {
    if (declared_ == GLAKE_ASK || declared_ == std::max<int>(end.place.gpu, GLAKE_HOST)) return;
    throw Error(GLAKE_INVALID_DEVICE,
                text(at) + " is " + where(end.place.gpu) + ", not " + where(declared_));
  }

  // Joins the range with its neighbours, because a buffer has many granules.
  void remember(Range range) {
    auto same = [&](const Range& other) {
      return !other.block && other.where.place == range.where.place &&
             other.where.pinned == range.where.pinned && other.where.peers == range.where.peers;
    };
    auto next = ranges_.lower_bound(range.begin);
    if (next != ranges_.end() && next->first <= range.end && same(next->second)) {
      range.end = std::max(range.end, next->second.end);
      next = ranges_.erase(next);
    }
    if (next != ranges_.begin()) {
      auto before = std::prev(next);
      if (before->second.end >= range.begin && same(before->second)) {
        range.begin = before->first;
        range.end = std::max(range.end, before->second.end);
      }
    }
    range_ = ranges_[range.begin] = range;
  }

  Error nobodys(Address at) const {
    return {GLAKE_INVALID_POINTER, text(at) + " is no memory the driver or this process knows"};
  }
  std::string text(Address at) const { return std::string(name_) + " " + hex(at); }
  static std::string where(int gpu) {
    return gpu < 0 ? "host memory" : "memory of " + device_text(gpu);
  }
  // `end` is the end of the memory that holds `at`; 0: not known.
  std::string beyond(Address at, Bytes bytes, Address end) const {
    return text(at) + ": its " + std::to_string(bytes) + " bytes reach beyond the memory it is in" +
           (end != 0 ? ", which ends " + std::to_string(end - at) + " bytes on" : "");
  }

  Driver& driver_;
  Allocator& allocator_;
  const char* name_;
  bool written_;
  int declared_;
  bool checked_;
  int context_;
  HostAccess access_;
  std::optional<DeviceScope> scope_;  // open once the driver is asked
  Range range_;                       // the range that was found last
  std::map<Address, Range> ranges_;
};

// Throws Error if two destinations overlap, or a source and a destination do. Sources may overlap
// each other.
void refuse_overlap(const Parts& parts, bool apart) {
  std::vector<Access> accesses;
  accesses.reserve((apart ? 1 : 2) * parts.count());
  for (size_t i = 0; i < parts.count(); ++i) {
    const Part& part = parts[i];
    accesses.push_back({part.dst, part.dst + part.bytes, true});
    if (!apart) accesses.push_back({part.src, part.src + part.bytes, false});
  }
  const Overlap found = find_overlap(std::move(accesses));
  if (found.at == 0) return;
  if (found.written_twice) {
    bad("two destinations overlap at " + hex(found.at) + ": the parts of a copy have no order");
  }
  bad("source and destination overlap at " + hex(found.at));
}

// The socket on whose NUMA nodes most of the memory is. kUnknownNode if that node is of no socket,
// for example the node of a GPU's memory on Grace.
int socket_at(Driver& driver, const topology::Topology& topology, Address at, Bytes bytes) {
  int socket = kUnknownNode;
  driver.host_node(reinterpret_cast<const void*>(at), bytes, &socket, topology.node_sockets());
  return socket;
}

// Where each stretch ends in memory that changes its socket every few MiB. Empty if it changes more
// often, or is not resident.
std::vector<Stripe> find_stripes(Driver& driver, const topology::Topology& topology, Address at,
                                 Bytes bytes) {
  std::vector<Stripe> stripes;
  Bytes length = 0;  // of the stripe before; the next one probably has the same length
  for (Bytes begin = 0; begin < bytes;) {
    const int node =
        socket_at(driver, topology, at + begin, std::min(TransferTuning::kProbe, bytes - begin));
    if (node < 0) return {};
    // Asks about one page, because several pages at the end of a stripe may be on two sockets.
    auto same = [&](Bytes offset) {
      return offset < bytes && socket_at(driver, topology, at + offset, 1) == node;
    };
    Bytes low = 0, high = length;
    if (length == 0 || !same(begin + length - TransferTuning::kProbe) || same(begin + length)) {
      for (high = TransferTuning::kLeastStripe; same(begin + high); high *= 2) low = high;
      while (high - low > 4 * kKiB) {
        const Bytes middle = low + (high - low) / 2;
        (same(begin + middle) ? low : high) = middle;
      }
      high = round_up(high, 4 * kKiB);
      if (high < TransferTuning::kLeastStripe && begin != 0 && begin + high < bytes) return {};
      length = begin == 0 ? 0 : high;
    }
    begin = std::min(begin + high, bytes);
    stripes.push_back({begin, node});
  }
  return stripes;
}

// Sets the socket of the host end. Memory on a socket that the topology lacks counts as spread. To
// a single GPU there is one way from any socket, so the system is not asked.
void place_host(Driver& driver, const topology::Topology* topology, Request* request) {
  Place& host = request->dst.host() ? request->dst : request->src;
  const bool one_socket = topology != nullptr && topology->sockets() == 1;
  if (!host.host() || topology == nullptr || one_socket || topology->gpus() == 1) {
    host.node = one_socket ? 0 : kSpread;
    return;
  }
  const Part& part = request->parts[0];
  const Address at = request->dst.host() ? part.dst : part.src;
  host.node = socket_at(driver, *topology, at, part.bytes);
  // The answer is that of most pages, which may hide stripes. So a few single places are asked too.
  for (Bytes i = 1; i < TransferTuning::kLooks && host.node >= 0; ++i) {
    // The places are at irregular distances (multiples of the golden ratio). At regular distances
    // all of them could fall into stripes of one socket.
    const double turn = 0.6180339887 * static_cast<double>(i);
    const double part_of = (turn - std::floor(turn)) * static_cast<double>(part.bytes);
    const Address look = at + static_cast<Bytes>(part_of);
    if (socket_at(driver, *topology, look, 1) != host.node) host.node = kSpread;
  }
  if (host.node == kUnknownNode) host.node = kSpread;
  if (host.node != kSpread || request->parts.count() > 1) return;
  request->stripes = find_stripes(driver, *topology, at, part.bytes);
  if (!request->stripes.empty()) host.node = kStriped;
}

}  // namespace

Request make_request(Driver& driver, Allocator& allocator, const topology::Topology* topology,
                     const glake_copy_request& given, int context) {
  constexpr unsigned kChecks = kChecked | kCheckedDst | kCheckedSrc;
  constexpr unsigned kFlags = kDirect | kRelayed | kTracked | kChecksum | kChecks;
  if ((given.flags & ~kFlags) != 0) {
    bad("unknown copy flags " + hex(Address{given.flags & ~kFlags}) + ": glake.h has GLAKE_COPY_*");
  }
  if ((given.flags & kDirect) != 0 && (given.flags & kChecksum) != 0) {
    bad("a plain copy (GLAKE_COPY_DIRECT) has no checksum");
  }
  Request request(Parts(read_parts(given)));
  const Parts& parts = request.parts;
  const bool small = parts.total() < TransferTuning::kTrusted;
  const auto find = [&](const char* name, int device, unsigned flag) {
    const bool checked = (given.flags & (kChecked | flag)) != 0;
    return Ends(driver, allocator, name, device, checked, context).find(given, small);
  };
  const End dst = find("dst", given.dst_device, kCheckedDst),
            src = find("src", given.src_device, kCheckedSrc);
  request.dst = dst.place;
  request.src = src.place;
  if (request.dst.host() && request.src.host()) {
    bad("both ends of the copy are host memory: that takes no GPU");
  }
  refuse_overlap(parts, request.dst.gpu != request.src.gpu);
  request.known = dst.known && src.known;
  request.may_read = src.peers;
  request.pageable = !dst.pinned || !src.pinned;
  request.flags = given.flags;
  request.ordered = given.ordered != 0;
  request.stream = request.ordered ? stream_of(given.stream) : 0;
  request.stream_device = request.src.host() ? request.dst.gpu : request.src.gpu;
  if (request.ordered) request.stream_device = given.stream_device;
  request.also_ordered = given.also_ordered != 0;
  request.also_device = given.also_device;
  request.also_stream = stream_of(given.also_stream);
  if (request.also_ordered && !request.ordered) bad("a second stream, and no first one");
  if (request.stream_device < 0 || request.stream_device >= driver.device_count()) {
    throw Error(GLAKE_INVALID_DEVICE,
                "no " + device_text(request.stream_device) + " for the stream: the driver has " +
                    counted(static_cast<uint64_t>(driver.device_count()), "device"));
  }
  if (small) return request;
  place_host(driver, topology, &request);
  return request;
}

}  // namespace glake::transfer
