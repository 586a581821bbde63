#include "ddp/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tutti/error.h"

namespace tutti::ddp {
namespace {

std::vector<std::size_t> whole_pass(ShareSampler& sampler, std::size_t batch = 7) {
  std::vector<std::size_t> all;
  sampler.start();
  for (auto samples = sampler.next(batch); !samples.empty(); samples = sampler.next(batch)) {
    all.insert(all.end(), samples.begin(), samples.end());
  }
  return all;
}

std::vector<std::vector<std::size_t>> all_shares(std::size_t dataset_count, std::size_t ranks,
                                                 Tail tail, bool shuffle = true) {
  std::vector<std::vector<std::size_t>> shares;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    ShareSampler sampler({dataset_count, ranks, rank, shuffle, 42, tail});
    shares.push_back(whole_pass(sampler));
    EXPECT_EQ(shares.back().size(), sampler.share_count());
  }
  return shares;
}

TEST(Sampler, PadCoversEverySampleAndEveryRankSeesAsMany) {
  for (std::size_t dataset_count : {1, 2, 3, 10, 101}) {
    for (std::size_t ranks : {1, 2, 3, 4, 7}) {
      const auto shares = all_shares(dataset_count, ranks, Tail::pad);
      std::multiset<std::size_t> seen;
      for (const auto& share : shares) seen.insert(share.begin(), share.end());
      EXPECT_EQ(seen.size(), (dataset_count + ranks - 1) / ranks * ranks);
      for (std::size_t sample = 0; sample < dataset_count; ++sample)
        EXPECT_GE(seen.count(sample), 1u);
    }
  }
}

TEST(Sampler, DropShowsNoSampleTwice) {
  for (std::size_t dataset_count : {1, 2, 3, 10, 101}) {
    for (std::size_t ranks : {1, 2, 3, 4, 7}) {
      std::set<std::size_t> seen;
      for (const auto& share : all_shares(dataset_count, ranks, Tail::drop)) {
        EXPECT_EQ(share.size(), dataset_count / ranks);
        for (std::size_t sample : share) EXPECT_TRUE(seen.insert(sample).second);
      }
    }
  }
}

TEST(Sampler, UnshuffledSharesInterleave) {
  const auto shares = all_shares(5, 2, Tail::pad, false);
  EXPECT_EQ(shares[0], (std::vector<std::size_t>{0, 2, 4}));
  EXPECT_EQ(shares[1], (std::vector<std::size_t>{1, 3, 0}));
}

TEST(Sampler, TheEpochChangesTheOrderAndRepeats) {
  ShareSampler sampler({1000, 2, 0, true, 1, Tail::pad});
  const auto first = whole_pass(sampler);
  EXPECT_EQ(whole_pass(sampler), first);
  sampler.set_epoch(1);
  EXPECT_NE(whole_pass(sampler), first);
  sampler.set_epoch(0);
  EXPECT_EQ(whole_pass(sampler), first);
}

// Pinned: a checkpoint must resume with the same samples on every platform and in every version.
TEST(Sampler, ThePermutationIsPinned) {
  EXPECT_EQ(shuffled(8, 0), (std::vector<std::size_t>{1, 2, 6, 5, 4, 0, 3, 7}));
}

TEST(Sampler, AStateResumesWhereItWasSaved) {
  const SamplerConfig config{103, 3, 1, true, 9, Tail::pad};
  ShareSampler uninterrupted(config);
  uninterrupted.set_epoch(4);
  const auto expected = whole_pass(uninterrupted);

  ShareSampler before(config);
  before.set_epoch(4);
  before.start();
  std::vector<std::size_t> seen = before.next(13);
  ShareSampler after(config);
  after.load(before.state());
  const auto rest = whole_pass(after);
  seen.insert(seen.end(), rest.begin(), rest.end());
  EXPECT_EQ(seen, expected);
  EXPECT_EQ(whole_pass(after), expected);  // only the first pass is a continuation
}

TEST(Sampler, AStateOfAnotherJobIsRefusedByName) {
  const SamplerState saved = ShareSampler({103, 3, 1, true, 9, Tail::pad}).state();
  ShareSampler other({103, 4, 1, true, 9, Tail::pad});
  try {
    other.load(saved);
    FAIL() << "a state of 3 ranks was loaded into one of 4";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("rank_count 3"), std::string::npos) << error.what();
  }
  SamplerState incomplete = saved;
  incomplete.erase("seed");
  ShareSampler same({103, 3, 1, true, 9, Tail::pad});
  EXPECT_THROW(same.load(incomplete), Error);
}

TEST(Sampler, ARankOutOfRangeIsRefused) { EXPECT_THROW(ShareSampler({10, 2, 2}), Error); }

}  // namespace
}  // namespace tutti::ddp
