// Data-parallel training against one process that has the ranks' batches in one.
#include "torch_ranks.h"

namespace tutti::ddp {
namespace {

constexpr int kSteps = 50;
constexpr std::int64_t kBatch = 24;  // divisible by 1, 2, 3, 4

struct ConvNetImpl : torch::nn::Module {
  ConvNetImpl() {
    register_module("convolve", convolve);
    register_module("hidden", hidden);
    register_module("out", out);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return out(torch::tanh(hidden(torch::relu(convolve(x)).flatten(1))));
  }
  torch::nn::Conv2d convolve{torch::nn::Conv2dOptions(1, 4, 3)};
  torch::nn::Linear hidden{4 * 6 * 6, 32};
  torch::nn::Linear out{32, 5};
};
TORCH_MODULE(ConvNet);

std::unique_ptr<torch::optim::Optimizer> make_optimizer(bool adam, std::vector<torch::Tensor> p) {
  if (adam) return std::make_unique<torch::optim::Adam>(std::move(p), 1e-3);
  return std::make_unique<torch::optim::SGD>(std::move(p),
                                             torch::optim::SGDOptions(0.05).momentum(0.9));
}

ConvNet make_conv_net(torch::Dtype dtype) {
  torch::manual_seed(5);
  ConvNet net;
  net->to(dtype);
  return net;
}

void compare_with_one_process(ProcessGroup& world, torch::Dtype dtype, bool adam) {
  const std::string what = std::string(dtype == torch::kDouble ? "f64" : "f32") +
                           (adam ? " Adam" : " SGD") + " n=" + std::to_string(world.world_size());
  ConvNet alone = make_conv_net(dtype);
  ConvNet net = make_conv_net(dtype);
  auto model = DistributedDataParallel(net, world, {.bucket_bytes = 4096});
  const auto alone_optimizer = make_optimizer(adam, alone->parameters());
  const auto optimizer = make_optimizer(adam, model.parameters());
  torch::manual_seed(6);  // the same batches on every rank
  for (int step = 0; step < kSteps; ++step) {
    const auto images = torch::randn({kBatch, 1, 8, 8}, dtype);
    const auto classes = torch::randint(0, 5, {kBatch}, torch::kLong);
    alone_optimizer->zero_grad();
    const auto alone_loss = torch::cross_entropy_loss(alone->forward(images), classes);
    alone_loss.backward();
    alone_optimizer->step();

    const std::int64_t share = kBatch / world.world_size();
    const std::int64_t begin = share * world.rank();
    optimizer->zero_grad();
    const auto loss = torch::cross_entropy_loss(model.forward(images.narrow(0, begin, share)),
                                                classes.narrow(0, begin, share));
    loss.backward();
    optimizer->step();

    const double expected = alone_loss.item<double>();
    const double mean = world.all_reduce_value(loss.item<double>(), {.op = ReduceOp::avg});
    const double off = std::abs(mean - expected);
    const std::string where = what + ", step " + std::to_string(step) + ": loss " +
                              std::to_string(mean) + ", alone " + std::to_string(expected);
    if (dtype == torch::kDouble) {
      check(off <= 1e-10, where);
    } else if (expected >= 0.1) {
      check(off <= 1e-5 * expected, where);
    }
    check_same_everywhere(world, *net);
  }
  if (dtype != torch::kDouble) return;
  const auto expected = alone->parameters();
  const auto actual = net->parameters();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    check_near(actual[i], expected[i], 1e-10, what + ", parameter " + std::to_string(i));
  }
}

class Equivalence : public testing::TestWithParam<int> {};

TEST_P(Equivalence, F32Sgd) {
  on_ranks(GetParam(), [](ProcessGroup& w) { compare_with_one_process(w, torch::kFloat, false); });
}
TEST_P(Equivalence, F32Adam) {
  on_ranks(GetParam(), [](ProcessGroup& w) { compare_with_one_process(w, torch::kFloat, true); });
}
TEST_P(Equivalence, F64Sgd) {
  on_ranks(GetParam(), [](ProcessGroup& w) { compare_with_one_process(w, torch::kDouble, false); });
}
TEST_P(Equivalence, F64Adam) {
  on_ranks(GetParam(), [](ProcessGroup& w) { compare_with_one_process(w, torch::kDouble, true); });
}
INSTANTIATE_TEST_SUITE_P(Ranks, Equivalence, testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace tutti::ddp
