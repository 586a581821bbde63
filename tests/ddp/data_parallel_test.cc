// What DistributedDataParallel promises besides the right gradients: errors that name names, unused
// and shared parameters, accumulation, checkpointed blocks, buffers, and nothing stale after a
// failure.
#include <optional>
#include <sstream>
#include <thread>

#include "block_net.h"

namespace tutti::ddp {
namespace {

// ---- gradients -------------------------------------------------------------------------------

TEST(DataParallel, GradientsAreTheMeanInEveryModeOfKeepingThem) {
  on_ranks(2, [](ProcessGroup& world) {
    for (const bool views : {true, false}) {
      for (const bool to_none : {true, false}) {
        Net net = make_net();
        auto model =
            DistributedDataParallel(net, world, {.bucket_bytes = 512, .gradients_as_views = views});
        for (int step = 0; step < 4; ++step) {
          model.zero_grad(to_none);
          loss_of(model.forward(share(world, step))).backward();
          check_gradients(net, expected_gradients(net, step), "step " + std::to_string(step));
        }
        const DataParallelStats stats = model.stats();
        check(stats.steps == 4 && stats.buckets > 1, "stats");
        check(stats.bytes >= net->parameters().size() * 6 * sizeof(double), "stats.bytes");
        check(stats.total >= stats.exposed && stats.communicate.count() > 0, "times");
      }
    }
  });
}

TEST(DataParallel, BucketsOverlapWhereAnotherHostHasAPartInThem) {
  for (const bool apart : {false, true}) {
    test_kit::run_ranks(
        2,
        [&](ProcessGroup& world) {
          torch::set_num_threads(static_cast<int>(std::thread::hardware_concurrency()));
          Net net = make_net();
          auto model = DistributedDataParallel(net, world, {.bucket_bytes = 512});
          loss_of(model.forward(share(world, 0))).backward();
          check_gradients(net, expected_gradients(net, 0), "reduced either way");
          check(model.stats().overlaps == apart, "no core is spare on one host");
        },
        {.as = test_kit::As::processes, .hosts = apart ? std::vector{0, 1} : std::vector<int>{}});
  }
}

TEST(DataParallel, AGradientThatIsGivenOtherMemoryIsExchanged) {
  on_ranks(2, [](ProcessGroup& world) {
    Net net = make_net();
    auto model = DistributedDataParallel(net, world, {.bucket_bytes = 512});
    for (int step = 0; step < 3; ++step) {
      loss_of(model.forward(share(world, step))).backward();
      check_gradients(net, expected_gradients(net, step), "step " + std::to_string(step));
      for (Tensor& parameter : net->parameters())
        parameter.mutable_grad().set_data(torch::zeros_like(parameter));
    }
  });
}

// ---- steps that are given up -------------------------------------------------------------------

/// Backward of what this is part of fails where it comes to it, `count` times more.
Tensor failing(const Tensor& value, int* count) {
  const Tensor result = value * 1;
  result.register_hook([count](const Tensor& gradient) {
    if ((*count)-- > 0) throw std::runtime_error("given up");
    return gradient;
  });
  return result;
}

template <class Call>
void check_given_up(Call call) {
  try {
    call();
  } catch (const std::exception& error) {
    check_contains(error.what(), "given up");
    return;
  }
  check(false, "nothing was thrown");
}

TEST(DataParallel, ABackwardMayBeTriedAgain) {
  for (const std::vector<int>& hosts : {std::vector<int>{}, {0, 1}}) {
    test_kit::run_ranks(2,
                        [](ProcessGroup& world) {
                          torch::set_num_threads(1);
                          for (const bool at_the_loss : {true, false}) {
                            Net net = make_net();
                            auto model = DistributedDataParallel(net, world, {.bucket_bytes = 512});
                            for (int step = 0; step < 3; ++step) {
                              model.zero_grad();
                              int failures = 1;
                              Tensor input = share(world, step);
                              if (!at_the_loss)
                                input = failing(input.clone().requires_grad_(), &failures);
                              Tensor loss = loss_of(model.forward(input));
                              if (at_the_loss) loss = failing(loss, &failures);
                              check_given_up([&] { loss.backward({}, /*keep_graph=*/true); });
                              model.zero_grad();
                              loss.backward();
                              check_gradients(net, expected_gradients(net, step),
                                              "the second backward");
                            }
                          }
                        },
                        {.as = test_kit::As::processes, .hosts = hosts});
  }
}

TEST(DataParallel, EvaluationAfterAStepThatWasGivenUpExchangesNothing) {
  on_ranks(2, [](ProcessGroup& world) {
    Net net = make_net();
    auto model = DistributedDataParallel(net, world, {.bucket_bytes = 512});
    for (int step = 0; step < 2; ++step) {
      int failures = 1;
      const Tensor input = failing(share(world, step).clone().requires_grad_(), &failures);
      const Tensor loss = loss_of(model.forward(input));
      check_given_up([&] { loss.backward(); });
      if (world.rank() == step) {
        const torch::NoGradGuard no_grad;
        model.forward(batch(50));
      }
      world.barrier();
      model.zero_grad();
      loss_of(model.forward(share(world, step))).backward();
      check_gradients(net, expected_gradients(net, step), "the next step");
    }
  });
}

TEST(DataParallel, ALastStepThatOneRankGaveUpIsToldToAll) {
  const auto told = told_by_ranks(2, [](ProcessGroup& world) {
    Net net = make_net();
    auto model = DistributedDataParallel(net, world, {.bucket_bytes = 512});
    int failures = world.rank();
    const Tensor input = failing(share(world, 0).clone().requires_grad_(), &failures);
    const Tensor loss = loss_of(model.forward(input));
    if (world.rank() == 1) check_given_up([&] { loss.backward(); });
    if (world.rank() == 0) loss.backward();
    world.barrier();
  });
  for (const std::string& text : told) EXPECT_EQ(text.find("kCollectiveMismatch: "), 0u) << text;
}

TEST(DataParallel, TheContextOfAnErrorHasWhatItsTextSays) {
  on_ranks(1, [](ProcessGroup& world) {
    const auto net = std::make_shared<torch::nn::Module>();
    net->register_parameter("weight", torch::zeros({1, 2}).to_sparse());
    try {
      DistributedDataParallel(net, world);
    } catch (const Error& error) {
      check_contains(error.what(), "DistributedDataParallel 1 (data_parallel_test.cc:");
      check_contains(error.what(), "), rank 0: weight: sparse tensor");
      const ErrorContext& context = error.context();
      check(context.op == "DistributedDataParallel", context.op);
      check(context.rank == 0, "rank");
      check_contains(context.call_site, "data_parallel_test.cc:");
      return;
    }
    throw std::runtime_error("nothing was thrown");
  });
}

TEST(DataParallel, AWrapperThatWasMovedFromSaysSo) {
  on_ranks(1, [](ProcessGroup& world) {
    Net net = make_net();
    DistributedDataParallel first(net, world);
    DistributedDataParallel second(std::move(first));
    const auto says_so = [](const std::function<void()>& call) {
      check_contains(error_of(ErrorCode::kInvalidArgument, call), "has been moved from");
    };
    says_so([&] { first.forward(batch(0)); });
    says_so([&] { (void)first.stats(); });
    says_so([&] { const auto local = first.no_sync(); });
    says_so([&] { const auto join = first.join(); });
    check_contains(error_of(ErrorCode::kUnsupported, [&] { (void)second.clone(); }),
                   "model.module()->clone()");
    loss_of(second.forward(batch(0))).backward();
  });
}

TEST(DataParallel, NoSyncGoesWithAWrapperThatIsMoved) {
  on_ranks(2, [](ProcessGroup& world) {
    Net net = make_net();
    DistributedDataParallel first(net, world, {.bucket_bytes = 512});
    std::optional<detail::DataParallel::NoSync> local(std::in_place, first);
    loss_of(first.forward(share(world, 0))).backward();
    DistributedDataParallel second(std::move(first));
    check(second.stats().steps == 0, "nothing was exchanged");
    local.reset();
    loss_of(second.forward(share(world, 1))).backward();
    check(second.stats().steps == 1, "now it is");
    check_gradients(net, expected_gradients(net, 0, 2), "two micro-batches");
  });
}

/// Gradients would be the mean over one group, or over the other.
TEST(DataParallel, AParameterIsTrainedOverTheSameRanksByAllItsWrappers) {
  on_ranks(2, [](ProcessGroup& world) {
    ProcessGroup own = world.new_group({world.rank()});
    ProcessGroup both = world.new_group({0, 1});
    Net net = make_net();
    {
      DistributedDataParallel alone(net, own, {}, {"train.cc", 10});
      const std::string text = error_of(ErrorCode::kInvalidArgument, [&] {
        DistributedDataParallel model(net, world, {}, {"train.cc", 11});
      });
      check_contains(text, "is trained by DistributedDataParallel 1 (train.cc:10) as well");
      loss_of(alone.forward(share(world, 0))).backward();
    }
    net->zero_grad();
    DistributedDataParallel model(net, world), of_the_same_ranks(net, both);
    loss_of(model.forward(share(world, 0))).backward();
    check_gradients(net, expected_gradients(net, 0), "the mean over all ranks");
  });
}

TEST(DataParallel, AThawedParameterIsNotTrainedOverOtherRanksAsWell) {
  on_ranks(2, [](ProcessGroup& world) {
    ProcessGroup own = world.new_group({world.rank()});
    torch::nn::Linear shared(6, 2), head(2, 1);
    shared->to(torch::kDouble);
    head->to(torch::kDouble);
    torch::nn::Sequential net(shared, head);
    for (Tensor& parameter : shared->parameters()) parameter.requires_grad_(false);
    DistributedDataParallel whole(net, world, {}, {"train.cc", 10});
    for (Tensor& parameter : shared->parameters()) parameter.requires_grad_(true);
    DistributedDataParallel part(shared, own, {}, {"train.cc", 11});
    const std::string text =
        error_of(ErrorCode::kInvalidArgument, [&] { whole.forward(batch(0)); });
    check_contains(text, "0.weight is trained by DistributedDataParallel 1 (train.cc:11) as well");
  });
}

TEST(DataParallel, GradientsStayInTheirBucketsBetweenSteps) {
  on_ranks(2, [](ProcessGroup& world) {
    Net net = make_net();
    auto model = DistributedDataParallel(net, world);
    loss_of(model.forward(share(world, 0))).backward();
    loss_of(model.forward(share(world, 0))).backward();  // after the buckets were reordered
    const void* const before = net->parameters()[0].grad().data_ptr();
    model.zero_grad(false);
    loss_of(model.forward(share(world, 1))).backward();
    check(net->parameters()[0].grad().data_ptr() == before, "same memory");
    check_gradients(net, expected_gradients(net, 1), "after zeroing in place");
    model.zero_grad();
    loss_of(model.forward(share(world, 1))).backward();
    check(net->parameters()[0].grad().data_ptr() == before, "pointed back after set_to_none");
  });
}

TEST(DataParallel, BucketsFollowTheObservedOrderAndKeepGradients) {
  on_ranks(2, [](ProcessGroup& world) {
    // Registered first but used last: the first guess is wrong.
    struct BackwardsImpl : torch::nn::Module {
      BackwardsImpl() {
        register_module("last", last);
        register_module("first", first);
      }
      Tensor forward(const Tensor& x) { return last(first(x)); }
      torch::nn::Linear last{torch::nn::LinearOptions(300, 2)}, first{6, 300};
    };
    torch::manual_seed(1);
    auto net = std::make_shared<BackwardsImpl>();
    net->to(torch::kDouble);
    auto model = DistributedDataParallel(net, world, {.bucket_bytes = 1000});
    loss_of(model.forward(share(world, 0))).backward();
    std::vector<Tensor> once;
    for (const Tensor& p : net->parameters()) once.push_back(p.grad().clone());
    loss_of(model.forward(share(world, 0))).backward();  // reorders while gradients are alive
    const auto parameters = net->parameters();
    for (std::size_t i = 0; i < once.size(); ++i) {
      check_near(parameters[i].grad(), 2 * once[i], 1e-12, "accumulated across the reordering");
    }
  });
}

TEST(DataParallel, NoSyncAccumulatesLocally) {
  on_ranks(2, [](ProcessGroup& world) {
    Net net = make_net();
    auto model = DistributedDataParallel(net, world, {.bucket_bytes = 512});
    for (int round = 0; round < 3; ++round) {
      model.zero_grad();
      {
        const auto local = model.no_sync();
        loss_of(model.forward(share(world, 2 * round))).backward();
        check(model.stats().steps == static_cast<std::uint64_t>(round), "nothing was exchanged");
      }
      loss_of(model.forward(share(world, 2 * round + 1))).backward();
      check_gradients(net, expected_gradients(net, 2 * round, 2), "two micro-batches");
    }
  });
}

/// A siamese model, or the discriminator of a GAN: the second forward copies buffers that the graph
/// of the first one has saved.
void train_with_two_forwards(ProcessGroup& world, bool in_one_backward) {
  const auto make = [] {
    torch::manual_seed(3);
    torch::nn::Sequential net(torch::nn::Linear(6, 8), torch::nn::BatchNorm1d(8),
                              torch::nn::Linear(8, 2));
    net->to(torch::kDouble);
    return net;
  };
  torch::nn::Sequential net = make(), alone = make();
  auto model = DistributedDataParallel(net, world);
  torch::optim::SGD optimizer(net->parameters(), 0.1), alone_optimizer(alone->parameters(), 0.1);
  const int ranks = world.world_size();
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const Tensor one = loss_of(model.forward(share(world, 2 * step)));
    const Tensor other = loss_of(model.forward(share(world, 2 * step + 1)));
    if (in_one_backward) {
      (one + other).backward();
    } else {
      one.backward();
      other.backward();
    }
    optimizer.step();
    check_same_everywhere(world, *net);
    alone_optimizer.zero_grad();
    for (int i = 0; i < 2 * ranks; ++i) {
      const Tensor part = batch(2 * step + i % 2).chunk(ranks)[static_cast<std::size_t>(i / 2)];
      (loss_of(alone->forward(part)) / ranks).backward();
    }
    alone_optimizer.step();
    for (std::size_t i = 0; i < net->parameters().size(); ++i) {
      check_near(net->parameters()[i], alone->parameters()[i], 1e-9, "as in one process");
    }
  }
}

TEST(DataParallel, SeveralForwardsOfABatchNormMayGoBeforeABackward) {
  for (const int ranks : {2, 3}) {
    on_ranks(ranks, [](ProcessGroup& world) {
      for (const bool in_one : {true, false}) train_with_two_forwards(world, in_one);
    });
  }
}

TEST(DataParallel, CheckpointedBlocksWork) {
  const std::vector<std::vector<std::int64_t>> placements = {{0}, {1}, {3}, {0, 1, 2, 3}, {1, 3}};
  on_ranks(2, [&](ProcessGroup& world) {
    for (const auto& checkpointed : placements) {
      for (const bool spare : {true, false}) {  // false: the last block is the first in backward
        Net net = make_net(checkpointed);
        net->use_spare = spare;
        net->spare->weight.requires_grad_(spare);
        net->spare->bias.requires_grad_(spare);
        auto model = DistributedDataParallel(net, world, {.bucket_bytes = 512});
        for (int step = 0; step < 3; ++step) {
          model.zero_grad();
          loss_of(model.forward(share(world, step))).backward();
          check(model.stats().steps == static_cast<std::uint64_t>(step + 1), "one step each");
          check_gradients(net, expected_gradients(net, step), "checkpointed");
        }
      }
    }
  });
}

TEST(DataParallel, SharedParametersCountOnce) {
  on_ranks(2, [](ProcessGroup& world) {
    struct TiedImpl : torch::nn::Module {
      TiedImpl() {
        register_module("a", a);
        register_module("b", b);
        b->weight = b->register_parameter("weight2", a->weight);
      }
      Tensor forward(const Tensor& x) { return torch::linear(a(x), b->weight); }
      torch::nn::Linear a{torch::nn::LinearOptions(6, 6).bias(false)};
      torch::nn::Linear b{torch::nn::LinearOptions(6, 6).bias(false)};
    };
    torch::manual_seed(3);
    auto net = std::make_shared<TiedImpl>();
    net->to(torch::kDouble);
    net->b->named_parameters()["weight"].requires_grad_(false);
    auto model = DistributedDataParallel(std::shared_ptr<TiedImpl>(net), world);
    loss_of(model.forward(share(world, 0))).backward();
    const Tensor weight = net->a->weight.detach().clone().requires_grad_(true);
    loss_of(torch::linear(torch::linear(batch(0), weight), weight)).backward();
    check_near(net->a->weight.grad(), weight.grad(), 1e-12, "tied weight");
  });
}

// ---- unused parameters, refusals, failures ---------------------------------------------------

TEST(DataParallel, UnusedParametersAreNamedAndTheNextStepIsClean) {
  on_ranks(2, [](ProcessGroup& world) {
    for (const bool checkpointed : {false, true}) {
      Net net =
          make_net(checkpointed ? std::vector<std::int64_t>{0, 3} : std::vector<std::int64_t>{});
      auto model = DistributedDataParallel(net, world, {.bucket_bytes = 512});
      for (int step = 0; step < 4; ++step) {
        model.zero_grad();
        net->use_spare = step % 2 == 1;
        const auto train = [&] { loss_of(model.forward(share(world, step))).backward(); };
        if (!net->use_spare) {
          const std::string message = error_of(ErrorCode::kInvalidArgument, train);
          check_contains(message, "2 of 10 parameters: spare.weight, spare.bias");
          check_contains(message, "find_unused_parameters");
        } else {
          train();
          check_gradients(net, expected_gradients(net, step), "after an error");
        }
      }
    }
  });
}

TEST(DataParallel, UnusedParametersAreFoundWhenAskedFor) {
  on_ranks(2, [](ProcessGroup& world) {
    Net net = make_net();
    net->use_spare = false;  // used by nobody
    auto model =
        DistributedDataParallel(net, world, {.bucket_bytes = 512, .find_unused_parameters = true});
    for (int step = 0; step < 3; ++step) {
      model.zero_grad();
      net->skipped = world.rank();  // each rank leaves out another block
      loss_of(model.forward(share(world, step))).backward();
      check(!net->spare->weight.grad().defined(), "a parameter that nobody used has no gradient");
      // Block r was used by the other rank only: its gradient is half of that rank's.
      std::vector<Tensor> expected(net->parameters().size());
      for (int rank = 0; rank < 2; ++rank) {
        Net alone = make_net();
        alone->use_spare = false;
        alone->skipped = rank;
        loss_of(alone->forward(batch(step).narrow(0, 6 * rank, 6))).backward();
        for (std::size_t i = 0; i < expected.size(); ++i) {
          const Tensor gradient = alone->parameters()[i].grad();
          if (!gradient.defined()) continue;
          expected[i] = expected[i].defined() ? expected[i] + gradient / 2 : gradient / 2;
        }
      }
      check_gradients(net, expected, "unused on one rank");
    }
  });
}

TEST(DataParallel, UnusedParametersAreJudgedAtTheEndAfterSeveralForwards) {
  on_ranks(2, [](ProcessGroup& world) {
    Net net = make_net();
    auto model =
        DistributedDataParallel(net, world, {.bucket_bytes = 512, .find_unused_parameters = true});
    for (int step = 0; step < 3; ++step) {
      model.zero_grad();
      net->skipped = 0;
      Tensor loss = loss_of(model.forward(share(world, step)));
      net->skipped = 1;  // each forward leaves out what the other one uses
      loss = loss + loss_of(model.forward(share(world, step)));
      loss.backward();
      Net alone = make_net();
      for (const int skipped : {0, 1}) {
        alone->skipped = skipped;
        loss_of(alone->forward(batch(step))).backward();
      }
      for (std::size_t i = 0; i < net->parameters().size(); ++i) {
        check_near(net->parameters()[i].grad(), alone->parameters()[i].grad(), 1e-12,
                   "sum of both");
      }

      model.zero_grad();  // used in the local micro-batch only: exchanged all the same
      net->skipped = -1;
      {
        const auto local = model.no_sync();
        loss_of(model.forward(share(world, step))).backward();
      }
      net->skipped = 2;
      loss_of(model.forward(share(world, step))).backward();
      check_same_gradients(world, net);
      check(net->blocks[2]->parameters()[0].grad().defined(), "accumulated");
    }
  });
}

TEST(DataParallel, GradientPenaltiesUseAutogradGrad) {
  on_ranks(2, [](ProcessGroup& world) {
    const auto penalised = [](auto& model, Tensor input) {
      input = input.clone().requires_grad_(true);
      const Tensor output = model.forward(input);
      const Tensor slope = torch::autograd::grad({output.sum()}, {input}, {}, true, true)[0];
      return loss_of(output) + slope.pow(2).mean();
    };
    Net net = make_net();
    auto model = DistributedDataParallel(net, world, {.bucket_bytes = 512});
    for (int step = 0; step < 2; ++step) {
      model.zero_grad();
      penalised(model, share(world, step)).backward();
      Net alone = make_net();
      penalised(*alone, batch(step)).backward();
      for (std::size_t i = 0; i < net->parameters().size(); ++i) {
        check_near(net->parameters()[i].grad(), alone->parameters()[i].grad(), 1e-12, "penalty");
      }
    }
  });
}

TEST(DataParallel, AStepGivenUpByOneRankAloneIsNotMistakenForTheNext) {
  const auto body = [](const test_kit::Rank& me) {
    torch::set_num_threads(1);
    ProcessGroup world = init_process_group(me.init);
    Net net = make_net();
    auto model = DistributedDataParallel(net, world, {.bucket_bytes = 512});
    const auto train = [&](int step) { loss_of(model.forward(share(world, step))).backward(); };
    train(0);
    if (me.rank == 1) {
      break_backward = true;
      try {
        train(1);
        check(false, "backward went through");
      } catch (const std::runtime_error& error) {
        check_contains(error.what(), "broken by the test");
      }
      break_backward = false;
    }
    const std::string message = error_of(ErrorCode::kCollectiveMismatch, [&] { train(2); });
    check_contains(message, "barrier");
    check_contains(message, "all_reduce");
    return std::string();
  };
  for (const auto& rank :
       test_kit::collect_ranks(2, body, {.as = test_kit::As::processes, .init = {}})) {
    EXPECT_EQ(rank.failure, "") << "rank " << rank.rank;
  }
}

TEST(DataParallel, AnExceptionInBackwardLeavesNothingStale) {
  on_ranks(2, [](ProcessGroup& world) {
    Net net = make_net({1});
    auto model = DistributedDataParallel(net, world, {.bucket_bytes = 512});
    for (int step = 0; step < 4; ++step) {
      model.zero_grad();
      auto loss = loss_of(model.forward(share(world, step)));
      break_backward = step % 2 == 0;  // after the first buckets have been launched
      try {
        loss.backward();
        check(!break_backward, "backward went through");
      } catch (const std::runtime_error& error) {
        check_contains(error.what(), "broken by the test");
      }
      if (!break_backward)
        check_gradients(net, expected_gradients(net, step), "after an exception");
    }
  });
}

TEST(DataParallel, SparseGradientsAndCreateGraphAreRefused) {
  on_ranks(2, [](ProcessGroup& world) {
    torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(10, 4).sparse(true));
    auto sparse = DistributedDataParallel(embedding, world);
    const std::string message = error_of(ErrorCode::kUnsupported, [&] {
      sparse.forward(torch::tensor({1, 2}, torch::kLong)).sum().backward();
    });
    check_contains(message, "the gradient of weight is sparse");

    torch::nn::Linear linear(4, 1);
    auto model = DistributedDataParallel(linear, world);
    const auto loss = [&] { return model.forward(torch::ones({2, 4})).pow(2).sum(); };
    check_contains(error_of(ErrorCode::kUnsupported,
                            [&] { loss().backward({}, std::nullopt, /*create_graph=*/true); }),
                   "create_graph");
    model.zero_grad();
    loss().backward();  // nothing stale
  });
}

TEST(DataParallel, AParameterInsideAndOutsideACheckpointIsNamed) {
  on_ranks(2, [](ProcessGroup& world) {
    Net net = make_net({1});
    net->blocks[3] = net->blocks[1];  // used again outside
    for (const char* name : {"block3.0.weight", "block3.0.bias"}) {
      net->named_parameters()[name].requires_grad_(false);
    }
    auto model = DistributedDataParallel(net, world);
    const std::string message = error_of(
        ErrorCode::kInvalidArgument, [&] { loss_of(model.forward(share(world, 0))).backward(); });
    check_contains(message, "block1.0.");
    check_contains(message, "second gradient");
  });
}

TEST(DataParallel, ModelsThatDifferAreNamedOnEveryRank) {
  on_ranks(3, [](ProcessGroup& world) {
    torch::nn::Sequential same(torch::nn::Linear(4, 4), torch::nn::Linear(4, 2));
    torch::nn::Sequential other(torch::nn::Linear(4, 4), torch::nn::Linear(4, 3));
    const std::string message = error_of(ErrorCode::kCollectiveMismatch, [&] {
      DistributedDataParallel(world.rank() == 2 ? other : same, world);
    });
    check_contains(message, "rank 0 has 'parameter 1.weight [2, 4]");
    check_contains(message, "rank 2 has 'parameter 1.weight [3, 4]");
    check_contains(error_of(ErrorCode::kCollectiveMismatch,
                            [&] {
                              DistributedDataParallel(
                                  same, world, {.bucket_bytes = world.rank() == 1 ? 1000u : 2000u});
                            }),
                   "bucket_bytes 1000");
    auto model = DistributedDataParallel(same, world);  // the group is still good
    model.forward(torch::ones({1, 4})).sum().backward();
  });
}

TEST(DataParallel, AnEmptyModuleAndOneWithoutTrainedParametersAreRefused) {
  on_ranks(1, [](ProcessGroup& world) {
    error_of(ErrorCode::kInvalidArgument,
             [&] { DistributedDataParallel(std::shared_ptr<NetImpl>(), world); });
    Net frozen = make_net();
    for (Tensor& parameter : frozen->parameters()) parameter.requires_grad_(false);
    error_of(ErrorCode::kInvalidArgument, [&] { DistributedDataParallel(frozen, world); });
  });
}

// ---- parameters, buffers, the module it is ---------------------------------------------------

TEST(DataParallel, ParametersAndBuffersComeFromRank0) {
  on_ranks(3, [](ProcessGroup& world) {
    torch::manual_seed(world.rank());
    torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::BatchNorm1d(8));
    const torch::NoGradGuard no_grad;
    net->buffers()[0].fill_(world.rank() + 1);
    auto model = DistributedDataParallel(net, world);
    check_same_everywhere(world, *net);
    check(net->buffers()[0].eq(1).all().item<bool>(), "running mean of rank 0");

    for (int step = 0; step < 3; ++step) {  // each rank sees other data
      model.forward(torch::randn({16, 4}) + world.rank());
    }
    Tensor mean = net->buffers()[0].clone();
    world.broadcast(mean, {.root = 0});
    const bool differs = !mean.equal(net->buffers()[0]);
    check(differs == (world.rank() != 0), "forward has changed the local statistics");
    const Tensor input = torch::randn({5, 4});
    model.forward(input);  // begins with rank 0's statistics, adds a tenth of its own
    const Tensor own = net[0]->as<torch::nn::Linear>()->forward(input).mean(0);
    check_near(net->buffers()[0], 0.9 * mean + 0.1 * own, 1e-5, "running mean");
    model.eval();
    if (world.rank() == 0) model.forward(torch::randn({2, 4}));  // evaluation is not collective
  });
}

TEST(DataParallel, ItIsAModuleAndTheWrappedOneSavesPlainly) {
  on_ranks(2, [](ProcessGroup& world) {
    torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Dropout(0.5));
    auto model = DistributedDataParallel(net, world);
    check(model.parameters().size() == 2, "parameters()");
    check(model.module() == net.ptr(), "module()");
    model.eval();
    check(!net->is_training(), "eval()");
    model.train();
    check(net->is_training(), "train()");

    std::stringstream file;
    torch::save(model.module(), file);
    torch::nn::Sequential loaded(torch::nn::Linear(4, 4), torch::nn::Dropout(0.5));
    torch::load(loaded, file);
    check(parameter_hash(*loaded) == parameter_hash(*net), "loads without Tutti");
    check(parameter_hash(model) == parameter_hash(*net), "the wrapper stands for its module");
  });
}

TEST(DataParallel, ItFollowsParametersThatWereLoadedOrConverted) {
  on_ranks(2, [](ProcessGroup& world) {
    Net net = make_net();
    auto model = DistributedDataParallel(net, world);
    std::stringstream file;
    torch::save(net, file);
    torch::load(net, file);
    loss_of(model.forward(share(world, 0))).backward();
    check_gradients(net, expected_gradients(net, 0), "after load");

    model.to(torch::kFloat);
    model.zero_grad();
    loss_of(model.forward(share(world, 1).to(torch::kFloat))).backward();
    check(net->parameters()[0].grad().scalar_type() == torch::kFloat, "gradients follow to()");
    check(model.stats().steps == 2, "and are exchanged");
  });
}

TEST(DataParallel, OutputsMayBeNested) {
  on_ranks(2, [](ProcessGroup& world) {
    struct ManyImpl : torch::nn::Module {
      ManyImpl() {
        register_module("a", a);
        register_module("b", b);
      }
      std::tuple<Tensor, std::map<std::string, std::vector<std::optional<Tensor>>>> forward(
          const Tensor& x, bool both) {
        if (!both) return {a(x), {}};
        return {a(x), {{"b", {std::nullopt, b(x)}}}};
      }
      torch::nn::Linear a{4, 1}, b{4, 1};
    };
    auto model = DistributedDataParallel(std::make_shared<ManyImpl>(), world,
                                         {.find_unused_parameters = true});
    for (const bool both : {true, false}) {
      model.zero_grad();
      const auto [a, rest] = model.forward(torch::ones({2, 4}), both);
      Tensor loss = a.sum();
      if (both) loss = loss + rest.at("b")[1]->sum();
      loss.backward();
      check(model.module()->b->weight.grad().defined() == both, "b");
      check_near(model.module()->a->weight.grad(), torch::full({1, 4}, 2.0), 1e-6, "a");
    }
  });
}

}  // namespace
}  // namespace tutti::ddp
