#include "ddp/model_check.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <set>

#include "tutti/test_kit.h"

namespace tutti::ddp {
namespace {

TEST(ModelCheck, TheFirstDifferenceNamesBothSides) {
  const ModelDescription model = {"parameter a [2] f32", "parameter b [3] f32"};
  ModelDescription other = model;
  other[1] = "parameter b [4] f32";
  const std::vector<ModelDescription> by_rank = {model, model, other};
  const ModelDifference difference = first_difference(by_rank);
  EXPECT_EQ(difference.rank, 2);
  EXPECT_EQ(difference.text, "rank 0 has 'parameter b [3] f32', rank 2 has 'parameter b [4] f32'");
}

TEST(ModelCheck, AMissingTensorIsNamed) {
  const ModelDescription model = {"parameter a [2] f32", "parameter b [3] f32"};
  const ModelDescription shorter = {"parameter a [2] f32"};
  EXPECT_EQ(first_difference(std::vector<ModelDescription>{model, shorter}).text,
            "rank 0 has 'parameter b [3] f32', rank 1 has no such parameter");
  // One more in the middle is what is shown, not the line that stands there on the other.
  const ModelDescription longer = {"parameter a [2] f32", "parameter more [1] f32",
                                   "parameter b [3] f32"};
  EXPECT_EQ(first_difference(std::vector<ModelDescription>{model, longer}).text,
            "rank 0 has no such parameter, rank 1 has 'parameter more [1] f32'");
  EXPECT_EQ(first_difference(std::vector<ModelDescription>{longer, model}).text,
            "rank 0 has 'parameter more [1] f32', rank 1 has no such parameter");
  const ModelDescription turned = {"parameter b [3] f32", "parameter a [2] f32"};
  EXPECT_EQ(first_difference(std::vector<ModelDescription>{model, turned}).text,
            "rank 0 has 'parameter a [2] f32', rank 1 has 'parameter b [3] f32'");
  EXPECT_EQ(first_difference(std::vector<ModelDescription>{shorter, model}).text,
            "rank 0 has no such parameter, rank 1 has 'parameter b [3] f32'");
  EXPECT_EQ(first_difference(std::vector<ModelDescription>{model, model}).rank, -1);
}

/// The first to know throws, and its world goes while it unwinds: the others still learn what
/// differs and not only that somebody left. Six ranks are often more than cores: some are late.
TEST(ModelCheck, EveryRankIsToldOfTheDifferenceThoughTheOthersLeave) {
  const auto body = [](const test_kit::Rank& me) {
    ProcessGroup world = init_process_group(me.init);
    const bool is_last = me.rank == me.world_size - 1;
    check_same(world, {"the call", "the wrapper", "models", "Build the same."},
               {is_last ? "parameter a [2] f32" : "parameter a [3] f32"}, Where::current());
    return std::string();
  };
  char own_host[256] = {};
  ASSERT_EQ(::gethostname(own_host, sizeof(own_host) - 1), 0);
  for (int round = 0; round < 40; ++round) {
    for (const auto& rank : test_kit::collect_ranks(6, body, {.as = test_kit::As::processes})) {
      ASSERT_TRUE(rank.error) << rank.failure;
      ASSERT_EQ(rank.error->code(), ErrorCode::kCollectiveMismatch)
          << "round " << round << ", rank " << rank.rank << ": " << rank.failure;
      const ErrorContext& context = rank.error->context();
      EXPECT_EQ(context.culprits, std::vector<int>{5});
      EXPECT_EQ(context.op, "the call");
      EXPECT_EQ(context.host, own_host);
      EXPECT_EQ(context.call_site.find("model_check_test.cc:"), 0u);
    }
  }
}

TEST(ModelCheck, DigestsDifferByOrderAndByBorders) {
  const std::set<std::uint64_t> digests = {digest({"a", "b"}), digest({"b", "a"}), digest({"ab"}),
                                           digest({"a", "b", ""}), digest({})};
  EXPECT_EQ(digests.size(), 5u);
}

TEST(ModelCheck, EveryFlippedBitChangesTheHash) {
  std::vector<std::byte> bytes(37);
  std::set<std::uint64_t> hashes = {hash_bytes(bytes)};
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_TRUE(hashes.insert(hash_bytes(bytes)).second) << "bit " << bit;
    bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
  }
  EXPECT_NE(hash_bytes(bytes), hash_bytes(std::span(bytes).first(36)));
}

}  // namespace
}  // namespace tutti::ddp
