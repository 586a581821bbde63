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

TEST(Sampler, APassBeginsByItselfWhereNoneHas) {
  ShareSampler whole({10, 2, 1, true, 42, Tail::exact});
  const auto all = whole_pass(whole);
  ShareSampler first({10, 2, 1, true, 42, Tail::exact});
  EXPECT_EQ(first.next(3), std::vector(all.begin(), all.begin() + 3));
  ShareSampler resumed({10, 2, 1, true, 42, Tail::exact});
  resumed.load(first.state());
  EXPECT_EQ(resumed.next(8), std::vector(all.begin() + 3, all.end()));
  first.load(first.state(1));  // in the middle of a pass
  EXPECT_EQ(first.next(8), std::vector(all.begin() + 1, all.end()));
}

TEST(Sampler, DropShowsNoSampleTwice) {
  for (std::size_t dataset_count : {1, 2, 3, 10, 101}) {
    for (std::size_t ranks : {1, 2, 3, 4, 7}) {
      if (dataset_count < ranks) continue;
      std::set<std::size_t> seen;
      for (const auto& share : all_shares(dataset_count, ranks, Tail::drop)) {
        EXPECT_EQ(share.size(), dataset_count / ranks);
        for (std::size_t sample : share) EXPECT_TRUE(seen.insert(sample).second);
      }
    }
  }
}

TEST(Sampler, DropThatWouldLeaveNothingIsRefusedWithTheFigures) {
  const auto refused = [](std::size_t dataset_count, const auto& body) {
    try {
      body();
      FAIL() << "taken with " << dataset_count << " samples";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      const std::string figures = std::to_string(dataset_count) + " samples";
      for (const std::string& part : {figures, std::string("4 ranks"), std::string("Tail::pad")})
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  ShareSampler sampler({4, 4, 3, true, 42, Tail::drop});
  for (std::size_t dataset_count : {0, 1, 3}) {
    refused(dataset_count, [&] { ShareSampler({dataset_count, 4, 0, true, 42, Tail::drop}); });
    refused(dataset_count, [&] { sampler.set_dataset_count(dataset_count); });
    for (const Tail tail : {Tail::pad, Tail::exact})
      EXPECT_NO_THROW(ShareSampler({dataset_count, 4, 0, true, 42, tail}));
  }
  EXPECT_EQ(whole_pass(sampler).size(), 1u);  // its data set has stayed
}

TEST(Sampler, ExactShowsEverySampleOnceInAsManyBatchesOnAllRanks) {
  for (std::size_t dataset_count : {0, 1, 2, 3, 8, 9, 10, 101}) {
    for (std::size_t ranks : {1, 2, 3, 4, 7}) {
      for (std::size_t batch : {1, 2, 3, 4, 200}) {
        std::multiset<std::size_t> seen;
        std::set<std::size_t> batches, counts;
        for (std::size_t rank = 0; rank < ranks; ++rank) {
          ShareSampler sampler({dataset_count, ranks, rank, true, 42, Tail::exact});
          sampler.start();
          std::size_t number = 0;
          for (auto samples = sampler.next(batch); !samples.empty();
               samples = sampler.next(batch)) {
            EXPECT_LE(samples.size(), batch + 1);
            seen.insert(samples.begin(), samples.end());
            ++number;
          }
          EXPECT_EQ(sampler.position(), sampler.share_count());
          batches.insert(number);
          counts.insert(sampler.share_count());
        }
        EXPECT_EQ(seen.size(), dataset_count);
        EXPECT_EQ(std::set(seen.begin(), seen.end()).size(), dataset_count);
        EXPECT_LE(*counts.rbegin() - *counts.begin(), 1u);
        EXPECT_TRUE(batches.size() == 1 || dataset_count < ranks);
      }
    }
  }
}

// The mean over ranks of weight x mean of a batch is the mean over the batches of all ranks.
TEST(Sampler, WeightsMakeTheMeanThatOfAllSamples) {
  for (const Tail tail : {Tail::pad, Tail::drop, Tail::exact}) {
    for (std::size_t dataset_count : {7, 8, 9, 10, 29}) {
      for (std::size_t ranks : {1, 3, 4}) {
        for (std::size_t batch : {1, 2, 3, 50}) {
          std::vector<double> means, sums, counts;  // by batch
          for (std::size_t rank = 0; rank < ranks; ++rank) {
            ShareSampler sampler({dataset_count, ranks, rank, true, 3, tail});
            sampler.start();
            std::size_t number = 0;
            for (auto taken = sampler.next(batch); !taken.empty(); taken = sampler.next(batch)) {
              means.resize(std::max(means.size(), ++number));
              sums.resize(means.size());
              counts.resize(means.size());
              double sum = 0;
              for (std::size_t sample : taken) sum += static_cast<double>(sample);
              const auto count = static_cast<double>(taken.size());
              const double weight = sampler.weight(taken.size(), sampler.position());
              EXPECT_TRUE(weight == 1 || tail == Tail::exact);
              means[number - 1] += weight * sum / count / static_cast<double>(ranks);
              sums[number - 1] += sum;
              counts[number - 1] += count;
            }
          }
          for (std::size_t i = 0; i < means.size(); ++i) {
            EXPECT_NEAR(means[i], sums[i] / counts[i], 1e-12);
          }
        }
      }
    }
  }
}

TEST(Sampler, AWeightIsRefusedForABatchThatCannotBe) {
  ShareSampler sampler({10, 3, 0, true, 3, Tail::exact});  // a share of 4
  EXPECT_NO_THROW(sampler.weight(2, 4));
  for (const auto& [count, end] : {std::pair{0, 2}, std::pair{3, 2}, std::pair{1, 5}}) {
    EXPECT_THROW(sampler.weight(static_cast<std::size_t>(count), static_cast<std::size_t>(end)),
                 Error);
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

TEST(Sampler, AnotherEpochThanAStatesBeginsAtItsFront) {
  const SamplerConfig config{103, 3, 1, true, 9, Tail::pad};
  ShareSampler before(config), fresh(config);
  before.set_epoch(4);
  before.start();
  fresh.set_epoch(5);
  const auto fifth = whole_pass(fresh);
  for (const std::size_t taken : {13, 1000}) {  // in the middle, and at the end
    before.next(taken);
    ShareSampler after(config);
    after.load(before.state());
    after.set_epoch(5);
    EXPECT_EQ(whole_pass(after), fifth);
    after.load(before.state());
    after.set_epoch(4);  // its own
    EXPECT_EQ(whole_pass(after).size(), fifth.size() - before.position());
  }
  EXPECT_THROW(before.state(1000), Error);
}

TEST(Sampler, ThePositionIsOfTheEpochThatIsSet) {
  const SamplerConfig config{103, 3, 1, true, 9, Tail::pad};
  ShareSampler sampler(config), resumed(config), fresh(config);
  fresh.set_epoch(1);
  const auto second = whole_pass(fresh);
  sampler.start();
  sampler.next(13);
  sampler.set_epoch(1);  // the pass goes on in its own order
  EXPECT_EQ(sampler.position(), 0u);
  EXPECT_EQ(sampler.next(1000).size(), sampler.share_count() - 13);
  resumed.load(sampler.state());  // saved before the epoch has begun
  EXPECT_EQ(whole_pass(resumed), second);
  sampler.set_epoch(0);
  EXPECT_EQ(sampler.position(), sampler.share_count());
}

TEST(Sampler, AStateOfExactSharesFitsAllRanks) {
  const auto sampler_of = [](std::size_t rank) {
    return ShareSampler({10, 3, rank, true, 9, Tail::exact});  // shares of 4, 3, 3
  };
  for (std::size_t taken : {0, 1, 2, 3}) {  // batches of one, the last of two on rank 0
    ShareSampler first = sampler_of(0);
    first.start();
    for (std::size_t i = 0; i < taken; ++i) first.next(1);
    for (std::size_t rank = 0; rank < 3; ++rank) {
      ShareSampler whole = sampler_of(rank), resumed = sampler_of(rank);
      whole.start();
      for (std::size_t i = 0; i < taken; ++i) whole.next(1);
      EXPECT_EQ(whole.state(), first.state());
      resumed.load(first.state());
      resumed.start();
      EXPECT_EQ(resumed.next(10), whole.next(10));
    }
  }
  EXPECT_EQ(sampler_of(0).state(4), sampler_of(1).state(3));
}

TEST(Sampler, AStateOfAnotherJobIsRefusedByName) {
  const auto refused = [](const SamplerConfig& config, const SamplerState& state,
                          const std::string& why) {
    try {
      ShareSampler(config).load(state);
      FAIL() << "loaded in spite of " << why;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  };
  for (const Tail tail : {Tail::pad, Tail::drop, Tail::exact}) {
    refused({103, 4, 1, true, 9, tail}, ShareSampler({103, 3, 1, true, 9, tail}).state(),
            "rank_count 3");
  }
  const SamplerState saved = ShareSampler({103, 3, 1, true, 9, Tail::pad}).state();
  refused({103, 3, 1, true, 9, Tail::exact}, saved, "saved with tail pad, this sampler has exact");
  SamplerState beyond = ShareSampler({103, 3, 0, true, 9, Tail::exact}).state();
  beyond["position"] = 35;  // rank 0's share
  refused({103, 3, 0, true, 9, Tail::exact}, beyond, "position 35 lies beyond");
  SamplerState incomplete = saved;
  incomplete.erase("seed");
  ShareSampler same({103, 3, 1, true, 9, Tail::pad});
  EXPECT_THROW(same.load(incomplete), Error);
}

TEST(Sampler, ARankOutOfRangeIsRefused) { EXPECT_THROW(ShareSampler({10, 2, 2}), Error); }

}  // namespace
}  // namespace tutti::ddp
