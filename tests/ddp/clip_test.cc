// clip_grad_norm_ beside torch's, and on ranks with different numbers of threads.
#include <cmath>
#include <limits>

#include "block_net.h"

namespace tutti::ddp {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::vector<Tensor> with_gradients(torch::Dtype dtype) {
  torch::manual_seed(3);
  std::vector<Tensor> parameters;
  for (const std::int64_t width : {3, 100, 70000}) {
    parameters.push_back(torch::zeros({2, width}, dtype).requires_grad_(true));
    parameters.back().mutable_grad() = torch::randn({2, width}).to(dtype);
  }
  parameters.push_back(torch::zeros({5}, dtype).requires_grad_(true));  // no gradient
  parameters.push_back(parameters[1]);                                  // twice
  return parameters;
}

TEST(Clip, NormAndGradientsAreThoseOfTorch) {
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16}) {
    for (const double p : {2.0, 1.0, 3.0, 0.5, kInfinity}) {
      for (const double max_norm : {0.5, 1e9}) {
        auto ours = with_gradients(dtype), theirs = with_gradients(dtype);
        theirs.pop_back();
        if (dtype == torch::kHalf || dtype == torch::kBFloat16) {  // as exact as 32 bits
          for (Tensor& parameter : theirs) {
            if (!parameter.grad().defined()) continue;
            const Tensor wide = torch::zeros_like(parameter, torch::kFloat).requires_grad_(true);
            wide.mutable_grad() = parameter.grad().to(torch::kFloat);
            parameter = wide;
          }
        }
        const double expected = torch::nn::utils::clip_grad_norm_(theirs, max_norm, p);
        const double norm = clip_grad_norm_(ours, max_norm, {.norm_type = p});
        EXPECT_NEAR(norm / expected, 1, dtype == torch::kDouble ? 1e-12 : 1e-4) << dtype << p;
        for (std::size_t i = 0; i < 3; ++i) {
          const double digits = dtype == torch::kBFloat16 ? 0x1p-8 : 1e-3;
          EXPECT_TRUE(torch::allclose(ours[i].grad().to(torch::kFloat),
                                      theirs[i].grad().to(torch::kFloat), digits, 1e-7))
              << dtype << " p " << p << " max_norm " << max_norm;
        }
      }
    }
  }
}

TEST(Clip, GradientsBelowTheLimitStayAsTheyAre) {
  auto parameters = with_gradients(torch::kFloat);
  const Tensor before = parameters[2].grad().clone();
  clip_grad_norm_(parameters, kInfinity);
  EXPECT_TRUE(before.equal(parameters[2].grad()));
  EXPECT_EQ(clip_grad_norm_({}, 1), 0);
  EXPECT_EQ(clip_grad_norm_({torch::zeros({2}, torch::requires_grad())}, 1), 0);
}

TEST(Clip, LayoutsThatAreNotContiguousCountAllTheSame) {
  const Tensor parameter = torch::zeros({4, 6}, torch::requires_grad());
  for (const bool dense : {true, false}) {
    const Tensor values = torch::arange(24.).view({4, 6});
    Tensor gradient =
        dense ? torch::empty_strided({4, 6}, {1, 4}) : torch::zeros({4, 12}).slice(1, 0, 12, 2);
    gradient.copy_(values);
    parameter.mutable_grad() = gradient;
    EXPECT_NEAR(clip_grad_norm_({parameter}, 1), values.norm().item<double>(), 1e-4);
    EXPECT_NEAR(parameter.grad().norm().item<double>(), 1, 1e-5);
  }
}

/// What is done about the gradients {3, value}.
std::pair<double, Tensor> clipped(double value, NotFinite what) {
  const Tensor parameter = torch::zeros({2}, torch::requires_grad());
  parameter.mutable_grad() = torch::tensor({3., value}, torch::kFloat);
  const double norm = clip_grad_norm_({parameter}, 1, {.if_not_finite = what});
  return {norm, parameter.grad()};
}

TEST(Clip, ANormThatIsNotFiniteIsScaledSkippedOrAnError) {
  for (const double value : {kNan, kInfinity}) {
    const auto [scaled, spoiled] = clipped(value, NotFinite::scale);  // as torch does
    EXPECT_FALSE(std::isfinite(scaled));
    EXPECT_TRUE(std::isnan(spoiled[1].item<double>()));
    EXPECT_EQ(std::isnan(spoiled[0].item<double>()), std::isnan(value));
    const auto [skipped, kept] = clipped(value, NotFinite::skip);
    EXPECT_FALSE(std::isfinite(skipped));
    EXPECT_EQ(kept[0].item<double>(), 3);
    check_contains(error_of(ErrorCode::kInvalidArgument, [&] { clipped(value, NotFinite::error); }),
                   std::isnan(value)
                       ? "the norm of the gradients is nan; it cannot be clipped to 1"
                       : "the norm of the gradients is inf; it cannot be clipped to 1");
  }
  EXPECT_EQ(clipped(4, NotFinite::error).first, 5);
}

TEST(Clip, ArgumentsThatMeanNothingAreRefused) {
  const auto parameters = with_gradients(torch::kFloat);
  const auto refusal = [&](double max_norm, double p) {
    return error_of(ErrorCode::kInvalidArgument,
                    [&] { clip_grad_norm_(parameters, max_norm, {.norm_type = p}); });
  };
  check_contains(refusal(-1, 2), "max_norm is -1");
  check_contains(refusal(kNan, 2), "max_norm is nan");
  check_contains(refusal(1, 0), "norm_type is 0");
  check_contains(refusal(1, kNan), "norm_type is nan");
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(10, 4).sparse(true));
  embedding->forward(torch::tensor({1, 2}, torch::kLong)).sum().backward();
  check_contains(
      error_of(ErrorCode::kUnsupported, [&] { clip_grad_norm_(embedding->parameters(), 1); }),
      "a gradient is Sparse Float");
  const Tensor complex = torch::zeros({2}, torch::kComplexFloat).requires_grad_(true);
  complex.mutable_grad() = torch::ones({2}, torch::kComplexFloat);
  check_contains(error_of(ErrorCode::kUnsupported, [&] { clip_grad_norm_({complex}, 1); }),
                 "ComplexFloat");
}

TEST(Clip, EveryNumberOfThreadsGivesTheSameBits) {
  on_ranks(3, [](ProcessGroup& world) {
    torch::set_num_threads(1 + world.rank());
    torch::manual_seed(5);
    torch::nn::Sequential net(torch::nn::Linear(40, 900), torch::nn::Tanh(),
                              torch::nn::Linear(900, 5));
    auto model = DistributedDataParallel(net, world);
    torch::optim::Adam optimizer(model.parameters(), 0.01);
    for (int step = 0; step < 6; ++step) {
      const double p = std::vector<double>{2, 1, kInfinity, 3, 2.5, 2}[std::size_t(step)];
      optimizer.zero_grad();
      loss_of(model.forward(torch::randn({8, 40}) * (1 + world.rank()))).backward();
      double norm = clip_grad_norm_(model.parameters(), 1e-4, {.norm_type = p});
      const double own = norm;
      world.broadcast(norm);
      check(norm == own, "one norm");
      check(own > 1e-4, "which is clipped");
      optimizer.step();
      check_same_everywhere(world, *net);
    }
  });
}

TEST(Clip, TrainingWithItIsThatOfOneProcess) {
  on_ranks(2, [](ProcessGroup& world) {
    Net net = make_net(), alone = make_net();
    auto model = DistributedDataParallel(net, world, {.bucket_bytes = 512});
    torch::optim::SGD optimizer(model.parameters(), 0.1), alone_optimizer(alone->parameters(), 0.1);
    for (int step = 0; step < 20; ++step) {
      optimizer.zero_grad();
      alone_optimizer.zero_grad();
      loss_of(model.forward(share(world, step))).backward();
      loss_of(alone->forward(batch(step))).backward();
      const double norm = clip_grad_norm_(model.parameters(), 0.05);
      const double expected = torch::nn::utils::clip_grad_norm_(alone->parameters(), 0.05);
      check(std::abs(norm - expected) <= 1e-12, "the norm");
      optimizer.step();
      alone_optimizer.step();
      for (std::size_t i = 0; i < net->parameters().size(); ++i) {
        check_near(net->parameters()[i], alone->parameters()[i], 1e-12, "parameters");
      }
    }
  });
}

}  // namespace
}  // namespace tutti::ddp
