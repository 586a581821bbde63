// Communication hooks of DistributedDataParallel.
#include <chrono>
#include <thread>

#include "block_net.h"

namespace tutti::ddp {
namespace {

Work mean_of(const GradientBucket& bucket, ProcessGroup& group) {
  return group.all_reduce(bucket.gradients, {.op = bucket.mean}, async, bucket.where);
}

TEST(Hooks, AnExceptionInBackwardLeavesNothingUnderWay) {
  on_ranks(2, [](ProcessGroup& world) {
    Net net = make_net();
    auto model = DistributedDataParallel(net, world, {.bucket_bytes = 512});
    bool is_late = false;  // so that rank 0's buckets are under way for a while
    model.set_communication_hook("mean", [&](const GradientBucket& bucket, ProcessGroup& group) {
      if (is_late && world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
      return mean_of(bucket, group);
    });
    loss_of(model.forward(share(world, 0))).backward();
    is_late = true;
    Tensor input = share(world, 1).clone().requires_grad_();
    input.register_hook([](const Tensor& gradient) -> Tensor {
      if (gradient.defined()) throw std::runtime_error("given up");
      return gradient;
    });
    bool is_thrown = false;
    try {
      loss_of(model.forward(input)).backward();
    } catch (const std::runtime_error&) {
      is_thrown = true;
    }
    check(is_thrown, "backward went through");
    model.zero_grad(false);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    for (const Tensor& parameter : net->parameters())
      check(parameter.grad().abs().sum().item<double>() == 0, "a gradient was written afterwards");
    is_late = false;
    loss_of(model.forward(share(world, 2))).backward();
    check_gradients(net, expected_gradients(net, 2), "the next step");
  });
}

TEST(Hooks, OneThatMakesTheMeanChangesNothing) {
  on_ranks(2, [](ProcessGroup& world) {
    for (const bool views : {true, false}) {
      for (const bool unused : {true, false}) {
        Net net = make_net();
        auto model = DistributedDataParallel(
            net, world,
            {.bucket_bytes = 512, .find_unused_parameters = unused, .gradients_as_views = views});
        std::size_t calls = 0, next = 0;
        model.set_communication_hook("mean",
                                     [&](const GradientBucket& bucket, ProcessGroup& group) {
                                       check(bucket.index == next, "in their order");
                                       next = (next + 1) % bucket.count;
                                       ++calls;
                                       return mean_of(bucket, group);
                                     });
        for (int step = 0; step < 4; ++step) {
          if (step == 3) model.set_communication_hook("mean", {});
          net->skipped = unused ? 1 : -1;
          for (Tensor& parameter : net->spare->parameters()) parameter.requires_grad_(step != 2);
          model.zero_grad();
          {
            const auto local = model.no_sync();
            loss_of(model.forward(share(world, step))).backward();
          }
          loss_of(model.forward(share(world, step + 1))).backward();
          auto expected = expected_gradients(net, step, 2);
          for (std::size_t i = 8; i < 10 && step == 2; ++i) expected[i] = Tensor();
          check_gradients(net, expected, "step " + std::to_string(step));
        }
        check(calls > 3 * 2, "for every bucket of three steps");
      }
    }
  });
}

TEST(Hooks, CompressionIsNearAndTheSameOnAllRanks) {
  on_ranks(3, [](ProcessGroup& world) {
    for (const bool brain : {true, false}) {
      Net net = make_net();
      auto model = DistributedDataParallel(net, world, {.bucket_bytes = 512});
      model.set_communication_hook(brain ? "bf16_compress" : "f16_compress",
                                   brain ? bf16_compress() : f16_compress());
      torch::optim::SGD optimizer(model.parameters(), 0.1);
      for (int step = 0; step < 5; ++step) {
        optimizer.zero_grad();
        loss_of(model.forward(share(world, step))).backward();
        if (step == 0) {
          const auto expected = expected_gradients(net, step);
          for (std::size_t i = 0; i < expected.size(); ++i) {
            const double most = expected[i].abs().max().item<double>();
            check_near(net->parameters()[i].grad(), expected[i], most * (brain ? 0.1 : 0.01),
                       "near the mean");
            check(!net->parameters()[i].grad().equal(expected[i]), "but rounded");
          }
        }
        optimizer.step();
        check_same_everywhere(world, *net);
      }
    }
  });
}

TEST(Hooks, OneCompressionMayServeTwoModelsInOneBackward) {
  on_ranks(2, [](ProcessGroup& world) {
    for (const bool brain : {true, false}) {
      const CommunicationHook hook = brain ? bf16_compress() : f16_compress();
      Net one = make_net(), other = make_net();
      {
        const torch::NoGradGuard no_grad;
        for (Tensor& parameter : other->parameters()) parameter.mul_(-2);
      }
      auto first = DistributedDataParallel(one, world, {.bucket_bytes = 512});
      auto second = DistributedDataParallel(other, world, {.bucket_bytes = 512});
      first.set_communication_hook("compress", hook);
      second.set_communication_hook("compress", hook);
      const auto gradients = [&](const auto& backward) {
        first.zero_grad();
        second.zero_grad();
        if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        backward();  // of rank 0: all its buckets are under way before another rank has any
        std::vector<Tensor> all;
        for (const auto& net : {one, other})
          for (const Tensor& parameter : net->parameters()) all.push_back(parameter.grad().clone());
        return all;
      };
      const Tensor batch = share(world, 1);
      const auto apart_steps = [&] {
        loss_of(first.forward(batch)).backward();
        loss_of(second.forward(batch)).backward();
      };
      gradients(apart_steps);
      const auto apart = gradients(apart_steps);  // the order of buckets is agreed upon
      const auto together = gradients(
          [&] { (loss_of(first.forward(batch)) + loss_of(second.forward(batch))).backward(); });
      for (std::size_t i = 0; i < apart.size(); ++i) {
        check(together[i].equal(apart[i]), "gradient " + std::to_string(i));
      }
    }
  });
}

/// A model that ends in a layer of its own behind another, which other models may have, too.
struct HeadedImpl : torch::nn::Module {
  HeadedImpl(const Net& the_body, std::uint64_t seed) : body(the_body) {
    torch::manual_seed(seed);
    head = torch::nn::Linear(6, 2);
    head->to(torch::kDouble);
    register_module("body", body);
    register_module("head", head);
  }
  Tensor forward(const Tensor& x) { return head(body->forward(x)); }
  Net body;
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Headed);

void rank_1_comes_late(ProcessGroup& world) {
  if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

/// What becomes of gradients between steps.
enum class Between { none, zeros, kept };

void zero_between(torch::nn::Module& module, Between between) {
  if (between != Between::kept) module.zero_grad(between == Between::none);
}

/// The inner wrapper's buckets are those that the outer one's hooks find the gradients in.
void train_wrapped_twice(ProcessGroup& world, bool hook_inside, Between between) {
  Net net = make_net(), alone = make_net();
  auto inner = std::make_shared<DistributedDataParallel<NetImpl>>(
      net.ptr(), world, DataParallelOptions{.bucket_bytes = 64});
  DistributedDataParallel outer(inner, world, {.bucket_bytes = 64});
  if (hook_inside) {
    inner->set_communication_hook("mean", mean_of);
  } else {
    outer.set_communication_hook("mean", mean_of);
  }
  for (int step = 0; step < 4; ++step) {
    zero_between(*net, between);
    zero_between(*alone, between);
    const Tensor loss = loss_of(outer.forward(share(world, step)));
    rank_1_comes_late(world);
    loss.backward();
    loss_of(alone->forward(batch(step))).backward();
    for (std::size_t i = 0; i < net->parameters().size(); ++i) {
      check_near(net->parameters()[i].grad(), alone->parameters()[i].grad(), 1e-12,
                 "wrapped twice, step " + std::to_string(step));
    }
    check_same_gradients(world, net);
  }
}

TEST(Hooks, AModelMayBeWrappedTwice) {
  on_ranks(2, [](ProcessGroup& world) {
    for (const bool hook_inside : {true, false}) {
      for (const Between between : {Between::none, Between::zeros, Between::kept}) {
        train_wrapped_twice(world, hook_inside, between);
      }
    }
  });
}

/// Forwards and backward of both, in the order of wrapping or the other way round.
void train_on_one_body(ProcessGroup& world, bool in_order, bool views, Between between) {
  const auto make = [] {
    const Net body = make_net();
    return std::pair(Headed(body, 2), Headed(body, 3));
  };
  auto [a, b] = make();
  auto [a_alone, b_alone] = make();
  const DataParallelOptions options{.bucket_bytes = 64, .gradients_as_views = views};
  DistributedDataParallel one(a, world, options), other(b, world, {.bucket_bytes = 64});
  one.set_communication_hook("mean", mean_of);
  other.set_communication_hook("mean", mean_of);
  for (int step = 0; step < 4; ++step) {
    for (Headed model : {a, b, a_alone, b_alone}) zero_between(*model, between);
    const auto forward = [&](auto& model) { return loss_of(model.forward(share(world, step))); };
    const Tensor first = in_order ? forward(one) : forward(other);
    const Tensor second = in_order ? forward(other) : forward(one);
    rank_1_comes_late(world);
    (first + second).backward();
    (loss_of(a_alone->forward(batch(step))) + loss_of(b_alone->forward(batch(step)))).backward();
    const auto check_like = [&](const Headed& net, const Headed& expected) {
      for (std::size_t i = 0; i < net->parameters().size(); ++i) {
        check_near(net->parameters()[i].grad(), expected->parameters()[i].grad(), 1e-12,
                   "one body, step " + std::to_string(step));
      }
    };
    check_like(a, a_alone);
    check_like(b, b_alone);
    check_same_gradients(world, a->body);
  }
}

TEST(Hooks, TwoModelsWithOneBodyMayGoInOneBackward) {
  on_ranks(2, [](ProcessGroup& world) {
    for (const bool in_order : {true, false}) {
      for (const bool views : {true, false}) {
        for (const Between between : {Between::none, Between::zeros, Between::kept}) {
          train_on_one_body(world, in_order, views, between);
        }
      }
    }
  });
}

/// A backward that fails and leaves gradients as they were.
void give_up_a_step(DistributedDataParallel<NetImpl>& model, const Tensor& input) {
  std::vector<Tensor> before;
  for (const Tensor& parameter : model.parameters()) before.push_back(parameter.grad().clone());
  const Tensor loss = loss_of(model.forward(input));
  break_backward = true;
  try {
    loss.backward();
    check(false, "nothing was thrown");
  } catch (const std::exception& error) {
    check_contains(error.what(), "broken by the test");
  }
  break_backward = false;
  for (std::size_t i = 0; i < before.size(); ++i) {
    model.parameters()[i].mutable_grad() = before[i];
  }
}

/// What is neither trained nor reached is marked once: its bucket may have been reduced since.
TEST(Hooks, WhatIsFrozenWithAGradientThatNoSyncHasKeptGoesOnce) {
  on_ranks(2, [](ProcessGroup& world) {
    for (const bool views : {true, false}) {
      Net net = make_net();
      auto model = DistributedDataParallel(
          net, world,
          {.bucket_bytes = 64, .find_unused_parameters = true, .gradients_as_views = views});
      model.set_communication_hook("mean", [](const GradientBucket& bucket, ProcessGroup& group) {
        group.all_reduce(bucket.gradients, {.op = bucket.mean}, bucket.where);
        return group.barrier({}, async, bucket.where);
      });
      {
        const auto local = model.no_sync();
        loss_of(model.forward(share(world, 0))).backward();
      }
      give_up_a_step(model, share(world, 2));  // then one forward is the only one of its step
      for (Tensor& parameter : net->spare->parameters()) parameter.requires_grad_(false);
      loss_of(model.forward(share(world, 1))).backward();
      Net alone = make_net();
      loss_of(alone->forward(batch(0))).backward();
      for (Tensor& parameter : alone->spare->parameters()) parameter.requires_grad_(false);
      loss_of(alone->forward(batch(1))).backward();
      for (std::size_t i = 0; i < net->parameters().size(); ++i) {
        check_near(net->parameters()[i].grad(), alone->parameters()[i].grad(), 1e-12,
                   alone->named_parameters()[i].key());
      }
    }
  });
}

TEST(Hooks, NamesThatDifferAreToldAndTheOneBeforeStays) {
  on_ranks(3, [](ProcessGroup& world) {
    Net net = make_net();
    auto model = DistributedDataParallel(net, world, {.bucket_bytes = 512}, {"train.cc", 10});
    int calls = 0;
    model.set_communication_hook("first", [&](const GradientBucket& bucket, ProcessGroup& group) {
      ++calls;
      return mean_of(bucket, group);
    });
    const std::string text = error_of(ErrorCode::kCollectiveMismatch, [&] {
      model.set_communication_hook(world.rank() == 2 ? "other" : "same", mean_of);
    });
    check(text == "DistributedDataParallel 1 (train.cc:10), rank " + std::to_string(world.rank()) +
                      ": the ranks' communication hooks differ: rank 0 has 'same', rank 2 has "
                      "'other'. Set the same one on every rank.",
          text);
    loss_of(model.forward(share(world, 0))).backward();
    check_gradients(net, expected_gradients(net, 0), "the group is still good");
    check(calls > 1, "the first hook stays");
  });
}

TEST(Hooks, OneThatThrowsOrReturnsNoWorkIsNamedAndTheNextStepIsClean) {
  on_ranks(2, [](ProcessGroup& world) {
    Net net = make_net();
    auto model = DistributedDataParallel(net, world, {.bucket_bytes = 512}, {"train.cc", 10});
    int wrong = 0;
    model.set_communication_hook("mine", [&](const GradientBucket& bucket, ProcessGroup& group) {
      if (bucket.index == 1 && wrong == 1) throw std::runtime_error("no such layer");
      return bucket.index == 1 && wrong == 2 ? Work() : mean_of(bucket, group);
    });
    for (int step = 0; step < 4; ++step) {
      model.zero_grad();
      wrong = (step + 1) % 2 * (1 + step / 2);
      const auto train = [&] { loss_of(model.forward(share(world, step))).backward(); };
      if (wrong == 0) {
        train();
        check_gradients(net, expected_gradients(net, step), "after an error");
        continue;
      }
      const std::string text = error_of(ErrorCode::kInvalidArgument, train);
      check_contains(text, "rank " + std::to_string(world.rank()) +
                               ": the communication hook 'mine' for bucket 2 of ");
      check_contains(text, " of DistributedDataParallel 1 (train.cc:10) ");
      check_contains(text, wrong == 1 ? "threw: no such layer" : "returned no Work");
    }
  });
}

/// A hook that goes wrong on rank 1 alone, in the second step; the third ends on both.
void goes_wrong_alone(const CommunicationHook& hook, const std::string& told) {
  const auto texts = told_by_ranks(2, [&](ProcessGroup& world) {
    Net net = make_net();
    auto model = DistributedDataParallel(net, world, {.bucket_bytes = 512});
    model.set_communication_hook("mine", mean_of);
    const auto train = [&] { loss_of(model.forward(share(world, 0))).backward(); };
    train();
    const bool alone = world.rank() == 1;
    model.set_communication_hook("mine", alone ? hook : mean_of);
    if (alone) check_contains(error_of(ErrorCode::kInvalidArgument, train), told);
    train();
    train();
  });
  for (const std::string& text : texts) {
    EXPECT_NE(text.find("kCollectiveMismatch: "), std::string::npos) << text;
    EXPECT_NE(text.find("a step that was given up"), std::string::npos) << text;
  }
}

TEST(Hooks, WhatGoesWrongOnOneRankAloneEndsOnAll) {
  goes_wrong_alone(
      [](const GradientBucket& bucket, ProcessGroup& group) {
        if (bucket.index == 1) throw std::runtime_error("no such layer");
        return mean_of(bucket, group);
      },
      "threw: no such layer");
  goes_wrong_alone(
      [](const GradientBucket& bucket, ProcessGroup& group) {
        return mean_of(bucket, group).then([](const Error*) {
          throw std::runtime_error("no memory");
        });
      },
      "threw: no memory");
}

TEST(Hooks, NoneIsSetInsideABackward) {
  on_ranks(2, [](ProcessGroup& world) {
    Net net = make_net();
    auto model = DistributedDataParallel(net, world);
    const Tensor output = model.forward(share(world, 0));
    output.register_hook([&](const Tensor&) { model.set_communication_hook("mine", mean_of); });
    check_contains(error_of(ErrorCode::kInvalidArgument, [&] { loss_of(output).backward(); }),
                   "set_communication_hook inside a backward; call it between steps");
    model.zero_grad();
    loss_of(model.forward(share(world, 1))).backward();
    check_gradients(net, expected_gradients(net, 1), "nothing stale");
  });
}

}  // namespace
}  // namespace tutti::ddp
