// init_sync, static_graph and stats.
#include <thread>

#include "block_net.h"

namespace tutti::ddp {
namespace {

TEST(InitSync, WithoutItEveryRankKeepsItsParameters) {
  on_ranks(2, [](ProcessGroup& world) {
    torch::nn::Sequential net(torch::nn::Linear(2, 2), torch::nn::BatchNorm1d(2));
    const torch::NoGradGuard no_grad;
    for (const bool sync : {false, true}) {
      net->parameters()[0].fill_(world.rank() + 1);
      net->buffers()[0].fill_(world.rank() + 1);
      DistributedDataParallel(net, world, {.init_sync = sync});
      const double kept = sync ? 1 : world.rank() + 1;
      check(net->parameters()[0].eq(kept).all().item<bool>(), "parameters");
      check(net->buffers()[0].eq(kept).all().item<bool>(), "buffers");
    }
  });
}

TEST(InitSync, TheModelIsCheckedAllTheSameAndSoIsTheOption) {
  on_ranks(2, [](ProcessGroup& world) {
    const bool second = world.rank() == 1;
    const auto wrap = [&](std::int64_t width, bool sync) {
      return error_of(ErrorCode::kCollectiveMismatch, [&] {
        DistributedDataParallel(torch::nn::Linear(width, 1), world, {.init_sync = sync});
      });
    };
    check_contains(wrap(second ? 3 : 2, false), "rank 1 has 'parameter weight [1, 3]");
    check_contains(wrap(2, second), "init_sync 1");
  });
}

/// The gradients of one process that has every rank's share, with the blocks that rank leaves out.
std::vector<Tensor> mean_gradients(const Net& like, int step, const std::vector<int>& skipped) {
  std::vector<Tensor> mean(like->parameters().size());
  const auto ranks = static_cast<std::int64_t>(skipped.size());
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    Net alone = make_net();
    alone->use_spare = like->use_spare;
    alone->skipped = skipped[static_cast<std::size_t>(rank)];
    loss_of(alone->forward(batch(step).narrow(0, 12 / ranks * rank, 12 / ranks))).backward();
    for (std::size_t i = 0; i < mean.size(); ++i) {
      const Tensor gradient = alone->parameters()[i].grad();
      if (!gradient.defined()) continue;
      mean[i] = mean[i].defined() ? mean[i] + gradient / ranks : gradient / ranks;
    }
  }
  return mean;
}

TEST(StaticGraphs, UnusedParametersNeedNoWalkAndNoExchange) {
  on_ranks(2, [](ProcessGroup& world) {
    for (const bool views : {true, false}) {
      for (const bool to_none : {true, false}) {
        Net net = make_net();
        net->use_spare = false;       // used by nobody
        net->skipped = world.rank();  // each rank leaves out another block
        auto model = DistributedDataParallel(
            net, world, {.bucket_bytes = 512, .gradients_as_views = views, .static_graph = true});
        for (int step = 0; step < 4; ++step) {
          model.zero_grad(to_none);
          loss_of(model.forward(share(world, step))).backward();
          check_gradients(net, mean_gradients(net, step, {0, 1}), "step " + std::to_string(step));
        }
        check(model.stats().steps == 4, "steps");
      }
    }
  });
}

/// A block inside of a checkpoint and again outside of it.
Net make_twice_used(bool checkpointed) {
  Net net = make_net(checkpointed ? std::vector<std::int64_t>{1} : std::vector<std::int64_t>{});
  net->blocks[3] = net->blocks[1];
  for (const char* name : {"block3.0.weight", "block3.0.bias"}) {
    net->named_parameters()[name].requires_grad_(false);
  }
  return net;
}

TEST(StaticGraphs, AParameterMayGetSeveralGradients) {
  on_ranks(2, [](ProcessGroup& world) {
    for (const bool views : {true, false}) {
      Net net = make_twice_used(true);
      auto model = DistributedDataParallel(
          net, world, {.bucket_bytes = 256, .gradients_as_views = views, .static_graph = true});
      for (int step = 0; step < 4; ++step) {
        model.zero_grad();
        {
          const auto local = model.no_sync();
          loss_of(model.forward(share(world, step))).backward();
        }
        loss_of(model.forward(share(world, step + 1))).backward();
        Net alone = make_twice_used(false);
        for (int i = 0; i < 2; ++i) loss_of(alone->forward(batch(step + i))).backward();
        for (std::size_t i = 0; i < net->parameters().size(); ++i) {
          const Tensor expected = alone->parameters()[i].grad();
          check(expected.defined() == net->parameters()[i].grad().defined(), "is there");
          if (expected.defined()) check_near(net->parameters()[i].grad(), expected, 1e-12, "sum");
        }
        check_same_gradients(world, net);
      }
    }
  });
}

TEST(StaticGraphs, AFrozenSetHasAGraphOfItsOwn) {
  on_ranks(2, [](ProcessGroup& world) {
    Net net = make_net();
    auto model = DistributedDataParallel(net, world, {.bucket_bytes = 512, .static_graph = true});
    for (int step = 0; step < 6; ++step) {
      const bool frozen = step % 2 == 1;
      for (Tensor& parameter : net->spare->parameters()) parameter.requires_grad_(!frozen);
      model.zero_grad();
      net->skipped = frozen ? 2 : -1;
      loss_of(model.forward(share(world, step))).backward();
      auto expected = mean_gradients(net, step, {net->skipped, net->skipped});
      for (std::size_t i = 8; i < 10 && frozen; ++i) expected[i] = Tensor();
      check_gradients(net, expected, "step " + std::to_string(step));
    }
  });
}

/// What a rank is told whose third step is another one than the first two; all ranks', so that all
/// give it up. The next step is as the first again.
void differs(const std::function<void(Net&)>& first, const std::function<void(Net&)>& third,
             const std::string& told) {
  on_ranks(2, [&](ProcessGroup& world) {
    Net net = make_net();
    auto model = DistributedDataParallel(net, world, {.bucket_bytes = 512, .static_graph = true});
    const auto train = [&](int step, const std::function<void(Net&)>& prepare) {
      model.zero_grad();
      net->use_spare = true;
      net->skipped = -1;
      prepare(net);
      loss_of(model.forward(share(world, step))).backward();
      check_gradients(net, mean_gradients(net, step, {net->skipped, net->skipped}), "as ever");
    };
    train(0, first);
    train(1, first);
    check_contains(error_of(ErrorCode::kInvalidArgument, [&] { train(2, third); }), told);
    train(3, first);
  });
}

TEST(StaticGraphs, AStepThatUsesLessIsToldByName) {
  differs([](Net&) {}, [](Net& net) { net->use_spare = false; },
          "static_graph: this backward gave fewer gradients than the first one to spare.weight (0 "
          "instead of 1), spare.bias (0 instead of 1)");
}

TEST(StaticGraphs, AStepThatUsesMoreIsToldByName) {
  differs([](Net& net) { net->use_spare = false; }, [](Net&) {}, "static_graph: spare.");
  differs([](Net& net) { net->skipped = 1; }, [](Net&) {},
          " has got more gradients in this backward (1) than in the first one (0)");
}

TEST(StaticGraphs, AMicroBatchThatUsesMoreIsToldByName) {
  on_ranks(2, [](ProcessGroup& world) {
    for (const bool later : {false, true}) {
      Net net = make_net();
      net->use_spare = false;
      auto model = DistributedDataParallel(net, world, {.bucket_bytes = 512, .static_graph = true});
      if (later) loss_of(model.forward(share(world, 0))).backward();
      model.zero_grad();
      {
        const auto local = model.no_sync();
        net->use_spare = true;
        loss_of(model.forward(share(world, 1))).backward();
        net->use_spare = false;
      }
      const std::string text = error_of(
          ErrorCode::kInvalidArgument, [&] { loss_of(model.forward(share(world, 2))).backward(); });
      check_contains(text, later ? "was none on any rank in the first step, of spare.weight"
                                 : "spare.weight got a gradient inside no_sync and none in this");
    }
  });
}

TEST(StaticGraphs, AStepThatDiffersOnOneRankEndsOnAll) {
  const auto body = [](const test_kit::Rank& me) {
    torch::set_num_threads(1);
    ProcessGroup world = init_process_group(me.init);
    Net net = make_net();
    auto model = DistributedDataParallel(net, world, {.bucket_bytes = 512, .static_graph = true});
    const auto train = [&] { loss_of(model.forward(share(world, 0))).backward(); };
    train();
    net->use_spare = me.rank == 0;
    if (me.rank == 1) check_contains(error_of(ErrorCode::kInvalidArgument, train), "spare.weight");
    check_contains(error_of(ErrorCode::kCollectiveMismatch, train), "barrier");
    return std::string();
  };
  for (const auto& rank : test_kit::collect_ranks(2, body, {.as = test_kit::As::processes})) {
    EXPECT_EQ(rank.failure, "") << "rank " << rank.rank;
  }
}

TEST(Stats, TheRankThatComesLastIsKnownOnAll) {
  on_ranks(3, [](ProcessGroup& world) {
    Net net = make_net();
    auto model = DistributedDataParallel(net, world, {.bucket_bytes = 512});
    for (int step = 0; step < 16; ++step) {
      check(model.stats().last_to_arrive == std::vector<std::uint64_t>(3), "not known before");
      const Tensor loss = loss_of(model.forward(share(world, step)));
      if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      loss.backward();
    }
    auto last = model.stats().last_to_arrive;
    check(last[0] + last[1] + last[2] == 16, "one in each step");
    check(last[1] > 8, "rank 1 was late, most of the time at least");
    world.broadcast(last);
    check(last == model.stats().last_to_arrive, "the same on all ranks");
  });
}

}  // namespace
}  // namespace tutti::ddp
