// Objects: what goes in comes out, and bytes that are no object are refused.
#include "tutti/objects.h"

#include <gtest/gtest.h>

#include <array>
#include <complex>
#include <initializer_list>
#include <optional>
#include <random>
#include <set>
#include <tuple>
#include <unordered_set>
#include <variant>

#include "ranks.h"

namespace tutti {
namespace {

using Text = std::string;
using Plan = std::map<Text, std::vector<std::pair<int, Text>>>;

struct Point {
  double x = 0, y = 0;
  friend bool operator==(const Point&, const Point&) = default;
};

struct Config {
  Text name;
  std::vector<int> layers;
  friend bool operator==(const Config&, const Config&) = default;
};

}  // namespace

template <>
struct ObjectCodec<Config> {
  static void write(ObjectWriter& to, const Config& c) { to.write(c.name, c.layers); }
  static Config read(ObjectReader& from) {
    Config c;
    from.read(c.name, c.layers);
    return c;
  }
};

namespace {

static_assert(Object<Text> && Object<int> && Object<Point> && Object<std::vector<std::byte>>);
static_assert(Object<Plan> && Object<std::vector<bool>> && Object<std::unordered_map<int, Text>>);
static_assert(!Object<int*> && !Object<std::string_view> && !Object<std::span<int>>);
static_assert(!Object<std::initializer_list<int>> && !Object<std::array<void (*)(), 2>>);
static_assert(!Object<std::variant<int, int*>> && !Object<std::optional<int*>>);
static_assert(!Object<std::vector<int*>> && !Object<std::map<Text, std::string_view>>);

Plan plan_of(int rank) {
  Plan plan;
  for (int i = 0; i < rank; ++i) {
    plan["layer" + std::to_string(i)] = {{i, Text(static_cast<std::size_t>(i), 'x')}, {-i, ""}};
  }
  return plan;
}

template <class T>
void expect_round_trip(const T& value) {
  EXPECT_EQ(decode_object<T>(encode_object(value)), value);
}

TEST(ObjectCodec, GivesBackWhatItWasGiven) {
  expect_round_trip(Text());
  expect_round_trip(Text("with\0zero", 9));
  expect_round_trip(-7);
  expect_round_trip(true);
  expect_round_trip(Point{1, -0.5});
  expect_round_trip(std::vector<Point>{{1, 2}, {3, 4}});
  expect_round_trip(std::vector<std::byte>(1000, std::byte{7}));
  expect_round_trip(std::vector<bool>{true, false, true});
  expect_round_trip(std::vector<Text>{"a", "", "ccc"});
  expect_round_trip(std::vector<std::vector<int>>{{}, {1}, {2, 3}});
  expect_round_trip(std::unordered_map<int, Text>{{1, "one"}, {2, "two"}});
  expect_round_trip(plan_of(5));
  expect_round_trip(std::array<double, 3>{1, 2, 3});
  expect_round_trip(std::array<bool, 2>{true, false});
  expect_round_trip(std::array<Text, 2>{"a", ""});
  expect_round_trip(std::optional<Text>("there"));
  expect_round_trip(std::optional<Point>());
  expect_round_trip(std::complex<float>(1, 2));
  expect_round_trip(std::set<Text>{"b", "a"});
  expect_round_trip(std::unordered_set<int>{3, 1, 2});
  expect_round_trip(std::tuple<int, Text, bool>(1, "two", true));
  expect_round_trip(std::variant<int, Text>("text"));
  expect_round_trip(std::variant<int, Text>(7));
  expect_round_trip(std::vector<Config>{{"net", {784, 128, 10}}, {}});
}

void expect_malformed(const std::function<void()>& decode, const std::string& part) {
  const Error error = thrown_by(decode);
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  expect_text(error, part);
}

TEST(ObjectCodec, RefusesWhatIsNoObject) {
  std::vector<std::byte> bytes = encode_object(std::vector<Text>{"abc", "de"});
  const std::span<const std::byte> whole(bytes);
  using Texts = std::vector<Text>;
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    expect_malformed([&] { decode_object<Texts>(whole.first(length)); }, "decoding an object (");
  }
  bytes.push_back(std::byte{0});
  expect_malformed([&] { decode_object<Texts>(bytes); }, "but bytes are left over: 1");
  expect_malformed([&] { decode_object<int>(bytes); },
                   "at byte 4: the object ends here, but bytes are left over: ");
  const auto huge = encode_object(~std::uint64_t{0});
  expect_malformed([&] { decode_object<Text>(huge); }, "announces 18446744073709551615 items");
  expect_malformed([&] { decode_object<std::vector<double>>(huge); }, "items of at least 8 bytes");
  expect_malformed([&] { decode_object<Plan>(huge); }, "items of at least 16 bytes");
  expect_malformed([] { decode_object<bool>(encode_object(std::uint8_t{2})); }, "a bool is 2");
  const auto two = encode_object(std::array<std::uint8_t, 2>{1, 2});
  expect_malformed([&] { decode_object<std::array<bool, 2>>(two); }, "a bool is 2");
  expect_malformed([&] { decode_object<std::optional<bool>>(two); }, "a bool is 2");
  const auto twice = encode_object(std::vector<std::pair<int, int>>{{1, 2}, {1, 3}});
  expect_malformed([&] { decode_object<std::map<int, int>>(twice); }, "stands there twice");
  const auto same = encode_object(std::vector<int>{5, 5});
  expect_malformed([&] { decode_object<std::set<int>>(same); }, "stands there twice");
  const auto third = encode_object(std::uint32_t{2});
  expect_malformed([&] { decode_object<std::variant<int, bool>>(third); },
                   "alternative 2 of a variant of 2");
  expect_malformed([&] { decode_object<std::vector<Config>>(huge); }, "items of at least 1 bytes");
}

TEST(ObjectCodec, RandomDamageIsRefusedOrAnotherObject) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const std::vector<std::byte> right = encode_object(plan_of(6));
  int refused = 0;
  for (int trial = 0; trial < 20'000; ++trial) {
    std::vector<std::byte> bytes = right;
    for (unsigned flips = 1 + random() % 3; flips > 0; --flips) {
      bytes[random() % bytes.size()] ^= std::byte{static_cast<unsigned char>(1 + random() % 255)};
    }
    try {
      const Plan decoded = decode_object<Plan>(bytes);
      EXPECT_LE(encode_object(decoded).size(), right.size());
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kInvalidArgument);
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

void check_every_collective(ProcessGroup& world) {
  const int me = world.rank(), n = world.world_size(), root = n - 1;
  Plan plan = plan_of(me == root ? 7 : 0);
  broadcast_object(world, plan, {.root = root});
  EXPECT_EQ(plan, plan_of(7));

  std::vector<Plan> all;
  std::vector<int> ranks;
  for (int rank = 0; rank < n; ++rank) {
    all.push_back(plan_of(rank));
    ranks.push_back(rank);
  }
  EXPECT_EQ(all_gather_object(world, plan_of(me)), all);
  EXPECT_EQ(all_gather_object(world, me), ranks);
  const std::vector<Plan> gathered = gather_object(world, plan_of(me), {.root = root});
  EXPECT_EQ(gathered, me == root ? all : std::vector<Plan>());
  EXPECT_EQ(scatter_object(world, gathered, {.root = root}), plan_of(me));
}

TEST(Objects, GoWhereTheyShould) {
  for (const test_kit::As as : every_kind()) {
    for (const int ranks : {1, 2, 4}) on_ranks(ranks, check_every_collective, {.as = as});
  }
}

TEST(Objects, TooLongOnesAreRefusedByAllRanksAndTheGroupStaysUsable) {
  on_ranks(3, [](ProcessGroup& world) {
    const ObjectOptions options = {.root = 1, .max_bytes = 100};
    const Text own(world.rank() == 1 ? 200 : 2, 'x');
    const auto refused = [&](auto&& call) {
      const Error error = thrown_by(call);
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      expect_text(error, "the object of rank 1 has 208 bytes, more than max_bytes, 100");
    };
    refused([&] { all_gather_object(world, own, options); });
    refused([&] { gather_object(world, own, options); });
    Text text = own;
    refused([&] { broadcast_object(world, text, options); });
    const std::vector<Text> texts = {"", Text(200, 'x'), "z"};
    refused([&] { scatter_object(world, texts, options); });
    EXPECT_EQ(all_gather_object(world, own)[1].size(), 200u);
  });
}

TEST(Objects, AnotherTypeIsRefusedWhereItIsDecoded) {
  on_ranks(2, [](ProcessGroup& world) {
    if (world.rank() == 0) {
      std::vector<std::uint8_t> numbers(5, 5);
      broadcast_object(world, numbers);
      send_object(world, numbers, 1, {.tag = 3});
    } else {
      Plan kept = plan_of(1);
      const Error error = thrown_by([&] { broadcast_object(world, kept, {}, {"plan.cc", 8}); });
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_STREQ(error.what(),
                   "broadcast_object (rank 1) at plan.cc:8: decoding the object of rank 0 (13 "
                   "bytes) fails at byte 8: it announces 5 items of at least 16 bytes each, 5 "
                   "bytes are left. Do all ranks pass the same type?");
      EXPECT_EQ(error.context().op, "broadcast_object");
      EXPECT_EQ(error.context().rank, 1);
      EXPECT_EQ(error.context().culprits, std::vector<int>{0});
      EXPECT_EQ(error.context().call_site, "plan.cc:8");
      EXPECT_EQ(kept, plan_of(1));
      const Error received = thrown_by([&] {
        recv_object<std::vector<double>>(world, kAnyRank, {.tag = 3}, {"plan.cc", 9});
      });
      EXPECT_STREQ(received.what(),
                   "recv_object (rank 1) at plan.cc:9: decoding the object of rank 0 (13 bytes) "
                   "fails at byte 8: it announces 5 items of at least 8 bytes each, 5 bytes are "
                   "left. Do all ranks pass the same type?");
    }
    world.barrier();
  });
}

TEST(Objects, TooLongOnesAreRefusedBeforeTheyAreSent) {
  on_ranks(2, [](ProcessGroup& world) {
    const Error error = thrown_by([&] {
      send_object(world, Text(200, 'x'), 1 - world.rank(), {.max_bytes = 100}, {"plan.cc", 7});
    });
    const std::string me = std::to_string(world.rank());
    EXPECT_EQ(error.what(), "send_object (rank " + me + ") at plan.cc:7: the object of rank " + me +
                                " has 208 bytes, more than max_bytes, 100. "
                                "Give all ranks a larger max_bytes.");
    if (world.rank() == 0) send_object(world, plan_of(3), 1, {.tag = 2});
    MessageInfo info;
    if (world.rank() == 1) {
      EXPECT_EQ(recv_object<Plan>(world, kAnyRank, {.tag = 2, .info = &info}), plan_of(3));
      EXPECT_EQ(info.rank, 0);
      EXPECT_EQ(info.tag, 2);
    }
  });
}

}  // namespace
}  // namespace tutti
