// Converts floating-point numbers of 8 and 16 bits from and to float, rounded to nearest even.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace nccl {

inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

struct Bfloat16 {
  using Bits = uint16_t;
  static float load(Bits bits) { return float_of(uint32_t{bits} << 16); }
  static Bits store(float value) {
    const uint32_t bits = bits_of(value);
    if (std::isnan(value)) return static_cast<Bits>((bits >> 16) | 0x40);
    return static_cast<Bits>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
};

// IEEE-like formats with `kExponent` and `kFraction` bits. kFinite: there are no infinities, all
// ones are NaN, and larger values become NaN (e4m3fn, as in OCP's "8-bit Floating Point
// Specification").
template <class BitsOf, int kExponent, int kFraction, bool kFinite>
struct Small {
  using Bits = BitsOf;
  static constexpr int kBias = (1 << (kExponent - 1)) - 1;
  static constexpr uint32_t kOnes = (1u << kExponent) - 1, kFractions = (1u << kFraction) - 1;
  static constexpr int kSign = kExponent + kFraction;
  static constexpr uint32_t kNan =
      (kOnes << kFraction) | (kFinite ? kFractions : 1u << (kFraction - 1));
  static constexpr uint32_t kLargest = kFinite ? kNan - 1 : (kOnes << kFraction) - 1;

  static float load(Bits bits) {
    const uint32_t size = bits & ((1u << kSign) - 1), sign = uint32_t{bits} >> kSign << 31;
    const bool special = kFinite ? size == kNan : size > kLargest;
    if (special)
      return float_of(sign | (!kFinite && size == kLargest + 1 ? 0x7f800000 : 0x7fc00000));
    // The bits become a float's exponent and fraction, and the product corrects the exponent. It is
    // exact, also for subnormal numbers.
    return float_of(bits_of(float_of(size << (23 - kFraction)) * std::ldexp(1.0f, 127 - kBias)) |
                    sign);
  }

  static Bits store(float value) {
    const uint32_t size = bits_of(value) & 0x7fffffff, sign = bits_of(value) >> 31 << kSign;
    if (size > 0x7f800000) return static_cast<Bits>(sign | kNan);
    uint32_t bits = 0;
    if (size < uint32_t{128 - kBias} << 23) {  // subnormal, in units of the last place
      bits =
          static_cast<uint32_t>(std::nearbyint(std::ldexp(float_of(size), kBias - 1 + kFraction)));
    } else {  // a carry of the rounding goes into the exponent
      constexpr int kShift = 23 - kFraction;
      const uint32_t even = (size >> kShift) & 1;
      bits = ((size + ((1u << (kShift - 1)) - 1) + even) >> kShift) -
             (uint32_t{127 - kBias} << kFraction);
    }
    if (bits > kLargest) bits = kFinite ? kNan : kOnes << kFraction;
    return static_cast<Bits>(sign | bits);
  }
};
using Half = Small<uint16_t, 5, 10, false>;
using E4m3 = Small<uint8_t, 4, 3, true>;
using E5m2 = Small<uint8_t, 5, 2, false>;

template <class T>
struct Plain {
  using Bits = T;
  static T load(T value) { return value; }
  static T store(T value) { return value; }
};

}  // namespace nccl
