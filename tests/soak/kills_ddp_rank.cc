// Workload with libtorch: DistributedDataParallel trains a small classifier.
#include <torch/torch.h>
#include <tutti/torch.h>

#include <memory>

#include "soak/kills_rank.h"

namespace {

struct Training {
  explicit Training(tutti::ProcessGroup& world)
      : net(torch::nn::Linear(784, 256), torch::nn::ReLU(), torch::nn::Linear(256, 256),
            torch::nn::ReLU(), torch::nn::Linear(256, 10)),
        model(net, world),
        optimizer(model.parameters(), 0.01) {
    torch::manual_seed(world.rank());
  }
  void step() {
    optimizer.zero_grad();
    const auto labels = torch::randint(0, 10, {64});
    auto loss =
        torch::nll_loss(torch::log_softmax(model.forward(torch::randn({64, 784})), 1), labels);
    loss.backward();
    optimizer.step();
  }

  torch::nn::Sequential net;
  tutti::DistributedDataParallel<torch::nn::SequentialImpl> model;
  torch::optim::SGD optimizer;
};

}  // namespace

int main(int argc, char** argv) {
  return tutti::soak::run_until_a_loss(
      argc, argv, [](tutti::ProcessGroup& world, const std::string&) -> tutti::soak::Step {
        return [training = std::make_shared<Training>(world)] { training->step(); };
      });
}
