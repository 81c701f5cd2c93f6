#include "reduce.h"

#include <algorithm>
#include <type_traits>

#include "floats.h"

namespace nccl {
namespace {

constexpr struct {
  size_t width;
  const char* name;
} kTypes[] = {{1, "int8"},    {1, "uint8"},    {4, "int32"},       {4, "uint32"},
              {8, "int64"},   {8, "uint64"},   {2, "float16"},     {4, "float32"},
              {8, "float64"}, {2, "bfloat16"}, {1, "float8_e4m3"}, {1, "float8_e5m2"}};
constexpr int kTypeCount = sizeof kTypes / sizeof *kTypes;

// Signed integers wrap, as on a GPU.
template <class T, class Do>
T wrapping(T a, T b, Do&& act) {
  if constexpr (std::is_integral_v<T>) {
    using Unsigned = std::make_unsigned_t<T>;
    return static_cast<T>(act(static_cast<Unsigned>(a), static_cast<Unsigned>(b)));
  } else {
    return act(a, b);
  }
}

template <class T>
T smaller(T a, T b) {
  // As in CUDA, a NaN loses against a number.
  if constexpr (std::is_floating_point_v<T>) return std::fmin(a, b);
  return std::min(a, b);
}
template <class T>
T larger(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return std::fmax(a, b);
  return std::max(a, b);
}

template <class T>
T combine(int op, T a, T b) {
  switch (op) {
    case ncclProd:
      return wrapping(a, b, [](auto x, auto y) { return x * y; });
    case ncclMax:
      return larger(a, b);
    case ncclMin:
      return smaller(a, b);
    default:
      return wrapping(a, b, [](auto x, auto y) { return x + y; });
  }
}

// Works in chunks, so that partial results stay in the cache, and each loop reads one rank only.
template <class Format>
void fold(int op, const std::vector<const char*>& inputs, const double* scales, size_t count,
          char* out) {
  using Bits = typename Format::Bits;
  using T = decltype(Format::load(Bits{}));
  constexpr size_t kChunk = 4096;
  T sum[kChunk];
  for (size_t at = 0; at < count; at += kChunk) {
    const size_t n = std::min(kChunk, count - at);
    for (size_t r = 0; r < inputs.size(); ++r) {
      const Bits* in = reinterpret_cast<const Bits*>(inputs[r]) + at;
      const T scale = static_cast<T>(scales != nullptr ? scales[r] : 1);
      for (size_t i = 0; i < n; ++i) {
        T value = Format::load(in[i]);
        if (scales != nullptr) value = wrapping(value, scale, [](auto x, auto y) { return x * y; });
        sum[i] = r == 0 ? value : combine(op, sum[i], value);
      }
    }
    Bits* to = reinterpret_cast<Bits*>(out) + at;
    const T ranks = static_cast<T>(inputs.size());
    for (size_t i = 0; i < n; ++i) {
      if (op == ncclAvg) sum[i] = static_cast<T>(sum[i] / ranks);
      to[i] = Format::store(sum[i]);
    }
  }
}

}  // namespace

size_t width_of(int type) { return type >= 0 && type < kTypeCount ? kTypes[type].width : 0; }

const char* name_of_type(int type) {
  return type >= 0 && type < kTypeCount ? kTypes[type].name : "no type";
}

const char* name_of_op(int op) {
  constexpr const char* kNames[] = {"sum", "prod", "max", "min", "avg"};
  return op < 0 ? "no operation" : op < ncclNumOps ? kNames[op] : "pre-multiplied sum";
}

void reduce(int type, int op, const std::vector<const char*>& inputs, const double* scales,
            size_t count, char* out) {
  switch (type) {
    case ncclInt8:
      return fold<Plain<int8_t>>(op, inputs, scales, count, out);
    case ncclUint8:
      return fold<Plain<uint8_t>>(op, inputs, scales, count, out);
    case ncclInt32:
      return fold<Plain<int32_t>>(op, inputs, scales, count, out);
    case ncclUint32:
      return fold<Plain<uint32_t>>(op, inputs, scales, count, out);
    case ncclInt64:
      return fold<Plain<int64_t>>(op, inputs, scales, count, out);
    case ncclUint64:
      return fold<Plain<uint64_t>>(op, inputs, scales, count, out);
    case ncclFloat16:
      return fold<Half>(op, inputs, scales, count, out);
    case ncclFloat32:
      return fold<Plain<float>>(op, inputs, scales, count, out);
    case ncclFloat64:
      return fold<Plain<double>>(op, inputs, scales, count, out);
    case ncclBfloat16:
      return fold<Bfloat16>(op, inputs, scales, count, out);
    case ncclFloat8e4m3:
      return fold<E4m3>(op, inputs, scales, count, out);
    default:
      return fold<E5m2>(op, inputs, scales, count, out);
  }
}

double read_scalar(int type, const void* address) {
  const auto as = [&](auto format) -> double {
    typename decltype(format)::Bits bits;
    std::memcpy(&bits, address, sizeof bits);
    return static_cast<double>(decltype(format)::load(bits));
  };
  switch (type) {
    case ncclInt8:
      return as(Plain<int8_t>());
    case ncclUint8:
      return as(Plain<uint8_t>());
    case ncclInt32:
      return as(Plain<int32_t>());
    case ncclUint32:
      return as(Plain<uint32_t>());
    case ncclInt64:
      return as(Plain<int64_t>());
    case ncclUint64:
      return as(Plain<uint64_t>());
    case ncclFloat16:
      return as(Half());
    case ncclFloat32:
      return as(Plain<float>());
    case ncclFloat64:
      return as(Plain<double>());
    case ncclBfloat16:
      return as(Bfloat16());
    case ncclFloat8e4m3:
      return as(E4m3());
    default:
      return as(E5m2());
  }
}

}  // namespace nccl
