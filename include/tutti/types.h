// The vocabulary every part of Tutti shares: element types, reduce operations, times, call sites.
#pragma once

#include <chrono>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <ratio>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

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

namespace detail {
inline constexpr std::uint8_t kElementBytes[kDTypeCount] = {1, 1, 1, 2, 4, 8,  2, 4, 8,
                                                            2, 2, 4, 8, 8, 16, 1, 1};
}
/// Bytes of one element.
constexpr std::size_t size_of(DType dtype) noexcept {
  return detail::kElementBytes[static_cast<std::size_t>(dtype)];
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

struct AllReduceOptions;  // tutti/collectives.h
struct ReduceOptions;

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
  /// Stands for the options that are not given: `reduce(x, ReduceOp::max)`.
  constexpr operator AllReduceOptions() const noexcept;
  constexpr operator ReduceOptions() const noexcept;
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
  exclusive_scan,
};
inline constexpr std::size_t kOpCount = 13;
TUTTI_API std::string_view name_of(Op op) noexcept;  ///< "all_reduce"
constexpr bool is_message(Op op) noexcept { return op == Op::send || op == Op::recv; }
/// Whether it combines elements, so that its ReduceOp matters.
constexpr bool reduces(Op op) noexcept {
  return op == Op::all_reduce || op == Op::reduce || op == Op::reduce_scatter || op == Op::scan ||
         op == Op::exclusive_scan;
}

/// Where a buffer's memory lives.
struct Device {
  enum class Kind : std::uint8_t { cpu, cuda };
  Kind kind = Kind::cpu;
  std::int16_t index = 0;  ///< among the devices that this process sees; 0 on the CPU
  friend constexpr bool operator==(const Device&, const Device&) = default;
};

TUTTI_API std::string name_of(const Device& device);  ///< "cpu", "cuda:1"

/// Queue of a device that an operation is ordered with: a cudaStream_t. Null: CUDA's default
/// stream; on the CPU it means nothing.
struct Stream {
  void* handle = nullptr;
};

/// How long something may take; empty: as long as is usual there. From any std::chrono duration,
/// rounded up to nanoseconds; what those cannot hold is for ever.
class Timeout : public std::optional<std::chrono::nanoseconds> {
 public:
  using Nanoseconds = std::chrono::nanoseconds;
  constexpr Timeout() = default;
  constexpr Timeout(std::nullopt_t) {}
  constexpr Timeout(std::optional<Nanoseconds> time) : optional(time) {}
  template <class Rep, class Period>
  constexpr Timeout(std::chrono::duration<Rep, Period> time) : optional(nanoseconds(time)) {}
  template <class Number>
    requires std::is_arithmetic_v<Number>
  constexpr Timeout(Number) {
    static_assert(!std::is_arithmetic_v<Number>,
                  "tutti: a time needs a unit: std::chrono::seconds(5), or 5s and 300ms with "
                  "`using namespace std::chrono_literals`");
  }

 private:
  template <class Duration>
  static constexpr Nanoseconds nanoseconds(Duration time) {
    if constexpr (std::is_convertible_v<Duration, Nanoseconds> &&
                  std::is_same_v<typename Duration::period, std::nano>) {
      return time;
    } else {
      const auto exact = std::chrono::duration<long double, std::nano>(time).count();
      constexpr auto kMost = static_cast<long double>(Nanoseconds::max().count());
      if (!(exact > -kMost)) return Nanoseconds::min();
      return exact < kMost ? std::chrono::ceil<Nanoseconds>(time) : Nanoseconds::max();
    }
  }
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
  /// When it expires, counted from the first look; Clock::time_point::max() for never.
  Clock::time_point end(Clock::time_point now) noexcept {
    start(now);
    return end_ == Clock::time_point{} ? Clock::time_point::max() : end_;
  }
  std::chrono::nanoseconds budget() const noexcept { return budget_; }

 private:
  static constexpr std::chrono::nanoseconds kNever = std::chrono::nanoseconds::max();
  std::chrono::nanoseconds budget_ = kNever;
  Clock::time_point end_ = {};
};

struct Where;

/// What a part of the library does an operation for on a user's behalf. Ranks must agree in it, and
/// messages show it beside the operation.
struct Purpose {
  std::uint64_t key = 0;  ///< the same on all ranks: part of the group's chain
  std::string text;       ///< "bucket 1 of 2 of DistributedDataParallel 1 (train.cc:80)"
  /// Of one of the operations that `call` is made of: "the lengths of gather_object".
  TUTTI_API static Purpose part(const std::string& of_call, const Where& call);
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
  /// The same line, for an operation with this purpose.
  constexpr Where with(const Purpose& its_purpose) const noexcept {
    return {file, line, &its_purpose};
  }
};
TUTTI_API std::string name_of(const Where& where);  ///< "train.cc:88"; "" if unknown
/// " for bucket 1 of 2 of ..."; "" if there is no purpose.
TUTTI_API std::string purpose_of(const Where& where);

/// Tag that makes a call asynchronous: `Work work = group.all_reduce(x, tutti::async);`
class Async {
 public:
  struct Key {};
  explicit constexpr Async(Key) {}  // not from numbers in braces, which always mean the options
};
inline constexpr Async async{Async::Key{}};

}  // namespace tutti
