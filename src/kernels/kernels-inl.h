// The kernels as templates, compiled once per instruction set by each *_kernels.cc.
//
// Every kernel is one loop: load a vector of each input in the accumulation type, combine them as a
// tree in registers, divide and round if it is the last step, store. What is left at the end goes
// through masks where the machine has them; where it has not, the same kernel runs once more on a
// copy that is a whole vector long.

#if defined(TUTTI_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TUTTI_KERNELS_INL_H_
#undef TUTTI_KERNELS_INL_H_
#else
#define TUTTI_KERNELS_INL_H_
#endif

#include <hwy/highway.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/table.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// AVX3 has masked loads and stores for lanes of every width that never touch what is masked off.
#undef TUTTI_HAVE_MASKS
#define TUTTI_HAVE_MASKS (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3)
// Where AVX2 is there is F16C: vcvtph2ps is exact and vcvtps2ph rounds to nearest even.
#undef TUTTI_HAVE_F16C
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
#define TUTTI_HAVE_F16C 1
#else
#define TUTTI_HAVE_F16C 0
#endif

/// One byte that is false or true; any nonzero byte counts as true.
struct Truth {
  std::uint8_t byte;
};

// ---- Elements in memory, and how they become lanes of the accumulation type

template <class T>
struct Element {
  using Lane = T;  // in memory
  using Sum = T;   // in registers
  template <class D, class V>
  static HWY_INLINE hn::Vec<D> widen(D, V lanes) {
    return lanes;
  }
  template <class D, class V>
  static HWY_INLINE V narrow(D, V lanes) {
    return lanes;
  }
};

template <>
struct Element<Truth> {
  using Lane = std::uint8_t;
  using Sum = std::uint8_t;
  template <class D, class V>
  static HWY_INLINE V widen(D d, V lanes) {
    return hn::Min(lanes, hn::Set(d, std::uint8_t{1}));
  }
  template <class D, class V>
  static HWY_INLINE V narrow(D, V lanes) {
    return lanes;
  }
};

template <>
struct Element<bfloat16> {
  using Lane = std::uint16_t;
  using Sum = float;
  template <class D, class V>
  static HWY_INLINE hn::Vec<D> widen(D d, V lanes) {
    const hn::RebindToUnsigned<D> du;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, lanes)));
  }
  template <class D>
  static HWY_INLINE auto narrow(D, hn::Vec<D> sums) {
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> di;
    const hn::Rebind<std::uint16_t, D> d16;
    const auto bits = hn::BitCast(du, sums);
    const auto upper = hn::ShiftRight<16>(bits);
    const auto odd = hn::And(upper, hn::Set(du, 1u));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu))));
    const auto quiet = hn::Or(upper, hn::Set(du, 0x40u));
    const auto result = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(sums)), quiet, rounded);
    return hn::DemoteTo(d16, hn::BitCast(di, result));
  }
};

template <>
struct Element<float16> {
  using Lane = std::uint16_t;
  using Sum = float;
#if TUTTI_HAVE_F16C
  template <class D, class V>
  static HWY_INLINE hn::Vec<D> widen(D d, V lanes) {
    return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), lanes));
  }
  template <class D>
  static HWY_INLINE auto narrow(D, hn::Vec<D> sums) {
    const hn::Rebind<std::uint16_t, D> d16;
    return hn::BitCast(d16, hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), sums));
  }
#else
  // Source: Fabian Giesen's float_to_half_fast3_rtne and half_to_float_fast5, public domain.
  template <class D, class V>
  static HWY_INLINE hn::Vec<D> widen(D d, V lanes) {
    const hn::RebindToUnsigned<D> du;
    const auto half = hn::PromoteTo(du, lanes);
    const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(du, 0x8000u)));
    const auto shifted = hn::ShiftLeft<13>(hn::And(half, hn::Set(du, 0x7fffu)));
    const auto exponent = hn::And(shifted, hn::Set(du, 0x0f800000u));
    const auto normal = hn::Add(shifted, hn::Set(du, 112u << 23));
    const auto special = hn::Add(normal, hn::Set(du, 112u << 23));
    const auto least = hn::Set(d, std::bit_cast<float>(113u << 23));
    const auto denormal =
        hn::BitCast(du, hn::Sub(hn::BitCast(d, hn::Add(normal, hn::Set(du, 1u << 23))), least));
    auto bits = hn::IfThenElse(hn::Eq(exponent, hn::Set(du, 0x0f800000u)), special, normal);
    bits = hn::IfThenElse(hn::Eq(exponent, hn::Zero(du)), denormal, bits);
    return hn::BitCast(d, hn::Or(bits, sign));
  }
  template <class D>
  static HWY_INLINE auto narrow(D d, hn::Vec<D> sums) {
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> di;
    const hn::Rebind<std::uint16_t, D> d16;
    const auto bits = hn::BitCast(du, sums);
    const auto sign = hn::And(bits, hn::Set(du, 0x80000000u));
    const auto magnitude = hn::Xor(bits, sign);
    const auto infinity = hn::Set(du, 0x7c00u);
    const auto special =
        hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(sums)), hn::Set(du, 0x7e00u), infinity);
    const auto magic = hn::Set(du, 126u << 23);  // adding it leaves ten bits below the point
    const auto denormal =
        hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(d, magnitude), hn::BitCast(d, magic))), magic);
    const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1u));
    const auto biased = hn::Sub(magnitude, hn::Set(du, (112u << 23) - 0xfffu));
    const auto normal = hn::ShiftRight<13>(hn::Add(biased, odd));
    // As signed: magnitudes have no sign bit.
    const auto size_of_it = hn::BitCast(di, magnitude);
    const auto large = hn::Gt(size_of_it, hn::Set(di, (143 << 23) - 1));
    const auto small = hn::Lt(size_of_it, hn::Set(di, 113 << 23));
    auto half = hn::IfThenElse(hn::RebindMask(du, small), denormal, normal);
    half = hn::IfThenElse(hn::RebindMask(du, large), special, half);
    half = hn::Or(half, hn::ShiftRight<16>(sign));
    return hn::DemoteTo(d16, hn::BitCast(di, half));
  }
#endif
};

/// All lanes of `d` at `from + at`, in the accumulation type.
template <class T, class D>
HWY_INLINE hn::Vec<D> load_all(D d, const void* from, std::size_t at) {
  using E = Element<T>;
  const hn::Rebind<typename E::Lane, D> dm;
  return E::widen(d, hn::LoadU(dm, static_cast<const typename E::Lane*>(from) + at));
}

#if TUTTI_HAVE_MASKS
/// The first `lanes` of them.
template <class T, class D>
HWY_INLINE hn::Vec<D> load_part(D d, const void* from, std::size_t at, std::size_t lanes) {
  using E = Element<T>;
  const hn::Rebind<typename E::Lane, D> dm;
  const auto* const begin = static_cast<const typename E::Lane*>(from) + at;
  return E::widen(d, hn::MaskedLoad(hn::FirstN(dm, lanes), dm, begin));
}
#endif

// ---- Operations

struct Sum {
  template <class D, class V>
  static HWY_INLINE V combine(D, V a, V b) {
    return hn::Add(a, b);
  }
};

struct Product {
  template <class D, class V>
  static HWY_INLINE V combine(D d, V a, V b) {
    using T = hn::TFromD<D>;
#if HWY_TARGET == HWY_SCALAR
    if constexpr (std::is_integral_v<T>) {  // in 64 bits: promotion to int could overflow
      return hn::Set(d, static_cast<T>(std::uint64_t{hn::GetLane(a)} * hn::GetLane(b)));
    }
#else
    if constexpr (sizeof(T) == 1) {  // no machine multiplies bytes: even and odd ones as pairs
      const hn::RepartitionToWide<D> dw;
      const auto even = hn::Mul(hn::BitCast(dw, a), hn::BitCast(dw, b));
      const auto odd =
          hn::Mul(hn::ShiftRight<8>(hn::BitCast(dw, a)), hn::ShiftRight<8>(hn::BitCast(dw, b)));
      const auto low = hn::And(even, hn::Set(dw, std::uint16_t{0xff}));
      return hn::BitCast(d, hn::Or(low, hn::ShiftLeft<8>(odd)));
    }
#endif
    else {
      return hn::Mul(a, b);
    }
  }
};

/// Minimum and maximum of floating types: -0 < +0, and NaN if either is one. The machine's own
/// instructions depend on the order of operands in both cases.
struct Min {
  template <class D, class V>
  static HWY_INLINE V combine(D, V a, V b) {
    if constexpr (hwy::IsFloat<hn::TFromD<D>>()) {
      const V least = hn::IfThenElse(hn::Eq(a, b), hn::Or(a, b), hn::Min(a, b));
      return hn::IfThenElse(hn::Or(hn::IsNaN(a), hn::IsNaN(b)), hn::Add(a, b), least);
    } else {
      return hn::Min(a, b);
    }
  }
};

struct Max {
  template <class D, class V>
  static HWY_INLINE V combine(D, V a, V b) {
    if constexpr (hwy::IsFloat<hn::TFromD<D>>()) {
      const V most = hn::IfThenElse(hn::Eq(a, b), hn::And(a, b), hn::Max(a, b));
      return hn::IfThenElse(hn::Or(hn::IsNaN(a), hn::IsNaN(b)), hn::Add(a, b), most);
    } else {
      return hn::Max(a, b);
    }
  }
};

struct And {
  template <class D, class V>
  static HWY_INLINE V combine(D, V a, V b) {
    return hn::And(a, b);
  }
};

struct Or {
  template <class D, class V>
  static HWY_INLINE V combine(D, V a, V b) {
    return hn::Or(a, b);
  }
};

struct Xor {
  template <class D, class V>
  static HWY_INLINE V combine(D, V a, V b) {
    return hn::Xor(a, b);
  }
};

/// What a kernel does to each input before, and to the result after: nothing, multiply, divide.
enum class Extra { none, scale, divide };

// ---- The kernel

/// Loads one vector of an input: all lanes, or the first `lanes`.
template <class In, Extra kExtra, bool kAll, class D>
struct Reader {
  D d;
  const void* const* inputs;
  hn::Vec<D> factor;
  std::size_t at;
  std::size_t lanes;

  HWY_INLINE hn::Vec<D> read(int input) const {
    hn::Vec<D> read_lanes;
#if TUTTI_HAVE_MASKS
    if constexpr (!kAll) {
      read_lanes = load_part<In>(d, inputs[input], at, lanes);
    } else
#endif
    {
      read_lanes = load_all<In>(d, inputs[input], at);
    }
    if constexpr (kExtra == Extra::scale) read_lanes = hn::Mul(read_lanes, factor);
    return read_lanes;
  }
};

template <class Op, int kFirst, int kCount, class R>
HWY_INLINE auto tree(const R& reader) {
  if constexpr (kCount == 1) {
    return reader.read(kFirst);
  } else {
    constexpr int kLower = static_cast<int>(std::bit_floor(static_cast<unsigned>(kCount - 1)));
    const auto lower = tree<Op, kFirst, kLower>(reader);
    const auto upper = tree<Op, kFirst + kLower, kCount - kLower>(reader);
    return Op::combine(reader.d, lower, upper);
  }
}

template <class In, class Out, class Op, Extra kExtra, int kCount>
void fuse(const Args& args) {
  using S = typename Element<In>::Sum;
  using OutLane = typename Element<Out>::Lane;
  const hn::ScalableTag<S> d;
  using D = decltype(d);
  const hn::Rebind<OutLane, D> d_out;
  const std::size_t lanes = hn::Lanes(d);
  const auto factor = hn::Set(d, static_cast<S>(kExtra == Extra::scale ? args.factor : 1));
  const auto divisor = hn::Set(d, static_cast<S>(kExtra == Extra::divide ? args.divisor : 1));
  auto* const out = static_cast<OutLane*>(args.out);
  auto* const out2 = static_cast<OutLane*>(args.out2);
  const void* inputs[kCount];
  for (int i = 0; i < kCount; ++i) inputs[i] = args.inputs[i];

  std::size_t at = 0;
  for (; at + lanes <= args.count; at += lanes) {
    auto sums = tree<Op, 0, kCount>(Reader<In, kExtra, true, D>{d, inputs, factor, at, lanes});
    if constexpr (kExtra == Extra::divide) sums = hn::Div(sums, divisor);
    const auto result = Element<Out>::narrow(d, sums);
    hn::StoreU(result, d_out, out + at);
    if (out2 != nullptr) hn::StoreU(result, d_out, out2 + at);
  }
  if (at == args.count) return;
#if TUTTI_HAVE_MASKS
  const std::size_t rest = args.count - at;
  const auto mask = hn::FirstN(d_out, rest);
  auto sums = tree<Op, 0, kCount>(Reader<In, kExtra, false, D>{d, inputs, factor, at, rest});
  if constexpr (kExtra == Extra::divide) sums = hn::Div(sums, divisor);
  const auto result = Element<Out>::narrow(d, sums);
  hn::BlendedStore(result, mask, d_out, out + at);
  if (out2 != nullptr) hn::BlendedStore(result, mask, d_out, out2 + at);
#else
  run_tail({args, fuse<In, Out, Op, kExtra, kCount>, kCount, at, lanes,
            sizeof(typename Element<In>::Lane), sizeof(OutLane)});
#endif
}

// ---- Tables

/// One input: what the operation is does not matter unless it scales.
template <class In, class Out, Extra kExtra = Extra::none>
constexpr Kernel alone() {
  constexpr Extra kAlone = kExtra == Extra::scale ? kExtra : Extra::none;
  return fuse<In, Out, Sum, kAlone, 1>;
}

/// All widths for what training does all day; few, from which trees are composed, for the rest.
template <class In, class Out, class Op, Extra kExtra = Extra::none>
constexpr ByWidth all_widths() {
  return {{nullptr, alone<In, Out, kExtra>(), fuse<In, Out, Op, kExtra, 2>,
           fuse<In, Out, Op, kExtra, 3>, fuse<In, Out, Op, kExtra, 4>, nullptr, nullptr, nullptr,
           fuse<In, Out, Op, kExtra, 8>}};
}
template <class In, class Out, class Op, Extra kExtra = Extra::none>
constexpr ByWidth some_widths() {
  return {{nullptr, alone<In, Out, kExtra>(), fuse<In, Out, Op, kExtra, 2>, nullptr,
           fuse<In, Out, Op, kExtra, 4>}};
}
template <class In, class Out, class Op, Extra kExtra = Extra::none>
constexpr ByWidth two_widths() {
  return {{nullptr, alone<In, Out, kExtra>(), fuse<In, Out, Op, kExtra, 2>}};
}

/// For types that are accumulated in themselves.
constexpr Table table_of(const ByWidth& kernels) {
  return {kernels, kernels, kernels, kernels.of[2], kernels.of[1]};
}

/// That of `kind` among the tables of a type of real numbers; null: not defined for them.
template <class Tables>
const Table* table_in(ReduceOp::Kind kind) {
  switch (kind) {
    case ReduceOp::Kind::sum:
      return &Tables::kSum;
    case ReduceOp::Kind::product:
      return &Tables::kProduct;
    case ReduceOp::Kind::min:
      return &Tables::kMin;
    case ReduceOp::Kind::max:
      return &Tables::kMax;
    case ReduceOp::Kind::avg:
      return &Tables::kAvg;
    case ReduceOp::Kind::premul_sum:
      return &Tables::kPremulSum;
    case ReduceOp::Kind::band:
    case ReduceOp::Kind::bor:
    case ReduceOp::Kind::bxor:
      return nullptr;
  }
  return nullptr;
}

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
