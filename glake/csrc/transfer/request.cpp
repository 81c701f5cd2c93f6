#include "transfer/request.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "capi_guard.h"
#include "transfer/overlap.h"

namespace glake::transfer {
namespace {

constexpr Bytes kTrusted = kMiB;  // below it, ends that are named are not asked about

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
    parts.push_back({part.dst, part.src, part.bytes});
  }
  if (total == 0) bad("a copy of 0 bytes");
  return parts;
}

bool mapped(Address at) {
  const auto page = static_cast<Address>(sysconf(_SC_PAGESIZE));
  unsigned char resident = 0;
  return mincore(reinterpret_cast<void*>(round_down(at, page)), page, &resident) == 0;
}

// One end of a request, as the driver sees it.
struct End {
  Place place;
  bool pinned = true;
};

class Ends {
 public:
  Ends(Driver& driver, const char* name, int declared)
      : driver_(driver), name_(name), declared_(declared) {}

  // Where [at, at + bytes) is. Throws Error unless it is all in one place, the declared one. The
  // driver is asked once about each range it knows: blocks of a buffer share one.
  End look(Address at, Bytes bytes, bool written) {
    if (at < range_.begin || at + bytes > range_.end) {
      auto after = ranges_.upper_bound(at);
      if (after != ranges_.begin() && at + bytes <= std::prev(after)->second.end) {
        range_ = std::prev(after)->second;
      } else {
        return ask(at, bytes, written);
      }
    }
    return range_.where;
  }

 private:
  struct Range {
    Address begin = 0, end = 0;
    End where;
  };

  End ask(Address at, Bytes bytes, bool written) {
    const End first = look_at(at, written), last = look_at(at + bytes - 1, written);
    if (!(first.place == last.place)) {
      throw Error(GLAKE_INVALID_POINTER, std::string(name_) + " " + hex(at) + ": its " +
                                             std::to_string(bytes) +
                                             " bytes reach beyond the memory it is in");
    }
    return {first.place, first.pinned && last.pinned};
  }

  End look_at(Address at, bool written) {
    PointerFacts facts;
    const Status s = driver_.pointer_facts(at, &facts);
    if (!s.ok()) {
      throw Error(GLAKE_DRIVER_ERROR, "asking about " + hex(at) + ": " + driver_.describe(s));
    }
    using Kind = PointerFacts::Kind;
    End end;
    end.pinned = facts.kind != Kind::kUnregistered;
    const bool device = facts.kind == Kind::kDevice || facts.kind == Kind::kManaged;
    end.place.gpu = device ? facts.device : -1;
    if (!end.pinned && (declared_ >= 0 || !mapped(at))) {
      throw Error(GLAKE_INVALID_POINTER, std::string(name_) + " " + hex(at) +
                                             " is no memory the driver or this process knows");
    }
    if (declared_ != GLAKE_ASK && declared_ != std::max<int>(end.place.gpu, GLAKE_HOST)) {
      throw Error(GLAKE_INVALID_DEVICE, std::string(name_) + " " + hex(at) + " is " +
                                            where(end.place.gpu) + ", not " + where(declared_));
    }
    if (written && facts.read_only) {
      throw Error(GLAKE_INVALID_POINTER, "dst " + hex(at) + " may only be read");
    }
    if (facts.size != 0) remember({facts.base, facts.base + facts.size, end});
    return end;
  }

  // Joined with its neighbours, as the granules of a buffer are many.
  void remember(Range range) {
    auto same = [&](const Range& other) {
      return other.where.place == range.where.place && other.where.pinned == range.where.pinned;
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

  static std::string where(int gpu) {
    return gpu < 0 ? "host memory" : "memory of GPU " + std::to_string(gpu);
  }

  Driver& driver_;
  const char* name_;
  int declared_;
  Range range_;  // the last one
  std::map<Address, Range> ranges_;
};

End find_end(Driver& driver, const Parts& parts, int declared, bool dst, int context) {
  if (declared < GLAKE_ASK || declared >= driver.device_count()) {
    throw Error(GLAKE_INVALID_DEVICE, "no device " + std::to_string(declared) +
                                          ": the driver has " +
                                          std::to_string(driver.device_count()));
  }
  End end;
  end.place.gpu = std::max<int>(declared, GLAKE_HOST);
  if (declared != GLAKE_ASK && parts.total() < kTrusted) return end;
  DeviceScope scope(driver, context);
  if (!scope.status().ok()) {
    throw Error(GLAKE_DRIVER_ERROR, "a context: " + driver.describe(scope.status()));
  }
  Ends ends(driver, dst ? "dst" : "src", declared);
  for (size_t i = 0; i < parts.count(); ++i) {
    const Part& part = parts[i];
    const End found = ends.look(dst ? part.dst : part.src, part.bytes, dst);
    if (i == 0) end = found;
    if (!(found.place == end.place)) bad("the parts of one copy are between the same two places");
    end.pinned = end.pinned && found.pinned;
    // Of pageable blocks, about which nothing is known, the first ones and the last speak for all.
    if (!found.pinned && i >= 16 && parts.count() > 32) i = std::max(i, parts.count() - 17);
  }
  return end;
}

// What is read matters only in the memory that is written.
void refuse_overlap(const Parts& parts, bool apart) {
  std::vector<Span> spans;
  spans.reserve((apart ? 1 : 2) * parts.count());
  for (size_t i = 0; i < parts.count(); ++i) {
    const Part& part = parts[i];
    spans.push_back({part.dst, part.dst + part.bytes, true});
    if (!apart) spans.push_back({part.src, part.src + part.bytes, false});
  }
  const Address at = find_overlap(std::move(spans));
  if (at != 0) bad("source and destination overlap at " + hex(at));
}

constexpr Bytes kLooks = 8, kProbe = 16 * kKiB, kLeastStripe = kMiB;

// The socket of memory the system has on any of its NUMA nodes; kUnknownNode for memory of none, as
// a GPU's on Grace.
int socket_at(Driver& driver, const topology::Topology& topology, Address at, Bytes bytes) {
  int socket = kUnknownNode;
  driver.host_node(reinterpret_cast<const void*>(at), bytes, &socket, topology.node_sockets());
  return socket;
}

// Memory that changes socket every few MiB: where each stretch ends. Empty if it changes more often
// than that, or is not resident.
std::vector<Stripe> find_stripes(Driver& driver, const topology::Topology& topology, Address at,
                                 Bytes bytes) {
  std::vector<Stripe> stripes;
  Bytes length = 0;  // of the stripe before: the next is probably as long
  for (Bytes begin = 0; begin < bytes;) {
    const int node = socket_at(driver, topology, at + begin, std::min(kProbe, bytes - begin));
    if (node < 0) return {};
    // By one page: where a stripe ends, several are of no single socket.
    auto same = [&](Bytes offset) {
      return offset < bytes && socket_at(driver, topology, at + offset, 1) == node;
    };
    Bytes low = 0, high = length;
    if (length == 0 || !same(begin + length - kProbe) || same(begin + length)) {
      for (high = kLeastStripe; same(begin + high); high *= 2) low = high;
      while (high - low > 4 * kKiB) {
        const Bytes middle = low + (high - low) / 2;
        (same(begin + middle) ? low : high) = middle;
      }
      high = round_up(high, 4 * kKiB);
      if (high < kLeastStripe && begin != 0 && begin + high < bytes) return {};
      length = begin == 0 ? 0 : high;
    }
    begin = std::min(begin + high, bytes);
    stripes.push_back({begin, node});
  }
  return stripes;
}

// The socket of the host end; memory of no socket the topology has counts as spread.
void place_host(Driver& driver, const topology::Topology* topology, Request* request) {
  Place& host = request->dst.host() ? request->dst : request->src;
  if (!host.host() || topology == nullptr || topology->sockets() == 1) {
    host.node = topology == nullptr ? kSpread : 0;
    return;
  }
  const Part& part = request->parts[0];
  const Address at = request->dst.host() ? part.dst : part.src;
  host.node = socket_at(driver, *topology, at, part.bytes);
  // A majority may hide stripes.
  for (Bytes i = 1; i < kLooks && host.node >= 0; ++i) {
    // At no regular distance: stripes are regular.
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

Request make_request(Driver& driver, const topology::Topology* topology,
                     const glake_copy_request& given, int context) {
  if (given.size != sizeof(glake_copy_request)) {
    bad("glake_copy_request has " + std::to_string(sizeof(glake_copy_request)) +
        " bytes here, the caller's " + std::to_string(given.size));
  }
  if ((given.flags & ~(kDirect | kRelayed | kTracked | kChecksum)) != 0) bad("unknown copy flags");
  if ((given.flags & kDirect) != 0 && (given.flags & kChecksum) != 0) {
    bad("a plain copy (GLAKE_COPY_DIRECT) has no checksum");
  }
  Request request(Parts(read_parts(given)));
  const Parts& parts = request.parts;
  const End dst = find_end(driver, parts, given.dst_device, true, context);
  const End src = find_end(driver, parts, given.src_device, false, context);
  request.dst = dst.place;
  request.src = src.place;
  if (request.dst.host() && request.src.host()) {
    bad("both ends of the copy are host memory: that takes no GPU");
  }
  refuse_overlap(parts, request.dst.gpu != request.src.gpu);
  request.pageable = !dst.pinned || !src.pinned;
  request.flags = given.flags;
  request.ordered = given.ordered != 0;
  request.stream = request.ordered ? capi::handle(given.stream) : 0;
  request.stream_device = request.src.host() ? request.dst.gpu : request.src.gpu;
  if (request.ordered) request.stream_device = given.stream_device;
  request.also_ordered = given.also_ordered != 0;
  request.also_device = given.also_device;
  request.also_stream = capi::handle(given.also_stream);
  if (request.also_ordered && !request.ordered) bad("a second stream, and no first one");
  if (request.stream_device < 0 || request.stream_device >= driver.device_count()) {
    throw Error(GLAKE_INVALID_DEVICE,
                "no device " + std::to_string(request.stream_device) + " for the stream");
  }
  if (parts.total() < kTrusted) return request;
  place_host(driver, topology, &request);
  return request;
}

}  // namespace glake::transfer
