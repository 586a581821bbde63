// What calls take: buffers made from the user's own types, lists of them, and lists of numbers.
#pragma once

#include <array>
#include <bit>
#include <complex>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <ranges>
#include <span>
#include <type_traits>
#include <vector>

#include "tutti/types.h"

namespace tutti {

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
/// `static Buffer buffer(T&, const Where&)` and `static ConstBuffer const_buffer(const T&, const
/// Where&)`, whose errors name the line.
template <class T>
struct BufferTraits;

/// Extends the life of what a buffer points into, for asynchronous calls on owning types.
using Retain = std::shared_ptr<const void> (*)(const void* source);

struct ConstBuffer;
struct Buffer;
struct Message;
struct SplitOptions;

namespace detail {

// The *items* of a buffer are what its type has: numbers, structs, arrays of either. An item is
// *flattened* to a number of *elements* that have a DType; a struct to its bytes.

template <class T>
struct Flat {
  using Type = T;
  static constexpr std::size_t kCount = 1;
};
template <class T, std::size_t N>
struct Flat<T[N]> {
  using Type = typename Flat<T>::Type;
  static constexpr std::size_t kCount = N * Flat<T>::kCount;
};
template <class T, std::size_t N>
struct Flat<std::array<T, N>> : Flat<T[N]> {};
template <class T>
struct Flat<std::array<T, 0>> : Flat<T> {};
template <class T>
using flat_t = std::remove_cv_t<typename Flat<std::remove_cv_t<T>>::Type>;

/// What has a meaning of its own in a call, and is no buffer there.
template <class T>
inline constexpr bool is_call_word =
    std::derived_from<T, ConstBuffer> || std::derived_from<T, Buffer>;
template <>
inline constexpr bool is_call_word<Message> = true;
template <>
inline constexpr bool is_call_word<SplitOptions> = true;
template <>
inline constexpr bool is_call_word<ReduceOp> = true;
template <>
inline constexpr bool is_call_word<Async> = true;
template <>
inline constexpr bool is_call_word<Where> = true;
template <class T>
concept CallWord = is_call_word<T> || requires(T& options) {
  { options.timeout } -> std::same_as<Timeout&>;
} || requires(T& value) {
  value.operator Buffer();
} ||(std::ranges::range<T>&& is_call_word<std::ranges::range_value_t<T>>);

/// Made of bytes that mean the same elsewhere, as far as C++ can tell: of a struct's members the
/// pointers cannot be seen.
template <class T>
concept Struct = !Element<T> && !CallWord<T> && !std::ranges::range<T> &&
                 (std::is_class_v<T> || std::is_union_v<T> || std::is_enum_v<T> ||
                  std::is_arithmetic_v<T>)&&std::is_trivially_copyable_v<T> &&
                 std::is_copy_constructible_v<T>;
template <class T>
concept Item = Element<flat_t<T>> || Struct<flat_t<T>>;
template <class T>
concept Run = std::ranges::contiguous_range<T> && std::ranges::sized_range<T> &&
    Item<std::ranges::range_value_t<T>>;

/// `T` below is what a forwarding reference deduces.
template <class T>
using bare_t = std::remove_cvref_t<T>;
/// To clang 14 the braces of `{.root = 1}` are a void, which has no size: they mean options.
template <class T>
concept Given = !CallWord<bare_t<T>> && requires {
  sizeof(std::remove_reference_t<T>);
};
template <class T>
concept Foreign = requires(std::remove_reference_t<T>& value) {
  BufferTraits<bare_t<T>>::const_buffer(value, Where{});
};
template <class T>
concept Buffered = Foreign<T> || Run<T> || Item<bare_t<T>>;

/// The items of a Buffered type that is not Foreign; const where they are.
template <class T>
struct ItemOf {
  using Type = std::remove_reference_t<T>;
};
template <Run T>
struct ItemOf<T> {
  using Type = std::remove_reference_t<std::ranges::range_reference_t<T>>;
};
template <class T>
using item_t = typename ItemOf<T>::Type;

/// Whether it ends with the call although what it holds is wanted longer.
template <class T>
inline constexpr bool is_gone =
    !std::is_lvalue_reference_v<T> && !Foreign<T> && !(Run<T> && std::ranges::borrowed_range<T>);

template <class T>
consteval void check_buffer() {
  constexpr bool kIsBits = std::same_as<bare_t<T>, std::vector<bool>>;
  constexpr bool kIsPointer = std::is_pointer_v<bare_t<T>>;
  static_assert(
      !kIsBits,
      "tutti: std::vector<bool> holds packed bits and is no buffer: use std::vector<char> "
      "or std::vector<std::uint8_t>");
  static_assert(!kIsPointer,
                "tutti: a pointer does not say how many elements there are: pass "
                "std::span(pointer, count)");
  static_assert(Buffered<T> || kIsBits || kIsPointer,
                "tutti: this type is no buffer. Buffers are numbers (bool, integers, float16, "
                "bfloat16, float, double, std::complex of the last two), enums, trivially copyable "
                "structs, whatever holds these side by side (std::vector, std::array, C arrays, "
                "std::span, std::string, contiguous ranges) and, with <tutti/torch.h>, tensors");
}

template <class T>
consteval void check_output() {
  check_buffer<T>();
  if constexpr (Buffered<T> && !Foreign<T>) {
    static_assert(!std::is_const_v<item_t<T>>,
                  "tutti: this buffer is const, but the call writes to it");
    static_assert(std::is_const_v<item_t<T>> || !is_gone<T>,
                  "tutti: this buffer is a temporary, and what the call writes to it would be "
                  "lost: pass a variable");
  }
}

template <class T>
consteval void check_operand() {
  if constexpr (Buffered<T> && !Foreign<T>) {
    static_assert(Element<flat_t<item_t<T>>>,
                  "tutti: these elements can be moved but not combined. Reductions take bool, "
                  "integers, float16, bfloat16, float, double and std::complex of the last two; "
                  "reduce the members of a struct, or an enum's underlying type");
  }
}

/// How an item lies in memory.
struct Layout {
  DType dtype = DType::u8;
  std::uint32_t per_item = 1;
  bool is_struct = false;
};
template <class T>
consteval Layout layout_of() {
  using U = flat_t<T>;
  constexpr std::uint32_t kWhole = sizeof(T);
  if constexpr (Element<U>) {
    constexpr std::uint32_t kPart = sizeof(U);
    return {dtype_of<U>, kWhole / kPart, false};
  } else {
    return {DType::u8, kWhole, true};
  }
}

/// Hands `use` the first item, how many there are, and their layout.
template <class T, class Use>
constexpr void look_at(T& value, Use&& use) {
  constexpr Layout kLayout = layout_of<item_t<T&>>();
  if constexpr (Run<T&>) {
    use(std::ranges::data(value), static_cast<std::size_t>(std::ranges::size(value)), kLayout);
  } else {
    use(&value, std::size_t{1}, kLayout);
  }
}

}  // namespace detail

/// One contiguous run of `count` elements that an operation reads; never owns.
///
/// Shape     Made from a number, an enum or a trivially copyable struct, from whatever holds these
///           side by side (std::vector, std::array, C arrays, std::span, std::string, any other
///           contiguous range), and from what BufferTraits knows. Arrays in arrays are one run. A
///           struct or enum is as many u8 as it has bytes: it can be moved between machines of one
///           kind, not combined. A string literal is an array with a 0 at its end.
/// Lifetime  The memory must stay valid until the call returns, or for an asynchronous call until
///           its Work is done: one that reads a temporary is refused (kInvalidArgument). Types
///           with a Retain (tensors) are kept alive by the Work.
struct ConstBuffer {
  const void* data = nullptr;
  std::size_t count = 0;
  DType dtype = DType::u8;
  Device device = {};
  Stream stream = {};
  const void* source = nullptr;
  Retain retain = nullptr;
  bool is_temporary = false;   ///< gone with the call: asynchronous calls refuse it
  bool is_struct = false;      ///< moved only
  std::uint32_t per_item = 1;  ///< elements in one item of the type it was made from

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
  template <detail::Given T>
  constexpr ConstBuffer(T&& value, const Where& where = Where::current()) {
    detail::check_buffer<T>();
    if constexpr (detail::Foreign<T>) {
      *this = BufferTraits<detail::bare_t<T>>::const_buffer(value, where);
    } else if constexpr (detail::Buffered<T>) {
      detail::look_at(value, [this](const void* first, std::size_t items, detail::Layout layout) {
        data = first;
        count = items * layout.per_item;
        dtype = layout.dtype;
        per_item = layout.per_item;
        is_struct = layout.is_struct;
      });
      is_temporary = detail::is_gone<T>;
    }
  }

  /// As Buffer::cuda.
  template <Element T>
  static ConstBuffer cuda(const T* pointer, std::size_t count, int device, void* stream = nullptr) {
    return cuda(pointer, count, dtype_of<T>, device, stream);
  }
  static ConstBuffer cuda(const void* pointer, std::size_t count, DType dtype, int device,
                          void* stream = nullptr) {
    ConstBuffer made(pointer, count, dtype,
                     {Device::Kind::cuda, static_cast<std::int16_t>(device)});
    made.stream = {stream};
    return made;
  }

  std::size_t byte_count() const noexcept { return count * size_of(dtype); }
};

/// One contiguous run of `count` elements that an operation writes (and may read). Made as
/// ConstBuffer, from what is neither const nor a temporary.
struct Buffer {
  void* data = nullptr;
  std::size_t count = 0;
  DType dtype = DType::u8;
  Device device = {};
  Stream stream = {};
  const void* source = nullptr;
  Retain retain = nullptr;
  bool is_struct = false;
  std::uint32_t per_item = 1;

  constexpr Buffer() = default;
  constexpr Buffer(void* data_in, std::size_t count_in, DType dtype_in, Device device_in = {},
                   const void* source_in = nullptr, Retain retain_in = nullptr)
      : data(data_in),
        count(count_in),
        dtype(dtype_in),
        device(device_in),
        source(source_in),
        retain(retain_in) {}
  template <detail::Given T>
  constexpr Buffer(T&& value, const Where& where = Where::current()) {
    detail::check_output<T>();
    if constexpr (detail::Foreign<T>) {
      *this = BufferTraits<detail::bare_t<T>>::buffer(value, where);
    } else if constexpr (detail::Buffered<T>) {
      if constexpr (!std::is_const_v<detail::item_t<T>>) {
        detail::look_at(value, [this](void* first, std::size_t items, detail::Layout layout) {
          data = first;
          count = items * layout.per_item;
          dtype = layout.dtype;
          per_item = layout.per_item;
          is_struct = layout.is_struct;
        });
      }
    }
  }

  /// `count` elements in the memory of CUDA's device number `device`, to be used after what
  /// `stream` (a cudaStream_t; null: the default stream) has been given before the call, and by
  /// what it is given after the call or after Work::wait.
  ///
  /// Errors  Of the call that is given the buffer: kInvalidArgument where the memory is not on that
  ///         device, kUnsupported where CUDA cannot be used.
  template <Element T>
    requires(!std::is_const_v<T>)
  static Buffer cuda(T* pointer, std::size_t count, int device, void* stream = nullptr) {
    return cuda(pointer, count, dtype_of<T>, device, stream);
  }
  static Buffer cuda(void* pointer, std::size_t count, DType dtype, int device,
                     void* stream = nullptr) {
    Buffer made(pointer, count, dtype, {Device::Kind::cuda, static_cast<std::int16_t>(device)});
    made.stream = {stream};
    return made;
  }

  constexpr operator ConstBuffer() const {
    ConstBuffer same(data, count, dtype, device, source, retain);
    same.stream = stream;
    same.is_struct = is_struct;
    same.per_item = per_item;
    return same;
  }
  std::size_t byte_count() const noexcept { return count * size_of(dtype); }
};

namespace detail {

/// What has become a buffer before has no line any more.
template <class Made, class T>
constexpr Made made_of(T&& value, const Where& where) {
  if constexpr (Given<T>) {
    return Made(std::forward<T>(value), where);
  } else {
    return Made(std::forward<T>(value));
  }
}

}  // namespace detail

/// As an argument: a Buffer, but never `{}`, which means the options.
struct Output : Buffer {
  template <class T>
    requires(!std::derived_from<detail::bare_t<T>, Output> && std::convertible_to<T, Buffer>)
  constexpr Output(T&& value, const Where& where = Where::current())
      : Buffer(detail::made_of<Buffer>(std::forward<T>(value), where)) {}
};

/// As an argument: a Buffer whose elements are combined, so not of structs.
struct Operand : Buffer {
  template <class T>
    requires(!std::derived_from<detail::bare_t<T>, Operand> && std::convertible_to<T, Buffer>)
  constexpr Operand(T&& value, const Where& where = Where::current())
      : Buffer(detail::made_of<Buffer>(std::forward<T>(value), where)) {
    detail::check_operand<T>();
  }
};
/// The same of a ConstBuffer.
struct ConstOperand : ConstBuffer {
  template <class T>
    requires(!std::derived_from<detail::bare_t<T>, ConstOperand> &&
             std::convertible_to<T, ConstBuffer>)
  constexpr ConstOperand(T&& value, const Where& where = Where::current())
      : ConstBuffer(detail::made_of<ConstBuffer>(std::forward<T>(value), where)) {
    detail::check_operand<T>();
  }
};

/// As an argument: several T, from `{a, b}` or from whatever holds them side by side.
template <class T>
class List {
 public:
  List(std::initializer_list<T> items) : items_(items.begin(), items.size()) {}
  template <class Items>
    requires std::convertible_to<const Items&, std::span<const T>> List(const Items& items)
        : items_(items) {}
    operator std::span<const T>() const noexcept { return items_; }

   private:
    std::span<const T> items_;
};

/// As an argument: several whole numbers, from `{9, 9}` or any range of integers. Those of the type
/// asked for are used where they lie, others are copied.
template <std::integral Integer>
class Integers {
 public:
  Integers() = default;
  template <std::integral Other>
  Integers(std::initializer_list<Other> numbers) : own_(numbers.begin(), numbers.end()) {}
  template <class Numbers>
    requires(!std::same_as<detail::bare_t<Numbers>, Integers>)
  Integers(Numbers&& numbers) {
    constexpr bool kIsRange = requires {
      requires std::integral<std::ranges::range_value_t<Numbers>>;
    };
    static_assert(kIsRange,
                  "tutti: counts and ranks are lists of integers: {0, 1} or a range of integers");
    if constexpr (std::convertible_to<Numbers&, std::span<const Integer>>) {
      given_ = numbers;
    } else if constexpr (kIsRange) {
      for (const auto number : numbers) own_.push_back(static_cast<Integer>(number));
    }
  }

  std::span<const Integer> numbers() const noexcept {
    return own_.empty() ? given_ : std::span<const Integer>(own_);
  }
  /// Makes each as many times as large.
  void scale(Integer times) {
    if (times == 1) return;
    if (own_.empty()) own_.assign(given_.begin(), given_.end());
    for (Integer& number : own_) number *= times;
  }

 private:
  std::span<const Integer> given_;
  std::vector<Integer> own_;
};

}  // namespace tutti
