// Ranks with different numbers of batches, against one process that has those of all.
#include "block_net.h"

namespace tutti::ddp {
namespace {

/// One way of training unevenly. `prepare` and `freeze` are what a program does with its model:
/// they run on ranks that still train, and in the one process.
struct Uneven {
  std::vector<int> steps;  ///< that each rank has
  DataParallelOptions options = {};
  JoinOptions join = {};
  bool follows = false;      ///< ranks that have left step, too
  bool accumulates = false;  ///< two micro-batches, the first one inside no_sync
  std::function<void(Net& net, int rank, int step)> prepare = [](Net&, int, int) {};
  std::function<void(Net& net, int step)> freeze = [](Net&, int) {};
  CommunicationHook hook = {};

  int ranks() const { return static_cast<int>(steps.size()); }
  /// In the second epoch the ranks have changed places.
  int own(int rank, int epoch) const {
    return steps[static_cast<std::size_t>((rank + epoch) % ranks())];
  }
  int longest() const { return *std::max_element(steps.begin(), steps.end()); }
};

torch::optim::SGD make_sgd(const Net& net, const Uneven& how) {
  // Without following, an optimizer that keeps something of each gradient would fall behind.
  return torch::optim::SGD(net->parameters(),
                           torch::optim::SGDOptions(0.1).momentum(how.follows ? 0.9 : 0));
}

Tensor batch_of(int rank, int step, int micro = 0) { return batch(1000 * rank + 2 * step + micro); }

/// A step of one process: the mean of the losses of the ranks that have one.
void step_alone(Net& net, torch::optim::SGD& optimizer, const Uneven& how, int epoch, int step) {
  how.freeze(net, step);
  optimizer.zero_grad();
  int in = 0;
  for (const int steps : how.steps) in += step < steps ? 1 : 0;
  for (int rank = 0; rank < how.ranks(); ++rank) {
    if (step >= how.own(rank, epoch)) continue;
    how.prepare(net, rank, step);
    for (int micro = 0; micro < (how.accumulates ? 2 : 1); ++micro) {
      const int divisor = how.join.divide_by_world ? how.ranks() : in;
      (loss_of(net->forward(batch_of(rank, step, micro))) / divisor).backward();
    }
  }
  optimizer.step();
}

void check_like(const Net& net, const Net& alone, const std::string& what) {
  for (std::size_t i = 0; i < net->parameters().size(); ++i) {
    check_near(net->parameters()[i], alone->parameters()[i], 1e-12, what);
  }
}

void run_uneven(ProcessGroup& world, const Uneven& how) {
  Net net = make_net(), alone = make_net();
  auto model = DistributedDataParallel(net, world, how.options);
  if (how.hook) model.set_communication_hook("mean", how.hook);
  auto optimizer = make_sgd(net, how), alone_optimizer = make_sgd(alone, how);
  const int rank = world.rank();
  for (int epoch = 0; epoch < 2; ++epoch) {
    const int own = how.own(rank, epoch);
    auto join = model.join(how.join);
    for (int step = 0; step < own; ++step) {
      how.freeze(net, step);
      how.prepare(net, rank, step);
      if (how.accumulates) {
        const auto local = model.no_sync();
        loss_of(model.forward(batch_of(rank, step))).backward();
      }
      loss_of(model.forward(batch_of(rank, step, how.accumulates ? 1 : 0))).backward();
      optimizer.step();
      optimizer.zero_grad();
      step_alone(alone, alone_optimizer, how, epoch, step);
      check_like(net, alone, "step " + std::to_string(step));
    }
    if (how.follows) {
      int step = own;
      join.finish([&] {
        how.freeze(net, step);
        optimizer.step();
        optimizer.zero_grad();
        step_alone(alone, alone_optimizer, how, epoch, step);
        check_like(net, alone, "followed step " + std::to_string(step++));
      });
    } else {
      join.finish();
      for (int step = own; step < how.longest(); ++step) {
        step_alone(alone, alone_optimizer, how, epoch, step);
      }
    }
    how.freeze(net, how.longest() - 1);  // as the ranks that left last
    check_like(net, alone, "after epoch " + std::to_string(epoch));
    check_same_everywhere(world, *net);
  }
  const auto stats = model.stats();
  const int own = how.own(rank, 0) + how.own(rank, 1);
  check(stats.steps == static_cast<std::uint64_t>(own), "steps");
  check(stats.shadowed == static_cast<std::uint64_t>(2 * how.longest() - own), "shadowed");
}

void train_unevenly(const Uneven& how) {
  on_ranks(how.ranks(), [&](ProcessGroup& world) { run_uneven(world, how); });
}

const DataParallelOptions kSmallBuckets = {.bucket_bytes = 512};

TEST(Join, EveryRankMayRunOutFirst) {
  const std::vector<std::vector<int>> all = {{3, 1}, {0, 3}, {1, 4, 2}, {4, 0, 2, 1}, {2, 2}};
  for (const auto& steps : all) {
    train_unevenly({.steps = steps, .options = kSmallBuckets});
  }
}

TEST(Join, RanksThatFollowKeepTheirOptimizersState) {
  for (const bool views : {true, false}) {
    train_unevenly({.steps = {1, 4, 2},
                    .options = {.bucket_bytes = 512, .gradients_as_views = views},
                    .follows = true});
  }
}

TEST(Join, AveragesMayDivideByTheRanksStillIn) {
  train_unevenly(
      {.steps = {1, 4, 2}, .options = kSmallBuckets, .join = {.divide_by_world = false}});
  train_unevenly({.steps = {3, 1, 0},
                  .options = kSmallBuckets,
                  .join = {.divide_by_world = false},
                  .follows = true,
                  .hook = [](const GradientBucket& bucket, ProcessGroup& group) {
                    return group.all_reduce(bucket.gradients, {.op = bucket.mean}, async,
                                            bucket.where);
                  }});
}

/// Thirds of the ranks' gradients, added, have other bits than a third of their sum.
TEST(Join, WhileAllRanksAreInMeansHaveTheBitsOfThoseOutsideOfAJoin) {
  on_ranks(3, [](ProcessGroup& world) {
    const auto hash_after_training = [&](const std::optional<JoinOptions>& how) {
      Net net = make_net();
      auto model = DistributedDataParallel(net, world, kSmallBuckets);
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      std::optional<detail::DataParallel::Join> join;
      if (how) join.emplace(model, *how, Where::current());
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        loss_of(model.forward(batch_of(world.rank(), step))).backward();
        optimizer.step();
      }
      return parameter_hash(*net);
    };
    const std::uint64_t outside = hash_after_training({});
    for (const bool by_world : {true, false}) {
      check(hash_after_training(JoinOptions{.divide_by_world = by_world}) == outside,
            by_world ? "divided by all" : "divided by those who are in");
    }
  });
}

TEST(Join, GoesWithNoSyncUnusedParametersFreezingAndHooks) {
  const auto skip = [](Net& net, int rank, int step) { net->skipped = (rank + step) % 4; };
  const auto thaw = [](Net& net, int step) {
    for (Tensor& parameter : net->spare->parameters()) parameter.requires_grad_(step % 3 != 1);
    for (Tensor& parameter : net->blocks[0]->parameters()) parameter.requires_grad_(step % 3 != 2);
  };
  const auto hook = [](const GradientBucket& bucket, ProcessGroup& group) {
    return group.all_reduce(bucket.gradients, {.op = bucket.mean}, async, bucket.where);
  };
  for (const bool follows : {false, true}) {
    const DataParallelOptions unused = {.bucket_bytes = 512, .find_unused_parameters = true};
    train_unevenly({.steps = {2, 5}, .options = unused, .follows = follows, .prepare = skip});
    train_unevenly({.steps = {1, 5, 3},
                    .options = unused,
                    .follows = follows,
                    .accumulates = true,
                    .prepare = skip,
                    .freeze = thaw,
                    .hook = hook});
    train_unevenly({.steps = {5, 2},
                    .options = kSmallBuckets,
                    .follows = follows,
                    .accumulates = true,
                    .freeze = thaw});
  }
}

TEST(Join, GoesWithAStaticGraph) {
  train_unevenly({.steps = {0, 4, 2},
                  .options = {.bucket_bytes = 512, .static_graph = true},
                  .follows = true,
                  .prepare = [](Net& net, int rank, int) {
                    net->use_spare = false;
                    net->skipped = rank;
                  }});
}

/// Ends with each rank's hash: uneven, compressed and clipped, on ranks with unlike numbers of
/// threads.
std::string hash_of_training(const test_kit::Rank& me) {
  torch::set_num_threads(1 + me.rank % 2);
  ProcessGroup world = init_process_group(me.init);
  Net net = make_net();
  net->to(torch::kFloat);
  auto model = DistributedDataParallel(net, world, {.bucket_bytes = 256});
  model.set_communication_hook("bf16_compress", bf16_compress());
  torch::optim::Adam optimizer(net->parameters(), 0.01);
  const auto step = [&] {
    clip_grad_norm_(model.parameters(), 0.05);
    optimizer.step();
    optimizer.zero_grad();
    check_same_everywhere(world, *net);
  };
  for (int epoch = 0; epoch < 2; ++epoch) {
    auto join = model.join({.divide_by_world = epoch == 0});
    for (int i = 0; i < 2 + me.rank; ++i) {
      loss_of(model.forward(batch_of(me.rank, i).to(torch::kFloat))).backward();
      step();
    }
    join.finish(step);
  }
  return std::to_string(parameter_hash(*net));
}

TEST(Join, OneHashOnAllRanksAndLayoutsAtEveryStep) {
  std::set<std::string> hashes;
  for (const std::vector<int>& hosts :
       std::vector<std::vector<int>>{{}, {0, 0, 1, 1}, {0, 1, 0, 1}, {0, 1, 2, 3}}) {
    for (const auto& rank : test_kit::collect_ranks(
             4, hash_of_training, {.as = test_kit::As::processes, .hosts = hosts})) {
      EXPECT_EQ(rank.failure, "");
      hashes.insert(rank.result);
    }
  }
  EXPECT_EQ(hashes.size(), 1u);
}

TEST(Join, WhatNoSyncHasKeptGoesIntoTheNextBackwardOfTheOthers) {
  on_ranks(2, [](ProcessGroup& world) {
    Net net = make_net(), alone = make_net();
    auto model = DistributedDataParallel(net, world, kSmallBuckets);
    auto join = model.join();
    {
      const auto local = model.no_sync();
      loss_of(model.forward(batch_of(world.rank(), 0))).backward();
    }
    if (world.rank() == 1) loss_of(model.forward(batch_of(1, 1))).backward();
    join.finish([] {});
    const std::vector<std::pair<int, int>> all = {{0, 0}, {1, 0}, {1, 1}};
    for (const auto& [rank, step] : all) {
      (loss_of(alone->forward(batch_of(rank, step))) / 2).backward();
    }
    for (std::size_t i = 0; i < net->parameters().size(); ++i) {
      check_near(net->parameters()[i].grad(), alone->parameters()[i].grad(), 1e-12, "the mean");
    }
    for (const bool to_none : {true, false}) {
      model.zero_grad(to_none);
      auto next = model.join();
      if (world.rank() == 1) loss_of(model.forward(batch_of(1, 2))).backward();
      next.finish();
      check(net->parameters()[0].grad().defined() == (world.rank() == 1), "none without a step");
    }
  });
}

/// Where a join ends with what no_sync has kept.
struct KeptAtTheEnd {
  bool on_both;  ///< both ranks leave after one backward; else rank 1 makes another one first
  bool follows;
};

void train_and_keep(ProcessGroup& world, DistributedDataParallel<NetImpl>& model,
                    const KeptAtTheEnd& how) {
  const auto zero = [&] { model.zero_grad(); };
  auto join = model.join();
  const int backwards = how.on_both ? 1 : 1 + world.rank();
  for (int step = 0; step < backwards; ++step) {
    loss_of(model.forward(batch_of(world.rank(), step))).backward();
    zero();
  }
  if (how.on_both || world.rank() == 1) {
    const auto local = model.no_sync();
    loss_of(model.forward(batch_of(world.rank(), 8))).backward();
  }
  how.follows ? join.finish(zero) : join.finish();
}

TEST(Join, WhatTheLastToLeaveHasKeptGoesIntoTheNextBackward) {
  on_ranks(2, [](ProcessGroup& world) {
    for (const KeptAtTheEnd& how :
         {KeptAtTheEnd{false, false}, {false, true}, {true, false}, {true, true}}) {
      for (const bool joins : {false, true}) {
        Net net = make_net(), alone = make_net();
        auto model = DistributedDataParallel(net, world, kSmallBuckets);
        train_and_keep(world, model, how);
        std::optional<detail::DataParallel::Join> next;
        if (joins) next.emplace(model, JoinOptions{}, Where::current());
        loss_of(model.forward(batch_of(world.rank(), 9))).backward();
        for (const auto& [rank, step] : {std::pair{0, 8}, {1, 8}, {0, 9}, {1, 9}}) {
          if (step == 8 && rank == 0 && !how.on_both) continue;
          (loss_of(alone->forward(batch_of(rank, step))) / 2).backward();
        }
        for (std::size_t i = 0; i < net->parameters().size(); ++i) {
          check_near(net->parameters()[i].grad(), alone->parameters()[i].grad(), 1e-12, "the mean");
        }
      }
    }
  });
}

TEST(Join, NothingIsKeptWhereTheLastMicroBatchOfARankExchanges) {
  on_ranks(2, [](ProcessGroup& world) {
    const std::vector<int> counts = {3, 5};  // of micro-batches; two make a step
    Net net = make_net(), single = make_net();
    auto model = DistributedDataParallel(net, world, kSmallBuckets);
    torch::optim::SGD optimizer(net->parameters(), 0.1),
        single_optimizer(single->parameters(), 0.1);
    const auto step = [&] {
      optimizer.step();
      optimizer.zero_grad();
    };
    const int own = counts[static_cast<std::size_t>(world.rank())];
    auto join = model.join();
    for (int micro = 0; micro < own; ++micro) {
      const bool exchanges = micro % 2 == 1 || micro + 1 == own;
      std::optional<detail::DataParallel::NoSync> local;
      if (!exchanges) local.emplace(model);
      loss_of(model.forward(batch_of(world.rank(), micro))).backward();
      if (exchanges) step();
    }
    join.finish(step);
    for (int first = 0; first < counts[1]; first += 2) {
      for (const int rank : {0, 1}) {
        for (int micro = first; micro < first + 2; ++micro) {
          if (micro >= counts[static_cast<std::size_t>(rank)]) continue;
          (loss_of(single->forward(batch_of(rank, micro))) / 2).backward();
        }
      }
      single_optimizer.step();
      single_optimizer.zero_grad();
    }
    check_like(net, single, "every micro-batch counts once");
    check_same_everywhere(world, *net);
  });
}

TEST(Join, BuffersComeFromTheLowestRankStillIn) {
  on_ranks(3, [](ProcessGroup& world) {
    torch::manual_seed(1);
    torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::BatchNorm1d(8));
    auto model = DistributedDataParallel(net, world);
    auto join = model.join();
    const auto mean = [&] { return net->buffers()[0]; };
    for (int step = 0; step < 2 * world.rank(); ++step) {  // 0, 2, 4 of them
      const torch::NoGradGuard no_grad;
      mean().fill_(10 * world.rank());
      const Tensor input = torch::zeros({4, 4});
      const Tensor output = net[0]->as<torch::nn::Linear>()->forward(input).mean(0);
      model.forward(input);
      const double of_root = 10 * (step < 2 ? 1 : 2);
      check_near(mean(), 0.9 * of_root + 0.1 * output, 1e-5, "step " + std::to_string(step));
    }
    join.finish();
    Tensor last = mean().clone();
    world.broadcast(last, {.root = 2});
    check(last.equal(mean()), "at the end those of who left last");
  });
}

TEST(Join, TheDestructorDoesTheSame) {
  on_ranks(3, [](ProcessGroup& world) {
    Net net = make_net();
    auto model = DistributedDataParallel(net, world, kSmallBuckets);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    {
      const auto join = model.join();
      for (int step = 0; step <= world.rank(); ++step) {
        optimizer.zero_grad();
        loss_of(model.forward(batch_of(world.rank(), step))).backward();
        optimizer.step();
      }
    }
    check_same_everywhere(world, *net);
    check(model.stats().shadowed == static_cast<std::uint64_t>(2 - world.rank()), "shadowed");
  });
}

TEST(Join, NestedOrFinishedTwiceIsRefused) {
  on_ranks(2, [](ProcessGroup& world) {
    Net net = make_net();
    auto model = DistributedDataParallel(net, world, kSmallBuckets);
    {
      auto join = model.join();
      check_contains(error_of(ErrorCode::kInvalidArgument, [&] { auto inner = model.join(); }),
                     "join inside a join; finish the first one before");
      loss_of(model.forward(share(world, 0))).backward();
      join.finish();
      check_contains(error_of(ErrorCode::kInvalidArgument, [&] { join.finish(); }),
                     "finish of a join that has been finished");
    }
    auto join = model.join();  // another one
    join.finish();
  });
}

/// Every rank's words about what goes wrong in `body(world, net, model)`.
std::vector<std::string> told_in(
    int ranks,
    const std::function<void(ProcessGroup&, Net&, DistributedDataParallel<NetImpl>&)>& body) {
  return told_by_ranks(ranks, [&](ProcessGroup& world) {
    Net net = make_net();
    DistributedDataParallel model(net, world, {}, {"train.cc", 10});
    body(world, net, model);
  });
}

void expect_all(const std::vector<std::string>& told, const std::vector<std::string>& parts) {
  for (const std::string& text : told) {
    for (const std::string& part : parts) {
      EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
    }
  }
}

TEST(Join, OnSomeRanksOnlyIsToldOnAll) {
  const auto told = told_in(2, [](ProcessGroup& world, Net&, auto& model) {
    std::optional<detail::DataParallel::Join> join;
    if (world.rank() == 0) join.emplace(model, JoinOptions{}, Where::current());
    loss_of(model.forward(share(world, 0))).backward();
  });
  expect_all(told, {"kCollectiveMismatch: ", "rank 0 called all_gather",
                    " for a turn inside join of DistributedDataParallel 1 (train.cc:10)",
                    "rank 1 called all_reduce", "for bucket 1 of "});
}

TEST(Join, WithAnotherOptionIsToldOnAll) {
  const auto told = told_in(2, [](ProcessGroup& world, Net&, auto& model) {
    auto join = model.join({.divide_by_world = world.rank() == 0});
    loss_of(model.forward(share(world, 0))).backward();
  });
  expect_all(told, {"kCollectiveMismatch: ", "for a turn inside join of ",
                    "for a turn inside join that divides by the ranks still in of "});
}

TEST(Join, WhoHasLeftIsToldWhatTheOthersAre) {
  const auto disagree = [](bool finishes) {
    return told_in(3, [finishes](ProcessGroup& world, Net& net, auto& model) {
      auto join = model.join();
      const auto step = [&] { loss_of(model.forward(share(world, 0))).backward(); };
      step();
      if (world.rank() > 0) {
        if (world.rank() == 2) net->spare->parameters()[1].requires_grad_(false);
        step();
      }
      if (finishes) join.finish();
    });
  };
  const std::vector<std::string> parts = {
      "kCollectiveMismatch: ", "where spare.bias is trained no more", "rank 2 called barrier"};
  expect_all(disagree(true), parts);
  auto told = disagree(false);
  EXPECT_EQ(told[0], "nothing");  // its destructor only logs
  told.erase(told.begin());
  expect_all(told, parts);
}

TEST(Join, ARankThatLeavesByAnExceptionOrWithoutJoinIsNamed) {
  const auto told = told_in(2, [](ProcessGroup& world, Net&, auto& model) {
    auto join = model.join();
    loss_of(model.forward(share(world, 0))).backward();
    if (world.rank() == 1) throw Error(ErrorCode::kInvalidArgument, "a bad sample");
    loss_of(model.forward(share(world, 0))).backward();
  });
  EXPECT_EQ(told[1], "kInvalidArgument: a bad sample");
  EXPECT_NE(told[0].find("rank 1"), std::string::npos) << told[0];
  EXPECT_EQ(told[0].find("kTimeout"), std::string::npos) << told[0];

  const auto without = told_in(2, [](ProcessGroup& world, Net&, auto& model) {
    for (int step = 0; step < 2 - world.rank(); ++step) {
      loss_of(model.forward(share(world, 0))).backward();
    }
    world.close();
  });
  EXPECT_NE(without[0].find("rank 1"), std::string::npos) << without[0];
  EXPECT_NE(without[0].find("kClosed"), std::string::npos) << without[0];
}

TEST(Join, ACollectiveOfTheLoopIsNotShadowedAndTold) {
  const auto told = told_in(2, [](ProcessGroup& world, Net&, auto& model) {
    auto join = model.join();
    for (int step = 0; step < 2 - world.rank(); ++step) {
      loss_of(model.forward(share(world, 0))).backward();
      if (step == 1) world.all_reduce_value(1);
    }
    join.finish();
  });
  expect_all(told, {"kCollectiveMismatch: ", "rank 0 called all_reduce", "rank 1 called all_gather",
                    "for a turn inside join"});
}

}  // namespace
}  // namespace tutti::ddp
