#include "test_kit/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "base/of_rank.h"

namespace tutti::reference {

double decode(std::uint16_t bits, int fraction_bits) {
  const int exponent_bits = 15 - fraction_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << fraction_bits) - 1);
  double magnitude = std::ldexp(fraction, 1 - bias - fraction_bits);
  if (exponent == (1 << exponent_bits) - 1) {
    magnitude = fraction == 0 ? std::numeric_limits<double>::infinity()
                              : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent > 0) {
    magnitude = std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

std::uint16_t encode(double value, int fraction_bits) {
  const int exponent_bits = 15 - fraction_bits;
  const int least_exponent = 2 - (1 << (exponent_bits - 1));
  const int infinity = ((1 << exponent_bits) - 1) << fraction_bits;
  const int sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | infinity | 1);
  if (value == 0) return static_cast<std::uint16_t>(sign);
  int bits = infinity;
  if (!std::isinf(value)) {
    const int exponent = std::max(std::ilogb(value), least_exponent);
    const double quanta = std::ldexp(std::fabs(value), fraction_bits - exponent);
    const double nearest = std::nearbyint(quanta);  // ties to even
    const double count = std::ldexp(exponent - least_exponent, fraction_bits) + nearest;
    bits = count < infinity ? static_cast<int>(count) : infinity;
  }
  return static_cast<std::uint16_t>(sign | bits);
}

DType part_dtype(DType dtype) { return dtype == DType::complex64 ? DType::f32 : DType::f64; }

float read_float(DType dtype, const void* data, std::size_t index) {
  if (dtype == DType::f32) return read_as<float>(data, index);
  const auto bits = read_as<std::uint16_t>(data, index);
  if (dtype == DType::bf16) return static_cast<float>(decode(bits, kBrainFraction));
  static const std::vector<float> halves = [] {
    std::vector<float> table(65536);
    for (unsigned i = 0; i < 65536; ++i) {
      table[i] = static_cast<float>(decode(static_cast<std::uint16_t>(i), kHalfFraction));
    }
    return table;
  }();
  return halves[bits];
}

namespace {

// ---- Elements as values

bool is_integer(DType dtype) { return dtype < DType::f16; }

bool is_signed(DType dtype) {
  return dtype == DType::i8 || dtype == DType::i16 || dtype == DType::i32 || dtype == DType::i64;
}

/// An integer or bool, sign-extended to 64 bits.
std::uint64_t read_integer(DType dtype, const void* data, std::size_t index) {
  switch (dtype) {
    case DType::bool_:
      return read_as<std::uint8_t>(data, index) != 0 ? 1 : 0;
    case DType::u8:
      return read_as<std::uint8_t>(data, index);
    case DType::u16:
      return read_as<std::uint16_t>(data, index);
    case DType::u32:
      return read_as<std::uint32_t>(data, index);
    case DType::u64:
      return read_as<std::uint64_t>(data, index);
    case DType::i8:
      return static_cast<std::uint64_t>(read_as<std::int8_t>(data, index));
    case DType::i16:
      return static_cast<std::uint64_t>(read_as<std::int16_t>(data, index));
    case DType::i32:
      return static_cast<std::uint64_t>(read_as<std::int32_t>(data, index));
    case DType::i64:
      return static_cast<std::uint64_t>(read_as<std::int64_t>(data, index));
    case DType::f16:
    case DType::bf16:
    case DType::f32:
    case DType::f64:
    case DType::complex64:
    case DType::complex128:
    case DType::f8_e4m3:
    case DType::f8_e5m2:
      break;
  }
  return 0;
}

// ---- One element of the result

template <class T>
T lesser(T a, T b) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
  if (a == b) return std::signbit(a) ? a : b;
  return a < b ? a : b;
}

template <class T>
T combine_floating(ReduceOp::Kind kind, T a, T b) {
  switch (kind) {
    case ReduceOp::Kind::sum:
    case ReduceOp::Kind::avg:
    case ReduceOp::Kind::premul_sum:
      return a + b;
    case ReduceOp::Kind::product:
      return a * b;
    case ReduceOp::Kind::min:
      return lesser(a, b);
    case ReduceOp::Kind::max:
      return -lesser(-a, -b);
    case ReduceOp::Kind::band:
    case ReduceOp::Kind::bor:
    case ReduceOp::Kind::bxor:
      break;
  }
  return a;
}

std::uint64_t combine_integer(DType dtype, ReduceOp::Kind kind, std::uint64_t a, std::uint64_t b) {
  const bool less =
      is_signed(dtype) ? static_cast<std::int64_t>(a) < static_cast<std::int64_t>(b) : a < b;
  switch (kind) {
    case ReduceOp::Kind::sum:
      return a + b;
    case ReduceOp::Kind::product:
      return a * b;
    case ReduceOp::Kind::min:
      return less ? a : b;
    case ReduceOp::Kind::max:
      return less ? b : a;
    case ReduceOp::Kind::band:
      return a & b;
    case ReduceOp::Kind::bor:
      return a | b;
    case ReduceOp::Kind::bxor:
      return a ^ b;
    case ReduceOp::Kind::avg:
    case ReduceOp::Kind::premul_sum:
      break;
  }
  return a;
}

/// The canonical order; `leaf(rank)` reads, `join(a, b)` combines.
template <class Leaf, class Join>
auto tree(int first, int n, const Leaf& leaf, const Join& join) -> decltype(leaf(0)) {
  if (n == 1) return leaf(first);
  int k = 1;
  while (2 * k < n) k *= 2;
  const auto lower = tree(first, k, leaf, join);
  const auto upper = tree(first + k, n - k, leaf, join);
  return join(lower, upper);
}

template <class T, class Read>
T reduce_floating(ReduceOp op, int n, const Read& read) {
  const auto leaf = [&](int rank) -> T {
    const T value = read(rank);
    return op.kind() == ReduceOp::Kind::premul_sum ? value * static_cast<T>(op.factor()) : value;
  };
  const T result = tree(0, n, leaf, [&](T a, T b) { return combine_floating(op.kind(), a, b); });
  return op.kind() == ReduceOp::Kind::avg ? result / static_cast<T>(n) : result;
}

/// A complex number; every operation but the product is that of its parts.
template <class T>
struct Complex {
  T real, imaginary;
};

template <class T>
Complex<T> reduce_complex(ReduceOp op, const std::vector<const void*>& inputs, std::size_t index) {
  const int n = static_cast<int>(inputs.size());
  const auto part = [&](int rank, std::size_t which) {
    return read_as<T>(of_rank(inputs, rank), 2 * index + which);
  };
  if (op.kind() != ReduceOp::Kind::product) {
    return {reduce_floating<T>(op, n, [&](int rank) { return part(rank, 0); }),
            reduce_floating<T>(op, n, [&](int rank) { return part(rank, 1); })};
  }
  return tree(
      0, n,
      [&](int rank) {
        return Complex<T>{part(rank, 0), part(rank, 1)};
      },
      [](Complex<T> a, Complex<T> b) {
        return Complex<T>{a.real * b.real - a.imaginary * b.imaginary,
                          a.real * b.imaginary + a.imaginary * b.real};
      });
}

void reduce_element(DType dtype, ReduceOp op, const std::vector<const void*>& inputs,
                    std::size_t index, void* out, std::size_t to) {
  const int n = static_cast<int>(inputs.size());
  const std::size_t element_bytes = size_of(dtype);
  char* const at = static_cast<char*>(out) + to * element_bytes;
  const auto data = [&](int rank) { return of_rank(inputs, rank); };
  if (dtype == DType::complex64) {
    const Complex<float> result = reduce_complex<float>(op, inputs, index);
    std::memcpy(at, &result, sizeof result);
  } else if (dtype == DType::complex128) {
    const Complex<double> result = reduce_complex<double>(op, inputs, index);
    std::memcpy(at, &result, sizeof result);
  } else if (dtype == DType::f64) {
    const double result = reduce_floating<double>(
        op, n, [&](int rank) { return read_as<double>(data(rank), index); });
    std::memcpy(at, &result, sizeof result);
  } else if (is_floating(dtype)) {
    const float result = reduce_floating<float>(
        op, n, [&](int rank) { return read_float(dtype, data(rank), index); });
    if (dtype == DType::f32) {
      std::memcpy(at, &result, sizeof result);
    } else {
      const std::uint16_t bits =
          encode(result, dtype == DType::f16 ? kHalfFraction : kBrainFraction);
      std::memcpy(at, &bits, sizeof bits);
    }
  } else {
    const std::uint64_t result = tree(
        0, n, [&](int rank) { return read_integer(dtype, data(rank), index); },
        [&](std::uint64_t a, std::uint64_t b) { return combine_integer(dtype, op.kind(), a, b); });
    std::memcpy(at, &result, element_bytes);  // little-endian: the low bytes
  }
}

bool is_nan(DType dtype, const void* data, std::size_t index) {
  if (dtype == DType::f64) return std::isnan(read_as<double>(data, index));
  return is_floating(dtype) && std::isnan(read_float(dtype, data, index));
}

}  // namespace

// ---- Operations

Bytes reduce(DType dtype, ReduceOp op, const std::vector<const void*>& inputs, std::size_t first,
             std::size_t count) {
  Bytes out(count * size_of(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    reduce_element(dtype, op, inputs, first + i, out.data(), i);
  }
  return out;
}

Bytes identity(DType dtype, ReduceOp::Kind kind, std::size_t count) {
  const std::size_t element_bytes = size_of(dtype);
  if (is_complex(dtype)) {  // 0 + 0i, or 1 + 0i
    Bytes out(count * element_bytes);
    const Bytes real = identity(part_dtype(dtype), kind, 1);
    for (std::size_t i = 0; i < count; ++i) {
      std::memcpy(out.data() + i * element_bytes, real.data(), real.size());
    }
    return out;
  }
  const double infinity = std::numeric_limits<double>::infinity();
  double value = kind == ReduceOp::Kind::product ? 1 : 0;
  if (kind == ReduceOp::Kind::min) value = infinity;
  if (kind == ReduceOp::Kind::max) value = -infinity;
  std::uint64_t bits = 0;
  if (dtype == DType::f64) {
    std::memcpy(&bits, &value, sizeof value);
  } else if (dtype == DType::f32) {
    const auto single = static_cast<float>(value);
    std::memcpy(&bits, &single, sizeof single);
  } else if (is_floating(dtype)) {
    bits = encode(value, dtype == DType::f16 ? kHalfFraction : kBrainFraction);
  } else {  // integers: the largest one is all bits, or all but the sign
    const int width = dtype == DType::bool_ ? 1 : static_cast<int>(element_bytes * 8);
    const std::uint64_t all = ~std::uint64_t{0} >> (64 - width);
    bits = kind == ReduceOp::Kind::product ? 1 : kind == ReduceOp::Kind::band ? all : 0;
    if (kind == ReduceOp::Kind::min) bits = is_signed(dtype) ? all >> 1 : all;
    if (kind == ReduceOp::Kind::max) bits = is_signed(dtype) ? all ^ all >> 1 : 0;
  }
  Bytes out(count * element_bytes);
  for (std::size_t i = 0; i < count; ++i) {
    std::memcpy(out.data() + i * element_bytes, &bits, element_bytes);
  }
  return out;
}

Bytes expected(Op op, DType dtype, ReduceOp reduce_op, int root, int rank,
               const std::vector<Bytes>& inputs, std::size_t count) {
  const std::size_t ranks = inputs.size();
  const std::size_t chunk_bytes = count * size_of(dtype);
  const auto me = static_cast<std::size_t>(rank);
  std::vector<const void*> pointers;
  for (const Bytes& input : inputs) pointers.push_back(input.data());
  Bytes out;
  const auto append = [&](const Bytes& from, std::size_t chunk) {
    const auto begin = from.begin() + static_cast<std::ptrdiff_t>(chunk * chunk_bytes);
    out.insert(out.end(), begin, begin + static_cast<std::ptrdiff_t>(chunk_bytes));
  };
  switch (op) {
    case Op::broadcast:
      append(of_rank(inputs, root), 0);
      break;
    case Op::all_reduce:
      return reduce(dtype, reduce_op, pointers, 0, count);
    case Op::reduce:
      if (rank == root) return reduce(dtype, reduce_op, pointers, 0, count);
      break;
    case Op::reduce_scatter:
      return reduce(dtype, reduce_op, pointers, me * count, count);
    case Op::scan:
    case Op::exclusive_scan:
      pointers.resize(op == Op::scan ? me + 1 : me);
      if (pointers.empty()) return identity(dtype, reduce_op.kind(), count);
      return reduce(dtype, reduce_op, pointers, 0, count);
    case Op::gather:
      if (rank != root) break;
      [[fallthrough]];
    case Op::all_gather:
      for (const Bytes& input : inputs) append(input, 0);
      break;
    case Op::scatter:
      append(of_rank(inputs, root), me);
      break;
    case Op::all_to_all:
      for (std::size_t from = 0; from < ranks; ++from) append(inputs[from], me);
      break;
    case Op::send:
    case Op::recv:
    case Op::barrier:
      break;
  }
  return out;
}

// ---- Comparing and making data

std::size_t first_difference(DType dtype, const void* a, const void* b, std::size_t count) {
  if (is_complex(dtype)) return first_difference(part_dtype(dtype), a, b, 2 * count) / 2;
  const std::size_t element_bytes = size_of(dtype);
  for (std::size_t i = 0; i < count; ++i) {
    const char* const left = static_cast<const char*>(a) + i * element_bytes;
    const char* const right = static_cast<const char*>(b) + i * element_bytes;
    if (std::memcmp(left, right, element_bytes) == 0) continue;
    if (is_nan(dtype, a, i) && is_nan(dtype, b, i)) continue;
    return i;
  }
  return count;
}

Bytes random_data(DType dtype, std::size_t count, std::uint64_t seed) {
  if (is_complex(dtype)) return random_data(part_dtype(dtype), 2 * count, seed);
  std::mt19937_64 random(seed);
  const std::size_t element_bytes = size_of(dtype);
  const double specials[] = {0.0,
                             -0.0,
                             std::numeric_limits<double>::infinity(),
                             -std::numeric_limits<double>::infinity(),
                             std::numeric_limits<double>::quiet_NaN(),
                             1.0,
                             65504.0,
                             6e-8,
                             1e-40,
                             3e38};
  Bytes data(count * element_bytes);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t bits = random();
    std::byte* const at = data.data() + i * element_bytes;
    const unsigned kind = bits % 16;
    if (is_integer(dtype) || is_float8(dtype) || kind < 3) {
      std::memcpy(at, &bits, element_bytes);  // any bits at all: NaNs and denormals among them
      if (kind == 15) std::memset(at, 0, element_bytes);
      continue;
    }
    double value = std::ldexp(static_cast<double>(static_cast<std::int64_t>(random())), -62);
    if (kind == 3) value = specials[(bits >> 8) % std::size(specials)];
    if (dtype == DType::f64) {
      std::memcpy(at, &value, sizeof value);
    } else if (dtype == DType::f32) {
      const auto single = static_cast<float>(value);
      std::memcpy(at, &single, sizeof single);
    } else {
      const std::uint16_t half =
          encode(value, dtype == DType::f16 ? kHalfFraction : kBrainFraction);
      std::memcpy(at, &half, sizeof half);
    }
  }
  return data;
}

}  // namespace tutti::reference
