// The vocabulary every part of Tutti shares: element types, reduce operations, buffers, call sites.
#pragma once

#include <array>
#include <bit>
#include <chrono>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#if defined(TUTTI_STATIC)
#define TUTTI_API
#else
#define TUTTI_API [[gnu::visibility("default")]]
#endif

namespace tutti {

/// IEEE 754 binary16, as bits. Converts to and from float, rounding to nearest even.
struct float16 {
  std::uint16_t bits = 0;
  float16() = default;
  TUTTI_API explicit float16(float value) noexcept;
  TUTTI_API explicit operator float() const noexcept;
  static float16 from_bits(std::uint16_t bits) noexcept {
    float16 half;
    half.bits = bits;
    return half;
  }
};

/// bfloat16 (the upper half of a binary32), as bits. Converts rounding to nearest even.
struct bfloat16 {
  std::uint16_t bits = 0;
  bfloat16() = default;
  TUTTI_API explicit bfloat16(float value) noexcept;
  TUTTI_API explicit operator float() const noexcept;
  static bfloat16 from_bits(std::uint16_t bits) noexcept {
    bfloat16 half;
    half.bits = bits;
    return half;
  }
};

/// The 8-bit floating types of OCP (E4M3: no infinities), as bits: moved, never computed with.
struct float8_e4m3 {
  std::uint8_t bits = 0;
};
struct float8_e5m2 {
  std::uint8_t bits = 0;
};

/// Element type of a buffer. The numeric values are part of the wire format: append only.
enum class DType : std::uint8_t {
  bool_,
  u8,
  i8,
  i16,
  i32,
  i64,
  u16,
  u32,
  u64,
  f16,
  bf16,
  f32,
  f64,
  complex64,   ///< std::complex<float>
  complex128,  ///< std::complex<double>
  f8_e4m3,
  f8_e5m2,
};
inline constexpr std::size_t kDTypeCount = 17;

TUTTI_API std::string_view name_of(DType dtype) noexcept;  ///< "f32"

/// Bytes of one element.
constexpr std::size_t size_of(DType dtype) noexcept {
  constexpr std::uint8_t kBytes[kDTypeCount] = {1, 1, 1, 2, 4, 8, 2, 4, 8, 2, 2, 4, 8, 8, 16, 1, 1};
  return kBytes[static_cast<std::size_t>(dtype)];
}
/// f16 bf16 f32 f64.
constexpr bool is_floating(DType dtype) noexcept {
  return dtype >= DType::f16 && dtype <= DType::f64;
}
constexpr bool is_complex(DType dtype) noexcept {
  return dtype == DType::complex64 || dtype == DType::complex128;
}
constexpr bool is_float8(DType dtype) noexcept {
  return dtype == DType::f8_e4m3 || dtype == DType::f8_e5m2;
}

/// How elements are combined: a kind, and for premul_sum the factor each input is multiplied by.
///
///     group.all_reduce(x, ReduceOp::avg);
///     group.all_reduce(x, ReduceOp::premul_sum(0.5));
///
/// Numerics  One canonical order of additions on every layout: docs/numerics.md.
class ReduceOp {
 public:
  enum class Kind : std::uint8_t { sum, product, min, max, avg, premul_sum, band, bor, bxor };
  static const ReduceOp sum, product, min, max, avg, band, bor, bxor;
  static constexpr ReduceOp premul_sum(double factor) noexcept {
    return ReduceOp(Kind::premul_sum, factor);
  }

  constexpr Kind kind() const noexcept { return kind_; }
  constexpr double factor() const noexcept { return factor_; }
  friend constexpr bool operator==(const ReduceOp&, const ReduceOp&) = default;

 private:
  friend struct Request;
  constexpr explicit ReduceOp(Kind kind, double factor = 1.0) noexcept
      : kind_(kind), factor_(factor) {}
  Kind kind_;
  double factor_;
};
inline constexpr ReduceOp ReduceOp::sum{Kind::sum};
inline constexpr ReduceOp ReduceOp::product{Kind::product};
inline constexpr ReduceOp ReduceOp::min{Kind::min};
inline constexpr ReduceOp ReduceOp::max{Kind::max};
inline constexpr ReduceOp ReduceOp::avg{Kind::avg};
inline constexpr ReduceOp ReduceOp::band{Kind::band};
inline constexpr ReduceOp ReduceOp::bor{Kind::bor};
inline constexpr ReduceOp ReduceOp::bxor{Kind::bxor};
inline constexpr std::size_t kReduceKindCount = 9;

TUTTI_API std::string_view name_of(ReduceOp::Kind kind) noexcept;  ///< "premul_sum"

/// The operations a group offers. The numeric values are part of the wire format: append only.
enum class Op : std::uint8_t {
  send,
  recv,
  broadcast,
  all_reduce,
  reduce,
  gather,
  all_gather,
  scatter,
  reduce_scatter,
  all_to_all,
  barrier,
  scan,
  exscan,
};
inline constexpr std::size_t kOpCount = 13;
TUTTI_API std::string_view name_of(Op op) noexcept;  ///< "all_reduce"
constexpr bool is_message(Op op) noexcept { return op == Op::send || op == Op::recv; }
/// Whether it combines elements, so that its ReduceOp matters.
constexpr bool reduces(Op op) noexcept {
  return op == Op::all_reduce || op == Op::reduce || op == Op::reduce_scatter || op == Op::scan ||
         op == Op::exscan;
}

/// Where a buffer's memory lives. Only the CPU in this version.
struct Device {
  enum class Kind : std::uint8_t { cpu, cuda };
  Kind kind = Kind::cpu;
  std::int16_t index = 0;
  friend constexpr bool operator==(const Device&, const Device&) = default;
};

/// Queue that an operation on a device is ordered with; null on the CPU.
struct Stream {
  void* handle = nullptr;
};

/// A span of time that starts to run when somebody first looks at the clock: the fast path of an
/// operation never does.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;
  constexpr Deadline() = default;  ///< never
  static constexpr Deadline after(std::chrono::nanoseconds budget) noexcept {
    Deadline deadline;
    deadline.budget_ = budget;
    return deadline;
  }
  /// A deadline whose clock runs already.
  static Deadline at(Clock::time_point end) noexcept {
    Deadline deadline;
    deadline.end_ = end;
    return deadline;
  }
  /// Starts the clock unless it runs.
  void start(Clock::time_point now) noexcept {
    if (end_ != Clock::time_point{} || budget_ == kNever) return;
    const bool beyond = budget_ > Clock::time_point::max() - now;
    end_ = beyond ? Clock::time_point::max() : now + budget_;
  }
  bool expired(Clock::time_point now) noexcept {
    start(now);
    return end_ != Clock::time_point{} && now >= end_;
  }
  /// Time left, counted from the first look; std::chrono::nanoseconds::max() for never.
  std::chrono::nanoseconds left(Clock::time_point now) noexcept {
    start(now);
    if (end_ == Clock::time_point{}) return kNever;
    return end_ > now ? std::chrono::nanoseconds(end_ - now) : std::chrono::nanoseconds(0);
  }
  std::chrono::nanoseconds budget() const noexcept { return budget_; }

 private:
  static constexpr std::chrono::nanoseconds kNever = std::chrono::nanoseconds::max();
  std::chrono::nanoseconds budget_ = kNever;
  Clock::time_point end_ = {};
};

/// What a part of the library does an operation for on a user's behalf. Ranks must agree in it, and
/// messages show it beside the operation.
struct Purpose {
  std::uint64_t key = 0;  ///< the same on all ranks: part of the group's chain
  std::string text;       ///< "bucket 1 of 2 of DistributedDataParallel 1 (train.cc:80)"
};

/// The line of user code that made a call. Default argument of every public operation.
struct Where {
  const char* file = "";
  int line = 0;
  const Purpose* purpose = nullptr;  ///< null: the call's own; outlives the operation
  static constexpr Where current(const char* file = __builtin_FILE(),
                                 int line = __builtin_LINE()) noexcept {
    return {file, line};
  }
};
TUTTI_API std::string name_of(const Where& where);  ///< "train.cc:88"; "" if unknown
/// " for bucket 1 of 2 of ..."; "" if there is no purpose.
TUTTI_API std::string purpose_of(const Where& where);

namespace detail {
template <class T>
consteval int dtype_index() {
  using U = std::remove_cv_t<T>;
  if (std::is_same_v<U, bool>) return static_cast<int>(DType::bool_);
  if (std::is_same_v<U, float16>) return static_cast<int>(DType::f16);
  if (std::is_same_v<U, bfloat16>) return static_cast<int>(DType::bf16);
  if (std::is_same_v<U, float>) return static_cast<int>(DType::f32);
  if (std::is_same_v<U, double>) return static_cast<int>(DType::f64);
  if (std::is_same_v<U, std::complex<float>>) return static_cast<int>(DType::complex64);
  if (std::is_same_v<U, std::complex<double>>) return static_cast<int>(DType::complex128);
  if (std::is_same_v<U, float8_e4m3>) return static_cast<int>(DType::f8_e4m3);
  if (std::is_same_v<U, float8_e5m2>) return static_cast<int>(DType::f8_e5m2);
  if (std::is_integral_v<U> || std::is_same_v<U, std::byte>) {
    const bool is_signed = std::is_integral_v<U> && std::is_signed_v<U>;
    const DType dtypes[2][4] = {{DType::u8, DType::u16, DType::u32, DType::u64},
                                {DType::i8, DType::i16, DType::i32, DType::i64}};
    const int log2_size = std::countr_zero(sizeof(U));
    if (log2_size < 4) return static_cast<int>(dtypes[is_signed ? 1 : 0][log2_size]);
  }
  return -1;
}
}  // namespace detail

/// A C++ type that has a DType: bool, the integers, float16, bfloat16, float, double,
/// std::complex of the last two, float8_e4m3, float8_e5m2.
template <class T>
concept Element = detail::dtype_index<T>()
>= 0;
template <Element T>
inline constexpr DType dtype_of = static_cast<DType>(detail::dtype_index<T>());

/// Tells Buffer how to see a foreign type (`<tutti/torch.h>` specialises it for tensors):
/// `static Buffer buffer(T&)` and `static ConstBuffer const_buffer(const T&)`.
template <class T>
struct BufferTraits;

/// Extends the life of what a buffer points into, for asynchronous calls on owning types.
using Retain = std::shared_ptr<const void> (*)(const void* source);

/// One contiguous run of `count` elements that an operation reads.
/// Made from spans, vectors, scalars, and what BufferTraits knows; never owns.
///
/// Lifetime  The memory must stay valid until the call returns, or for an asynchronous call until
///           its Work is done. Types with a Retain (tensors) are kept alive by the Work.
struct ConstBuffer {
  const void* data = nullptr;
  std::size_t count = 0;
  DType dtype = DType::u8;
  Device device = {};
  const void* source = nullptr;
  Retain retain = nullptr;
  bool is_temporary = false;  ///< gone with the call: asynchronous calls refuse it

  constexpr ConstBuffer() = default;
  constexpr ConstBuffer(const void* data_in, std::size_t count_in, DType dtype_in,
                        Device device_in = {}, const void* source_in = nullptr,
                        Retain retain_in = nullptr)
      : data(data_in),
        count(count_in),
        dtype(dtype_in),
        device(device_in),
        source(source_in),
        retain(retain_in) {}
  template <Element T>
  constexpr ConstBuffer(const T& scalar) : ConstBuffer(&scalar, 1, dtype_of<T>) {}
  template <Element T>
  constexpr ConstBuffer(const T&& scalar) : ConstBuffer(scalar) {
    is_temporary = true;
  }
  template <Element T, std::size_t N>
  constexpr ConstBuffer(std::span<T, N> run) : ConstBuffer(run.data(), run.size(), dtype_of<T>) {}
  template <Element T, class A>
  constexpr ConstBuffer(const std::vector<T, A>& run)
      : ConstBuffer(run.data(), run.size(), dtype_of<T>) {}
  template <Element T, class A>
  constexpr ConstBuffer(const std::vector<T, A>&& run) : ConstBuffer(run) {
    is_temporary = true;
  }
  template <Element T, std::size_t N>
  constexpr ConstBuffer(const std::array<T, N>& run) : ConstBuffer(run.data(), N, dtype_of<T>) {}
  template <Element T, std::size_t N>
  constexpr ConstBuffer(const std::array<T, N>&& run) : ConstBuffer(run) {
    is_temporary = true;
  }
  template <class T>
    requires requires(const T& value) { BufferTraits<T>::const_buffer(value); }
  ConstBuffer(const T& value) : ConstBuffer(BufferTraits<T>::const_buffer(value)) {}

  std::size_t byte_count() const noexcept { return count * size_of(dtype); }
};

/// One contiguous run of `count` elements that an operation writes (and may read).
struct Buffer {
  void* data = nullptr;
  std::size_t count = 0;
  DType dtype = DType::u8;
  Device device = {};
  const void* source = nullptr;
  Retain retain = nullptr;

  constexpr Buffer() = default;
  constexpr Buffer(void* data_in, std::size_t count_in, DType dtype_in, Device device_in = {},
                   const void* source_in = nullptr, Retain retain_in = nullptr)
      : data(data_in),
        count(count_in),
        dtype(dtype_in),
        device(device_in),
        source(source_in),
        retain(retain_in) {}
  template <Element T>
    requires(!std::is_const_v<T>)
  constexpr Buffer(T& scalar) : Buffer(&scalar, 1, dtype_of<T>) {}
  template <Element T, std::size_t N>
    requires(!std::is_const_v<T>)
  constexpr Buffer(std::span<T, N> run) : Buffer(run.data(), run.size(), dtype_of<T>) {}
  template <Element T, class A>
  constexpr Buffer(std::vector<T, A>& run) : Buffer(run.data(), run.size(), dtype_of<T>) {}
  template <Element T, std::size_t N>
  constexpr Buffer(std::array<T, N>& run) : Buffer(run.data(), N, dtype_of<T>) {}
  template <class T>
    requires requires(T& value) { BufferTraits<std::remove_cvref_t<T>>::buffer(value); }
  Buffer(T&& value) : Buffer(BufferTraits<std::remove_cvref_t<T>>::buffer(value)) {}

  constexpr operator ConstBuffer() const { return {data, count, dtype, device, source, retain}; }
  std::size_t byte_count() const noexcept { return count * size_of(dtype); }
};

/// Tag that makes a call asynchronous: `Work work = group.all_reduce(x, tutti::async);`
struct Async {
  explicit constexpr Async(int) {}  // not from {}, which always means the options
};
inline constexpr Async async{0};

}  // namespace tutti
