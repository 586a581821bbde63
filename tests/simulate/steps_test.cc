// That each operation of std::atomic is a step where steps.h comes first.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>

namespace tutti::simulate {

namespace {

int steps = 0;
const volatile void* last = nullptr;

template <class Operation>
int steps_of(Operation&& operation) {
  steps = 0;
  operation();
  return steps;
}

enum class Colour : std::uint8_t { red, green };
struct Pair {
  std::uint32_t first = 0, second = 0;
  bool operator==(const Pair&) const = default;
};

}  // namespace

void step(const volatile void* at) noexcept {
  ++steps;
  last = at;
}

/// What all types have.
template <class Value>
void each_is_one_step(Value one, Value other) {
  std::atomic<Value> word{one};
  EXPECT_EQ(steps_of([&] { word.store(other); }), 1);
  EXPECT_EQ(last, &word);
  EXPECT_EQ(steps_of([&] { EXPECT_TRUE(word.load() == other); }), 1);
  EXPECT_EQ(steps_of([&] { EXPECT_TRUE(word.exchange(one) == other); }), 1);
  Value expected = one;
  EXPECT_EQ(steps_of([&] { EXPECT_TRUE(word.compare_exchange_strong(expected, other)); }), 1);
  EXPECT_EQ(steps_of([&] { EXPECT_FALSE(word.compare_exchange_weak(expected, other)); }), 1);
  EXPECT_EQ(steps_of([&] { word = one; }), 1);
  EXPECT_EQ(steps_of([&] { expected = word; }), 1);
}

TEST(Steps, OperationsOfAllTypes) {
  each_is_one_step<bool>(false, true);
  each_is_one_step<std::uint8_t>(1, 2);
  each_is_one_step<std::uint16_t>(1, 2);
  each_is_one_step<std::uint32_t>(1, 2);
  each_is_one_step<std::uint64_t>(1, 2);
  each_is_one_step<Colour>(Colour::red, Colour::green);
  each_is_one_step<Pair>({1, 2}, {3, 4});
  int one = 0, other = 0;
  each_is_one_step<int*>(&one, &other);
}

TEST(Steps, OperationsOfNumbers) {
  std::atomic<std::uint64_t> word{8};
  EXPECT_EQ(steps_of([&] { word.fetch_add(1); }), 1);
  EXPECT_EQ(steps_of([&] { word.fetch_sub(1); }), 1);
  EXPECT_EQ(steps_of([&] { word.fetch_and(15); }), 1);
  EXPECT_EQ(steps_of([&] { word.fetch_or(1); }), 1);
  EXPECT_EQ(steps_of([&] { word.fetch_xor(1); }), 1);
  EXPECT_EQ(steps_of([&] { ++word; }), 1);
  EXPECT_EQ(steps_of([&] { word--; }), 1);
  EXPECT_EQ(steps_of([&] { word += 2; }), 1);
  EXPECT_EQ(steps_of([&] { word |= 2; }), 1);
  EXPECT_EQ(word.load(), 10u);
  std::atomic_flag flag;
  EXPECT_EQ(steps_of([&] { flag.test_and_set(); }), 1);
  EXPECT_EQ(steps_of([&] { flag.clear(); }), 1);
}

TEST(Steps, CountsOfPointersAreNone) {
  const auto one = std::make_shared<int>(1);
  EXPECT_EQ(steps_of([&] { const std::shared_ptr<int> other = one; }), 0);
}

}  // namespace tutti::simulate
