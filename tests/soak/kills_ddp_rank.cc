// Workload with libtorch: DistributedDataParallel trains a small classifier. Each survivor of the
// loss trains on alone, then with the others that are left, until one more of them is lost.
#include <torch/torch.h>
#include <tutti/torch.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "soak/kills_rank.h"

namespace {

using tutti::ProcessGroup;
using tutti::soak::say;

constexpr int kSteps = 10;  // alone, and in the new group

torch::nn::Sequential make_net() {
  return torch::nn::Sequential(torch::nn::Linear(784, 256), torch::nn::ReLU(),
                               torch::nn::Linear(256, 256), torch::nn::ReLU(),
                               torch::nn::Linear(256, 10));
}

void train(torch::optim::Optimizer& optimizer,
           const std::function<torch::Tensor(const torch::Tensor&)>& forward) {
  optimizer.zero_grad();
  const auto labels = torch::randint(0, 10, {64});
  const auto loss =
      torch::nll_loss(torch::log_softmax(forward(torch::randn({64, 784})), 1), labels);
  loss.backward();
  optimizer.step();
  if (!std::isfinite(loss.item<double>())) throw std::runtime_error("the loss is not finite");
}

class Training {
 public:
  Training(torch::nn::Sequential net, ProcessGroup& group)
      : model_(net, group), optimizer_(model_.parameters(), 0.01) {}

  void step() {
    train(optimizer_, [this](const torch::Tensor& input) { return model_.forward(input); });
  }

 private:
  tutti::DistributedDataParallel<torch::nn::SequentialImpl> model_;
  torch::optim::SGD optimizer_;
};

void train_alone(torch::nn::Sequential net) {
  torch::optim::SGD optimizer(net->parameters(), 0.01);
  for (int step = 0; step < kSteps; ++step)
    train(optimizer, [&](const torch::Tensor& input) { return net->forward(input); });
  say("alone");
}

/// All ranks must have the same parameters.
void compare(const torch::nn::Sequential& net, ProcessGroup& group) {
  const std::vector<std::uint64_t> mine = {tutti::parameter_hash(*net)};
  std::vector<std::uint64_t> all(static_cast<std::size_t>(group.world_size()));
  group.all_gather(mine, all);
  if (std::ranges::count(all, mine[0]) != group.world_size())
    throw std::runtime_error("parameters differ");
}

/// The last of `survivors` kills itself when the others are in the midst of a step.
void train_until_the_next_loss(torch::nn::Sequential net, ProcessGroup& world,
                               const std::vector<int>& survivors) {
  ProcessGroup group = world.new_group(survivors);
  const tutti::soak::Loss loss(group);
  Training training(net, group);
  for (int step = 0; step < kSteps; ++step) training.step();
  compare(net, group);
  say("together " + std::to_string(group.world_size()));
  int heard = 0;
  const int last = group.world_size() - 1;
  try {
    if (world.rank() == survivors.back()) {
      for (int member = 0; member < last; ++member) group.recv(heard, member);  // all have said so
      say("dies at=" + std::to_string(tutti::soak::now_ns()));
      ::kill(::getpid(), SIGKILL);
    }
    group.send(heard, last);
    for (;;) training.step();
  } catch (const tutti::Error& error) {
    say("second " + loss.describe(error, survivors));
  }
}

}  // namespace

int main(int argc, char** argv) {
  auto net = make_net();
  std::shared_ptr<Training> training;
  return tutti::soak::run_until_a_loss(
      argc, argv,
      {.make_step = [&](ProcessGroup& world, const std::string&) -> tutti::soak::Step {
         torch::manual_seed(static_cast<std::uint64_t>(world.rank()));
         training = std::make_shared<Training>(net, world);
         return [&training] { training->step(); };
       },
       .go_on =
           [&](ProcessGroup& world, const std::vector<int>& victims) {
             training.reset();
             train_alone(net);
             std::vector<int> survivors;
             for (int rank = 0; rank < world.world_size(); ++rank)
               if (std::ranges::count(victims, rank) == 0) survivors.push_back(rank);
             train_until_the_next_loss(net, world, survivors);
           }});
}
