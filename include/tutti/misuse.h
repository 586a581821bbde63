// Overloads that only a wrong call reaches: each is a compile error that says what the call takes.
// What is wrong in a buffer by itself is said in tutti/buffer.h.
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <tuple>
#include <type_traits>

#include "tutti/buffer.h"

namespace tutti::detail {

template <class T>
inline constexpr bool is_duration = false;
template <class Rep, class Period>
inline constexpr bool is_duration<std::chrono::duration<Rep, Period>> = true;

/// Stands where options must, and is none. (Braces have no type and never come here.)
template <class T>
concept NoOptions = !CallWord<bare_t<T>>;
/// The same where a buffer to write to may stand too.
template <class T>
concept NoOutput = NoOptions<T> &&
    (!Buffered<T> || is_gone<T> || (!Foreign<T> && std::is_const_v<item_t<T>>));

/// One of the arguments from number `first` on, counted from 0, is no options.
template <class... Given>
consteval bool wrong_from(std::size_t first) {
  std::size_t index = 0;
  return ((index++ >= first && NoOptions<Given>) || ...);
}
/// The second is no buffer to write to, or one after it no options.
template <class... Given>
consteval bool wrong_after_one() {
  if constexpr (sizeof...(Given) < 2) {
    return false;
  } else {
    return NoOutput<std::tuple_element_t<1, std::tuple<Given...>>> || wrong_from<Given...>(2);
  }
}

/// Fails for the last argument, which decides what is said.
template <class... Given>
consteval void refuse_arguments() {
  using Last = bare_t<std::tuple_element_t<sizeof...(Given) - 1, std::tuple<Given...>>>;
  constexpr bool kIsTime = is_duration<Last>;
  constexpr bool kIsNumber = std::is_arithmetic_v<Last>;
  static_assert(!kIsTime, "tutti: a timeout goes into the options: {.timeout = 5s}");
  static_assert(!kIsNumber,
                "tutti: a number is no option: name it in braces, {.root = 1}, {.tag = 5}, "
                "{.timeout = 5s}, {.to = 1, .from = 1}, {.color = 0}");
  static_assert(
      kIsTime || kIsNumber,
      "tutti: an argument is neither a buffer that can be written to nor options. Options "
      "are a ReduceOp (ReduceOp::sum, product, min, max, avg, premul_sum(factor), band, "
      "bor, bxor; there are no others), braces such as {.root = 1, .timeout = 5s}, and "
      "tutti::async after them. A list of buffers is a std::vector<tutti::Buffer>");
}

/// For the collectives; a base, so that their own page stays readable.
struct MisusedCollectives {
  template <class... Given>
    requires(wrong_from<Given...>(1))
  void broadcast(Given&&...) { refuse_arguments<Given...>(); }
  template <class... Given>
    requires(wrong_after_one<Given...>())
  void all_reduce(Given&&...) { refuse_arguments<Given...>(); }
  template <class... Given>
    requires(wrong_from<Given...>(1))
  void all_reduce_value(Given&&...) { refuse_arguments<Given...>(); }
  template <class... Given>
    requires(wrong_after_one<Given...>())
  void reduce(Given&&...) { refuse_arguments<Given...>(); }
  template <class... Given>
    requires(wrong_from<Given...>(2))
  void gather(Given&&...) { refuse_arguments<Given...>(); }
  template <class... Given>
    requires(wrong_after_one<Given...>())
  void all_gather(Given&&...) { refuse_arguments<Given...>(); }
  template <class... Given>
    requires(wrong_from<Given...>(2))
  void scatter(Given&&...) { refuse_arguments<Given...>(); }
  template <class... Given>
    requires(wrong_after_one<Given...>())
  void reduce_scatter(Given&&...) { refuse_arguments<Given...>(); }
  template <class... Given>
    requires(wrong_after_one<Given...>())
  void all_to_all(Given&&...) { refuse_arguments<Given...>(); }
  template <class... Given>
    requires(wrong_after_one<Given...>())
  void scan(Given&&...) { refuse_arguments<Given...>(); }
  template <class... Given>
    requires(wrong_after_one<Given...>())
  void exclusive_scan(Given&&...) { refuse_arguments<Given...>(); }
  template <class... Given>
    requires(wrong_from<Given...>(3))
  void all_gatherv(Given&&...) { refuse_arguments<Given...>(); }
  template <class... Given>
    requires(wrong_from<Given...>(3))
  void gatherv(Given&&...) { refuse_arguments<Given...>(); }
  template <class... Given>
    requires(wrong_from<Given...>(3))
  void scatterv(Given&&...) { refuse_arguments<Given...>(); }
  template <class... Given>
    requires(wrong_from<Given...>(3))
  void reduce_scatterv(Given&&...) { refuse_arguments<Given...>(); }
  template <class... Given>
    requires(wrong_from<Given...>(4))
  void all_to_allv(Given&&...) { refuse_arguments<Given...>(); }
  template <class... Given>
    requires(wrong_from<Given...>(0))
  void barrier(Given&&...) { refuse_arguments<Given...>(); }
  template <class... Given>
    requires(wrong_from<Given...>(0))
  void monitored_barrier(Given&&...) { refuse_arguments<Given...>(); }
};

/// For messages and groups.
struct MisusedMessages {
  template <class... Given>
    requires(wrong_from<Given...>(2))
  void send(Given&&...) { refuse_arguments<Given...>(); }
  template <class... Given>
    requires(wrong_from<Given...>(2))
  void recv(Given&&...) { refuse_arguments<Given...>(); }
  template <class T>
  void send(T&&) {
    static_assert(!std::same_as<T, T>, "tutti: send takes a buffer and a rank: group.send(x, to)");
  }
  template <class T>
  void recv(T&&) {
    static_assert(!std::same_as<T, T>,
                  "tutti: recv takes a buffer and a rank: group.recv(x, from), from kAnyRank too");
  }
  template <class T>
  void recv_resize(T&&) {
    static_assert(!std::same_as<T, T>,
                  "tutti: recv_resize takes a buffer and a rank: group.recv_resize(x, from)");
  }
  template <class T>
  void recv(int) {
    static_assert(!std::same_as<T, T>,
                  "tutti: recv writes to a buffer: T value; group.recv(value, from)");
  }
  template <class... Given>
    requires(wrong_from<Given...>(2))
  void recv_resize(Given&&...) { refuse_arguments<Given...>(); }
  template <class... Given>
    requires(wrong_after_one<Given...>())
  void sendrecv(Given&&...) { refuse_arguments<Given...>(); }
  template <std::integral... Ranks>
    requires(sizeof...(Ranks) > 0)
  void new_group(Ranks...) {
    static_assert(sizeof...(Ranks) == 0, "tutti: new_group takes a list of ranks: {0, 1}");
  }
  template <class... Given>
    requires(wrong_from<Given...>(0))
  void split(Given&&...) { refuse_arguments<Given...>(); }
};

}  // namespace tutti::detail
