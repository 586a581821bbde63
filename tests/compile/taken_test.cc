// Calls as people write them first: each compiles, runs on two ranks and gives what it should. What
// must not compile is in refused.py; what compiles and is refused when it runs is at the end.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <complex>
#include <ranges>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <variant>
#include <vector>

#include "ranks.h"
#include "tutti/tutti.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using Floats = std::vector<float>;

struct Point {
  float x = 0, y = 0;
  friend bool operator==(const Point&, const Point&) = default;
};
enum class Colour { red, green };

/// Sends what rank 0 has to rank 1; both go on.
template <class Given, class Taken>
void move(ProcessGroup& world, const Given& given, Taken&& taken) {
  if (world.rank() == 0) world.send(given, 1);
  if (world.rank() == 1) world.recv(taken, 0);
}

TEST(Taken, BuffersOfEveryShape) {
  on_ranks(2, [](ProcessGroup& world) {
    const bool first = world.rank() == 0;
    float scalar = 1, c_array[3] = {1, 2, 3}, table[2][2] = {{1, 2}, {3, 4}};
    world.all_reduce(scalar);
    EXPECT_EQ(scalar, 2);
    world.all_reduce(c_array);
    EXPECT_EQ(c_array[2], 6);
    world.all_reduce(table);
    EXPECT_EQ(table[1][1], 8);
    std::vector<std::array<float, 2>> pairs = {{1, 2}, {3, 4}};
    world.all_reduce(pairs);
    EXPECT_EQ(pairs[1][0], 6);
    std::complex<float> number(1, 2);
    world.all_reduce(number);
    EXPECT_EQ(number, std::complex<float>(2, 4));
    wchar_t wide = L'a';
    world.all_reduce(wide, ReduceOp::max);
    EXPECT_EQ(wide, L'a');
    std::vector<std::byte> bytes(3, first ? std::byte{7} : std::byte{0});
    world.broadcast(bytes);
    EXPECT_EQ(bytes[2], std::byte{7});
    std::string text = first ? "abc" : "   ";
    world.broadcast(text);
    EXPECT_EQ(text, "abc");
    Floats nine(9, static_cast<float>(world.rank()));
#if !defined(__clang__)  // clang 14 cannot read the views of libstdc++ 12
    move(world, nine | std::views::take(3), std::span(nine).last(3));
#endif
    move(world, std::span(nine).first<3>(), std::span(nine).last(3));
    EXPECT_EQ(nine[8], 0);
    move(world, std::span<const float>(nine), nine);
    const Floats constant(9, 4);
    move(world, constant, nine);
    EXPECT_EQ(nine[0], first ? 0 : 4);
    move(world, std::string_view("xyz"), text);
    EXPECT_EQ(text, first ? "abc" : "xyz");
    char six[6] = {};
    move(world, "hello", six);
    EXPECT_STREQ(six, first ? "" : "hello");
    move(world, Floats{1, 2}, std::span(nine).first(2));
    EXPECT_EQ(nine[1], first ? 0 : 2);
    if (first) world.send(text, 1);
    if (!first) world.recv_resize(text, 0);
    EXPECT_EQ(text, "abc");
  });
}

TEST(Taken, StructsAreMoved) {
  on_ranks(2, [](ProcessGroup& world) {
    const auto rank = static_cast<float>(world.rank());
    Point point = {rank, 1 - rank};
    world.broadcast(point);
    EXPECT_EQ(point, (Point{0, 1}));
    Colour colour = world.rank() == 0 ? Colour::green : Colour::red;
    world.broadcast(colour);
    EXPECT_EQ(colour, Colour::green);
    const std::vector<Point> own(2, Point{rank, rank});
    std::vector<Point> all(4), three(3), part(world.rank() == 0 ? 1 : 2);
    world.all_gather(own, all);
    EXPECT_EQ(all[3], (Point{1, 1}));
    world.all_gatherv(std::span(own).first(part.size()), three, {1, 2});
    EXPECT_EQ(three[2], (Point{1, 1}));
    world.scatterv(three, {1, 2}, part);
    EXPECT_EQ(part.back(), (Point{rank, rank}));
    if (world.rank() == 0) world.send(three, 1);
    if (world.rank() == 1) world.recv_resize(part, 0);
    EXPECT_EQ(part.size(), world.rank() == 0 ? 1u : 3u);
  });
}

TEST(Taken, OptionsListsAndTimes) {
  on_ranks(2, [](ProcessGroup& world) {
    const auto rank = static_cast<float>(world.rank());
    const int other = 1 - world.rank();
    Floats x(9, rank), y(9, rank), all(18);
    world.broadcast(x, {1});
    EXPECT_EQ(x[0], 1);
    world.broadcast(x, {});
    world.all_reduce(x, {});
    EXPECT_EQ(x[0], 2);
    world.all_reduce(x, {.timeout = std::chrono::duration<double>(30.5)});
    world.barrier({.timeout = 30s});
    world.all_reduce({x, y});
    EXPECT_EQ(y[8], 1);
    world.all_reduce(std::array<Buffer, 2>{x, y});
    const std::vector<int> counts = {9, 9};
    world.all_gatherv(y, all, counts);
    world.all_gatherv(y, all, {9, 9});
    EXPECT_EQ(all[17], 2);
    Floats sent(1, rank), received(1), again(1);
    world.batch({Message::send(sent, other), Message::recv(received, other)});
    world.batch(std::array{Message::recv(again, other), Message::send(sent, other)});
    EXPECT_EQ(received[0], static_cast<float>(other));
    EXPECT_EQ(received, again);
    int number = -1;
    world.sendrecv(world.rank(), number, {.to = other, .from = other});
    EXPECT_EQ(number, other);
    Work first = world.all_reduce(x, async), second = world.barrier(async);
    wait_all({first, second});
    const std::vector<std::size_t> ranks = {0, 1};
    EXPECT_EQ(world.new_group(ranks).world_size(), 2);
    EXPECT_EQ(world.new_group({1, 0}).rank(), other);
    Work ended;
    EXPECT_TRUE(ended.wait_for(1s));
    world.all_reduce(x, async).wait();
  });
}

TEST(Taken, ObjectsOfTheStandardLibrary) {
  on_ranks(2, [](ProcessGroup& world) {
    const bool first = world.rank() == 0;
    const auto check = [&](auto value) {
      auto object = first ? value : decltype(value)();
      broadcast_object(world, object);
      EXPECT_EQ(object, value);
    };
    check(std::set<int>{3, 1});
    check(std::tuple<int, std::string>(1, "one"));
    check(std::variant<int, std::string>("two"));
    check(std::vector<bool>{true, false});
    if (first) send_object(world, std::string("three"), 1);
    if (!first) {
      EXPECT_EQ(recv_object<std::string>(world, kAnyRank), "three");
    }
  });
}

TEST(Taken, ATemporaryOutlivesNoAsynchronousCall) {
  on_ranks(2, [](ProcessGroup& world) {
    const auto refused = [](const char* call, auto&& start) {
      SCOPED_TRACE(call);
      const Error error = thrown_by([&] { start().wait(); });
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      expect_text(error, "the input is a temporary, which is gone before");
    };
    Floats all(4);
    std::vector<Point> points(2);
    refused("vector", [&] { return world.send(Floats{1, 2}, 1, async); });
    refused("gather", [&] { return world.all_gather(Floats{1, 2}, all, async); });
    refused("scalar", [&] { return world.send(42, 1, async); });
    refused("array", [&] { return world.send(std::array{1, 2}, 1, async); });
    refused("text", [&] { return world.send(std::string("text"), 1, {}, async); });
    refused("struct", [&] { return world.all_gather(Point{1, 2}, points, async); });
    world.barrier();
  });
}

}  // namespace
}  // namespace tutti
