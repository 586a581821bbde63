// Training as users write it: models that freeze and thaw, several wrappers, copies, structs that
// are moved. Each form runs on wrapped models with a share of the batch and on plain ones with the
// whole of it, and must end with the same parameters.
#include "torch_ranks.h"

namespace tutti::ddp::forms {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

constexpr int kSteps = 8;

nn::Sequential make_mlp(std::uint64_t seed, std::int64_t in = 4, std::int64_t out = 1) {
  torch::manual_seed(seed);
  nn::Sequential net(nn::Linear(in, 6), nn::Tanh(), nn::Linear(6, 6), nn::Tanh(),
                     nn::Linear(6, out));
  net->to(torch::kDouble);
  return net;
}

void freeze(nn::Module& module, bool on = true) {
  for (Tensor& parameter : module.parameters()) parameter.requires_grad_(!on);
}

/// A batch that all ranks know, and one rank's share of it.
Tensor batch(int number, std::int64_t width = 4) {
  torch::manual_seed(100 + static_cast<std::uint64_t>(number));
  return torch::randn({12, width}, torch::kDouble);
}
struct Share {
  const ProcessGroup* world = nullptr;  // null: all of it
  Tensor operator()(const Tensor& whole) const {
    return world == nullptr ? whole : whole.chunk(world->world_size())[world->rank()];
  }
};

Tensor loss_of(const Tensor& output) { return (output - 1).pow(2).mean(); }

torch::optim::SGD make_sgd(const nn::Module& module) {
  return torch::optim::SGD(module.parameters(),
                           torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
}

void check_like(ProcessGroup& world, const nn::Module& net, const nn::Module& alone,
                const std::string& what) {
  check_same_everywhere(world, net);
  const auto expected = alone.named_parameters();
  const auto actual = net.named_parameters();
  for (const auto& item : expected) {
    check_near(actual[item.key()], item.value(), 1e-12, what + ": " + item.key());
  }
}

/// A plain model has none.
template <class Model>
auto no_sync_of(Model& model) {
  if constexpr (requires { model.no_sync(); }) {
    return model.no_sync();
  } else {
    return 0;
  }
}

/// Trains `form(model, net, share)` on two ranks and in one process. `model` is what is trained and
/// `net` the plain model in it.
template <class Form>
void compare(const std::string& what, Form form, const DataParallelOptions& options = {},
             const std::function<void(nn::Sequential&)>& prepare = {}) {
  on_ranks(2, [&](ProcessGroup& world) {
    nn::Sequential net = make_mlp(1), alone = make_mlp(1);
    for (nn::Sequential* each : {&net, &alone}) {
      if (prepare) prepare(*each);
    }
    DistributedDataParallel model(net, world, options);
    form(model, net, Share{&world});
    form(*alone, alone, Share{});
    check_like(world, *net, *alone, what);
  });
}

// ---- freezing and thawing ----------------------------------------------------------------------

TEST(Forms, AGanFreezesEachHalfInTheOthersStep) {
  const auto train = [](auto& g, nn::Sequential& g_net, auto& d, nn::Sequential& d_net,
                        const Share& share) {
    torch::optim::Adam g_optimizer(g_net->parameters(), 0.01),
        d_optimizer(d_net->parameters(), 0.01);
    for (int step = 0; step < kSteps; ++step) {
      freeze(*g_net);
      freeze(*d_net, false);
      d_optimizer.zero_grad();
      const Tensor made = g.forward(share(batch(3 * step)));  // frozen: no detach needed
      (loss_of(d.forward(share(batch(3 * step + 1)))) + d.forward(made).pow(2).mean()).backward();
      d_optimizer.step();

      freeze(*g_net, false);
      freeze(*d_net);
      g_optimizer.zero_grad();
      loss_of(d.forward(g.forward(share(batch(3 * step + 2))))).backward();
      g_optimizer.step();
    }
  };
  on_ranks(2, [&](ProcessGroup& world) {
    nn::Sequential g = make_mlp(1, 4, 4), d = make_mlp(2);
    nn::Sequential g_alone = make_mlp(1, 4, 4), d_alone = make_mlp(2);
    DistributedDataParallel wrapped_g(g, world, {.bucket_bytes = 256});
    DistributedDataParallel wrapped_d(d, world, {.bucket_bytes = 256});
    train(wrapped_g, g, wrapped_d, d, Share{&world});
    train(*g_alone, g_alone, *d_alone, d_alone, Share{});
    check_like(world, *g, *g_alone, "generator");
    check_like(world, *d, *d_alone, "discriminator");
    check(wrapped_g.stats().steps == kSteps, "the generator's gradients travel in its steps only");
  });
}

TEST(Forms, LayersAreThawedOneByOneAndFrozenAgain) {
  const auto train = [](auto& model, nn::Sequential& net, const Share& share) {
    auto optimizer = make_sgd(*net);
    for (int step = 0; step < 24; ++step) {  // 12 sets, more than are kept, some of them twice
      freeze(*net[0], step < 4 || step / 2 % 4 == 3);
      freeze(*net[2], step < 2 || step / 2 % 3 == 2);
      net[4]->as<nn::Linear>()->bias.requires_grad_(step / 2 % 5 != 4);
      optimizer.zero_grad();
      loss_of(model.forward(share(batch(step)))).backward();
      optimizer.step();
    }
  };
  const auto only_the_head = [](nn::Sequential& net) {
    freeze(*net[0]);
    freeze(*net[2]);
  };
  for (const bool views : {true, false}) {
    compare("gradual", train, {.bucket_bytes = 128, .gradients_as_views = views}, only_the_head);
  }
  compare("unused are looked for", train, {.find_unused_parameters = true}, only_the_head);
}

TEST(Forms, HeadsTakeTurnsWithTheirLosses) {
  compare("alternating", [](auto& model, nn::Sequential& net, const Share& share) {
    auto optimizer = make_sgd(*net);
    for (int step = 0; step < kSteps; ++step) {
      const bool first = step % 2 == 0;
      freeze(*net[0], !first);
      freeze(*net[4], first);
      optimizer.zero_grad(step % 3 == 0);  // kept gradients too
      const Tensor output = model.forward(share(batch(step)));
      (first ? loss_of(output) : output.abs().mean()).backward();
      optimizer.step();
    }
  });
}

TEST(Forms, AccumulationGoesThroughFreezing) {
  compare("no_sync", [](auto& model, nn::Sequential& net, const Share& share) {
    auto optimizer = make_sgd(*net);
    const auto backward = [&](int number) {
      loss_of(model.forward(share(batch(number)))).backward();
    };
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      freeze(*net[0], step % 4 == 1);
      {
        [[maybe_unused]] const auto local = no_sync_of(model);
        backward(3 * step);
        freeze(*net[2], step % 4 == 2);
        backward(3 * step + 1);
      }
      freeze(*net[0], step % 4 == 2);  // what it has got until now still counts
      freeze(*net[2], step % 4 == 3);
      backward(3 * step + 2);
      optimizer.step();
    }
  });
}

TEST(Forms, TheSetOfAForwardHoldsForItsBackward) {
  compare("frozen in between", [](auto& model, nn::Sequential& net, const Share& share) {
    auto optimizer = make_sgd(*net);
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      const Tensor all = loss_of(model.forward(share(batch(2 * step))));
      freeze(*net[0]);
      const Tensor rest = loss_of(model.forward(share(batch(2 * step + 1))));
      if (step % 2 == 0) rest.backward();
      freeze(*net[0], false);
      all.backward();
      if (step % 2 != 0) rest.backward();
      optimizer.step();
    }
  });
  compare("frozen after forward", [](auto& model, nn::Sequential& net, const Share& share) {
    auto optimizer = make_sgd(*net);
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      const Tensor loss = loss_of(model.forward(share(batch(step))));
      freeze(*net[2], step % 2 == 1);  // gets no gradient, in one process either
      loss.backward();
      freeze(*net[2], false);
      optimizer.step();
    }
  });
}

TEST(Forms, FreezingAfterForwardGoesWithAllElse) {
  const auto frozen_for = [](nn::Module& module, const Tensor& loss) {
    freeze(module);
    loss.backward();
    freeze(module, false);
  };
  for (const bool find_unused : {false, true}) {
    const DataParallelOptions options{.bucket_bytes = 128, .find_unused_parameters = find_unused};
    compare(
        "everything, then a part with kept gradients",
        [&](auto& model, nn::Sequential& net, const Share& share) {
          auto optimizer = make_sgd(*net);
          for (int step = 0; step < kSteps; ++step) {
            optimizer.zero_grad(step % 2 == 0);
            frozen_for(*net, loss_of(model.forward(share(batch(2 * step)))));
            frozen_for(*net[2], loss_of(model.forward(share(batch(2 * step + 1)))));
            optimizer.step();
          }
        },
        options);
    compare(
        "what no_sync kept",
        [&](auto& model, nn::Sequential& net, const Share& share) {
          auto optimizer = make_sgd(*net);
          for (int step = 0; step < kSteps; ++step) {
            optimizer.zero_grad();
            {
              [[maybe_unused]] const auto local = no_sync_of(model);
              loss_of(model.forward(share(batch(2 * step)))).backward();
            }
            frozen_for(*net[2], loss_of(model.forward(share(batch(2 * step + 1)))));
            optimizer.step();
          }
        },
        options);
    compare(
        "before another forward, with one backward for both",
        [&](auto& model, nn::Sequential& net, const Share& share) {
          auto optimizer = make_sgd(*net);
          for (int step = 0; step < kSteps; ++step) {
            optimizer.zero_grad();
            const Tensor all = loss_of(model.forward(share(batch(2 * step))));
            freeze(*net[0]);
            frozen_for(*net[0], all + loss_of(model.forward(share(batch(2 * step + 1)))));
            optimizer.step();
          }
        },
        options);
  }
}

TEST(Forms, AFrozenModelIsConverted) {
  compare("to()", [](auto& model, nn::Sequential& net, const Share& share) {
    freeze(*net);
    model.to(torch::kFloat);
    model.to(torch::kDouble);
    freeze(*net, false);
    auto optimizer = make_sgd(*net);
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      loss_of(model.forward(share(batch(step)))).backward();
      optimizer.step();
    }
  });
}

TEST(Forms, EvaluationWithGradients) {
  compare("eval()", [](auto& model, nn::Sequential& net, const Share& share) {
    auto optimizer = make_sgd(*net);
    for (int step = 0; step < kSteps; ++step) {
      freeze(*net[0], step % 2 == 1);
      if (share.world != nullptr && share.world->rank() == step % 2) {
        model.eval();  // one rank alone, gradients on, another set than before
        model.forward(batch(50));
        model.train();
      }
      optimizer.zero_grad();
      if (step % 3 == 0) model.eval();  // fine-tuning in evaluation mode
      loss_of(model.forward(share(batch(step)))).backward();
      model.train();
      optimizer.step();
    }
  });
}

// ---- optimizers that call the model ------------------------------------------------------------

/// The search follows the loss: the ranks' own ones would lead each rank somewhere else.
TEST(Forms, LbfgsSearchesByTheMeanOfTheRanksLosses) {
  on_ranks(3, [](ProcessGroup& world) {
    nn::Sequential net = make_mlp(1), alone = make_mlp(1);
    DistributedDataParallel model(net, world, {.bucket_bytes = 128});
    const auto options = torch::optim::LBFGSOptions(0.5).max_iter(5).line_search_fn("strong_wolfe");
    torch::optim::LBFGS optimizer(model.parameters(), options);
    torch::optim::LBFGS alone_optimizer(alone->parameters(), options);
    const Share share{&world};
    for (int step = 0; step < 4; ++step) {
      optimizer.step([&] {
        optimizer.zero_grad();
        const Tensor loss = loss_of(model.forward(share(batch(step))));
        loss.backward();
        Tensor mean = loss.detach().clone();
        world.all_reduce(mean, ReduceOp::avg);
        return mean;
      });
      check_same_everywhere(world, *net);
      alone_optimizer.step([&] {
        alone_optimizer.zero_grad();
        const Tensor loss = loss_of(alone->forward(batch(step)));
        loss.backward();
        return loss;
      });
    }
    check_like(world, *net, *alone, "LBFGS");
  });
}

// ---- several models ----------------------------------------------------------------------------

TEST(Forms, TwoWrappersOnOneGroup) {
  const auto train = [](auto& a, nn::Sequential& a_net, auto& b, nn::Sequential& b_net,
                        const Share& share) {
    auto a_optimizer = make_sgd(*a_net), b_optimizer = make_sgd(*b_net);
    for (int step = 0; step < kSteps; ++step) {
      a_optimizer.zero_grad();
      b_optimizer.zero_grad();
      const Tensor one = loss_of(a.forward(share(batch(2 * step))));
      const Tensor other = loss_of(b.forward(share(batch(2 * step + 1))));
      if (step % 2 == 0) {
        (one + 3 * other).backward();
      } else {
        other.backward();
        one.backward();
      }
      a_optimizer.step();
      b_optimizer.step();
    }
  };
  on_ranks(3, [&](ProcessGroup& world) {
    nn::Sequential a = make_mlp(1), b = make_mlp(2), a_alone = make_mlp(1), b_alone = make_mlp(2);
    DistributedDataParallel wrapped_a(a, world, {.bucket_bytes = 128});
    DistributedDataParallel wrapped_b(b, world, {.bucket_bytes = 128});
    train(wrapped_a, a, wrapped_b, b, Share{&world});
    train(*a_alone, a_alone, *b_alone, b_alone, Share{});
    check_like(world, *a, *a_alone, "a");
    check_like(world, *b, *b_alone, "b");
  });
}

struct TaskImpl : nn::Module {
  TaskImpl(const nn::Sequential& the_body, std::uint64_t seed) : body(the_body) {
    torch::manual_seed(seed);
    head = nn::Linear(1, 2);
    head->to(torch::kDouble);
    register_module("body", body);
    register_module("head", head);
  }
  Tensor forward(const Tensor& x) { return head(body->forward(x)); }
  nn::Sequential body;
  nn::Linear head{nullptr};
};
TORCH_MODULE(Task);

/// In turns, in two backwards of one step, and in one backward.
TEST(Forms, TwoHeadsShareABodyInAWrapperEach) {
  const auto train = [](auto& a, auto& b, const std::vector<Tensor>& parameters,
                        const Share& share) {
    torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(0.1));
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      const auto loss = [&](auto& model) { return loss_of(model.forward(share(batch(step)))); };
      if (step % 4 == 0) loss(a).backward();
      if (step % 4 == 1) loss(b).backward();
      if (step % 4 == 2) {
        loss(a).backward();
        loss(b).backward();
      }
      if (step % 4 == 3) (loss(a) + 3 * loss(b)).backward();
      optimizer.step();
    }
  };
  const auto models = [] {
    const nn::Sequential body = make_mlp(1);
    return std::pair(Task(body, 2), Task(body, 3));
  };
  const auto parameters_of = [](Task& a, Task& b) {
    std::vector<Tensor> all = a->parameters();
    for (const Tensor& parameter : b->head->parameters()) all.push_back(parameter);
    return all;
  };
  on_ranks(2, [&](ProcessGroup& world) {
    for (const bool views : {true, false}) {
      auto [a, b] = models();
      auto [a_alone, b_alone] = models();
      const DataParallelOptions options{.bucket_bytes = 64, .gradients_as_views = views};
      DistributedDataParallel one(a, world, options), other(b, world, options);
      train(one, other, parameters_of(a, b), Share{&world});
      train(*a_alone, *b_alone, parameters_of(a_alone, b_alone), Share{});
      check_like(world, *a, *a_alone, "a");
      check_like(world, *b, *b_alone, "b");
    }
  });
}

TEST(Forms, AMeanTeacherIsACopyThatFollows) {
  on_ranks(2, [](ProcessGroup& world) {
    const auto train = [](auto& model, nn::Sequential& net, const Share& share) {
      auto teacher = std::dynamic_pointer_cast<nn::SequentialImpl>(net->clone());
      freeze(*teacher);
      auto optimizer = make_sgd(*net);
      for (int step = 0; step < kSteps; ++step) {
        const Tensor input = share(batch(step));
        optimizer.zero_grad();
        (model.forward(input) - 1.5 * teacher->forward(input) - 0.1).pow(2).mean().backward();
        optimizer.step();
        const torch::NoGradGuard no_grad;
        const auto from = net->parameters();
        auto to = teacher->parameters();
        for (std::size_t i = 0; i < to.size(); ++i) to[i].mul_(0.9).add_(from[i], 0.1);
      }
      return teacher;
    };
    nn::Sequential net = make_mlp(1), alone = make_mlp(1);
    DistributedDataParallel model(net, world);
    const auto teacher = train(model, net, Share{&world});
    const auto alone_teacher = train(*alone, alone, Share{});
    check_like(world, *net, *alone, "student");
    check_like(world, *teacher, *alone_teacher, "teacher");
  });
}

/// The usual way to hold a job together.
struct Trainer {
  ProcessGroup world;
  nn::Sequential net;
  DistributedDataParallel<nn::SequentialImpl> model;

  Trainer(ProcessGroup the_world, const nn::Sequential& the_net)
      : world(std::move(the_world)), net(the_net), model(net, world) {}
  void train(int step) {
    auto optimizer = make_sgd(*net);
    optimizer.zero_grad();
    loss_of(model.forward(Share{&world}(batch(step)))).backward();
    optimizer.step();
  }
};

TEST(Forms, AStructOfWorldAndModelIsReturnedAndMoved) {
  on_ranks(2, [](ProcessGroup& world) {
    const auto make = [&](std::uint64_t seed) {
      Trainer trainer(world.new_group({0, 1}), make_mlp(seed));
      trainer.train(0);
      return std::make_optional(std::move(trainer));  // moved, not elided
    };
    std::vector<Trainer> trainers;
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      trainers.push_back(*make(seed));  // the vector grows
      trainers.front().train(1 + static_cast<int>(seed));
    }
    nn::Sequential alone = make_mlp(0);
    for (int step = 0; step < 4; ++step) {
      auto optimizer = make_sgd(*alone);
      optimizer.zero_grad();
      loss_of(alone->forward(batch(step))).backward();
      optimizer.step();
    }
    check_like(world, *trainers.front().net, *alone, "moved");
  });
}

// ---- mistakes ----------------------------------------------------------------------------------

/// What every rank is told of `mistake(world, net, model)`.
using Mistake = std::function<void(ProcessGroup&, nn::Sequential&,
                                   DistributedDataParallel<nn::SequentialImpl>&)>;
std::vector<std::string> told_of(const Mistake& mistake) {
  const auto body = [&](const test_kit::Rank& me) -> std::string {
    torch::set_num_threads(1);
    ProcessGroup world = init_process_group(me.init);
    nn::Sequential net(nn::Linear(4, 4), nn::Linear(4, 1));
    freeze(*net[0]);
    DistributedDataParallel model(net, world, {}, {"train.cc", 10});
    try {
      mistake(world, net, model);
    } catch (const Error& error) {
      return std::string(name_of(error.code())) + ": " + error.what();
    }
    return "nothing";
  };
  std::vector<std::string> told;
  for (const auto& rank : test_kit::collect_ranks(2, body, {.as = test_kit::As::processes})) {
    told.push_back(rank.failure.empty() ? rank.result : "FAILED " + rank.failure);
  }
  return told;
}

void step(DistributedDataParallel<nn::SequentialImpl>& model) {
  model.forward(torch::ones({2, 4}), {"train.cc", 20}).sum().backward();
}

/// Every rank's message when `rank_1` was in the barrier for `change` and rank 0 in its bucket.
std::vector<std::string> alone_with(const std::string& change) {
  const std::string bucket = " for bucket 1 of 1 of DistributedDataParallel 1 (train.cc:10)";
  const std::string barrier =
      " for the parameters of DistributedDataParallel 1 (train.cc:10), where " + change;
  const std::string cause =
      ": the ranks disagree about operation #4: rank 0 called all_reduce(f32 x 20, avg)" + bucket +
      " at train.cc:20; rank 1 called barrier" + barrier +
      " at train.cc:20. Every rank must call the same operations in the same order";
  return {"kCollectiveMismatch: all_reduce #4 (rank 0)" + bucket + " at train.cc:20" + cause,
          "kCollectiveMismatch: barrier #4 (rank 1)" + barrier + " at train.cc:20" + cause};
}

TEST(Mistakes, AChangeOnOneRankOnlyNamesRankAndParameter) {
  using Change = std::function<void(nn::Sequential&)>;
  const auto by_rank_1 = [](const Change& change) {
    return told_of([&](ProcessGroup& world, nn::Sequential& net, auto& model) {
      if (world.rank() == 1) change(net);
      step(model);
    });
  };
  EXPECT_EQ(by_rank_1([](auto& net) { net[1]->parameters()[1].requires_grad_(false); }),
            alone_with("1.bias is trained no more"));
  EXPECT_EQ(by_rank_1([](auto& net) { freeze(*net[0], false); }),
            alone_with("0.weight, 0.bias are trained from now on"));
  EXPECT_EQ(by_rank_1([](auto& net) { net->push_back(nn::Linear(1, 1)); }),
            alone_with("2.weight, 2.bias were added"));
}

TEST(Mistakes, FreezingAfterForwardOnOneRankOnlyNamesRankAndParameter) {
  EXPECT_EQ(told_of([](ProcessGroup& world, nn::Sequential& net, auto& model) {
              const Tensor loss = model.forward(torch::ones({2, 4}), {"train.cc", 20}).sum();
              Tensor bias = net[1]->parameters()[1];
              if (world.rank() == 1) bias.requires_grad_(false);
              loss.backward();
              bias.requires_grad_(true);
            }),
            alone_with("1.bias is trained no more"));
}

TEST(Mistakes, FreezingWhileBackwardRunsIsRefused) {
  const auto told = told_of([](ProcessGroup&, nn::Sequential& net, auto& model) {
    Tensor bias = net[1]->parameters()[1];
    const Tensor output = model.forward(torch::ones({2, 4}), {"train.cc", 20});
    output.register_hook([&](const Tensor&) { bias.requires_grad_(false); });
    try {
      output.sum().backward();
    } catch (const Error& error) {
      bias.requires_grad_(true);
      step(model);  // nothing stale
      throw;
    }
  });
  const std::string who = "kInvalidArgument: DistributedDataParallel 1 (train.cc:10), rank ";
  const std::string text = ": 1.bias was frozen while backward ran; freeze it before or after";
  EXPECT_EQ(told, (std::vector<std::string>{who + "0" + text, who + "1" + text}));
}

TEST(Mistakes, TwoChangesAreShownBoth) {
  const auto told = told_of([](ProcessGroup& world, nn::Sequential& net, auto& model) {
    net[1]->parameters()[static_cast<std::size_t>(world.rank())].requires_grad_(false);
    step(model);
  });
  for (const std::string& text : told) {
    EXPECT_NE(text.find("rank 0 called barrier for the parameters of DistributedDataParallel 1 "
                        "(train.cc:10), where 1.weight is trained no more at train.cc:20; rank 1 "
                        "called barrier for the parameters of DistributedDataParallel 1 "
                        "(train.cc:10), where 1.bias is trained no more at train.cc:20. Every"),
              std::string::npos)
        << text;
  }
}

TEST(Mistakes, AChangedModelIsRefusedByNameOnAll) {
  const auto refused = [](const std::function<void(nn::Module&)>& change) {
    return told_of([&](ProcessGroup&, nn::Sequential& net, auto& model) {
      change(*net);
      step(model);
    });
  };
  const auto texts = [](const std::string& change) {
    const auto text = [&](int rank) {
      return "kInvalidArgument: DistributedDataParallel 1 (train.cc:10), rank " +
             std::to_string(rank) + ": " + change +
             " after the model was wrapped; change it before, or wrap it again";
    };
    return std::vector<std::string>{text(0), text(1)};
  };
  EXPECT_EQ(refused([](nn::Module& net) { net.register_parameter("x", torch::ones({1})); }),
            texts("x was added"));
  EXPECT_EQ(refused([](nn::Module& net) { net.unregister_module("0"); }),
            texts("0.weight, 0.bias were removed"));
  EXPECT_EQ(refused([](nn::Module& net) {
              net.replace_module("1", nn::Linear(nn::LinearOptions(4, 1).bias(true)));
            }),
            texts("1.weight, 1.bias were replaced"));
}

TEST(Mistakes, BackwardsInAnotherOrderNameBothWrappers) {
  const auto told = told_of([](ProcessGroup& world, nn::Sequential& net, auto& a) {
    nn::Sequential copy(std::dynamic_pointer_cast<nn::SequentialImpl>(net->clone()));
    freeze(*copy[0]);
    DistributedDataParallel b(copy, world, {}, {"train.cc", 11});
    const Tensor one = a.forward(torch::ones({2, 4}), {"train.cc", 20}).sum();
    const Tensor other = b.forward(torch::ones({2, 4}), {"train.cc", 21}).sum();
    (world.rank() == 0 ? one : other).backward();
    (world.rank() == 0 ? other : one).backward();
  });
  const std::string a = " for bucket 1 of 1 of DistributedDataParallel 1 (train.cc:10)";
  const std::string b = " for bucket 1 of 1 of DistributedDataParallel 2 (train.cc:11)";
  const std::string cause =
      ": the ranks disagree about operation #7: rank 0 called all_reduce(f32 x 20, avg)" + a +
      " at train.cc:20; rank 1 called all_reduce(f32 x 20, avg)" + b +
      " at train.cc:21. Every rank must call the same operations in the same order";
  EXPECT_EQ(told,
            (std::vector<std::string>{
                "kCollectiveMismatch: all_reduce #7 (rank 0)" + a + " at train.cc:20" + cause,
                "kCollectiveMismatch: all_reduce #7 (rank 1)" + b + " at train.cc:21" + cause}));
}

TEST(Mistakes, ForwardsThatTrainDifferentParametersNeedABackwardEach) {
  const auto told = told_of([](ProcessGroup&, nn::Sequential& net, auto& model) {
    const auto forward = [&] { return model.forward(torch::ones({2, 4}), {"train.cc", 20}).sum(); };
    const Tensor one = forward();
    freeze(*net[0], false);
    const Tensor other = forward();
    try {
      (one + other).backward();
    } catch (const Error& error) {
      step(model);  // nothing stale
      throw;
    }
  });
  const std::string text =
      ": one backward goes through two forwards that train different parameters: from one to the "
      "other 0.weight, 0.bias are trained no more; call backward for each of them";
  const std::string who = "kInvalidArgument: DistributedDataParallel 1 (train.cc:10), rank ";
  EXPECT_EQ(told, (std::vector<std::string>{who + "0" + text, who + "1" + text}));
}

TEST(Mistakes, AForwardOfAChangedModelIsRefusedInTheBackwardOfAnother) {
  const auto told = told_of([](ProcessGroup&, nn::Sequential& net, auto& model) {
    const auto forward = [&] { return model.forward(torch::ones({2, 4}), {"train.cc", 20}).sum(); };
    net->register_module("extra", nn::Linear(1, 1));
    const Tensor one = forward();
    net->unregister_module("extra");
    const Tensor other = forward();  // its backward begins first
    try {
      (one + other).backward();
    } catch (const Error& error) {
      step(model);  // nothing stale
      throw;
    }
  });
  const std::string who = "kInvalidArgument: DistributedDataParallel 1 (train.cc:10), rank ";
  const std::string text =
      ": extra.weight, extra.bias were added after the model was wrapped; change it before, or "
      "wrap it again";
  EXPECT_EQ(told, (std::vector<std::string>{who + "0" + text, who + "1" + text}));
}

TEST(Mistakes, AWrapperWhoseToHasFailedSaysSo) {
  const auto told = told_of([](ProcessGroup& world, nn::Sequential&, auto& model) {
    const std::string text = error_of(ErrorCode::kCollectiveMismatch, [&] {
      model.to(world.rank() == 0 ? torch::kFloat : torch::kDouble);
    });
    check_contains(text, "rank 1 has 'parameter 0.weight [4, 4]");
    { const auto local = model.no_sync(); }
    step(model);
  });
  const std::string who = "kInvalidArgument: DistributedDataParallel 1 (train.cc:10), rank ";
  const std::string text = ": its to() has failed, so it follows no model; wrap the model again";
  EXPECT_EQ(told, (std::vector<std::string>{who + "0" + text, who + "1" + text}));
}

TEST(Mistakes, AGroupThatIsGoneIsSaid) {
  on_ranks(2, [](ProcessGroup& world) {
    nn::Sequential net = make_mlp(1);
    auto group = std::make_optional(world.new_group({0, 1}));
    DistributedDataParallel model(net, *group, {}, {"train.cc", 10});
    group.reset();
    const std::string text =
        error_of(ErrorCode::kClosed, [&] { loss_of(model.forward(batch(0))).backward(); });
    check(text == "DistributedDataParallel 1 (train.cc:10), rank " + std::to_string(world.rank()) +
                      ": its group has been destroyed; keep the ProcessGroup for as long as the "
                      "wrapper is used",
          text);
  });
}

}  // namespace
}  // namespace tutti::ddp::forms
