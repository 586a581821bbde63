// One data-parallel step: a linear model, mean squared error, SGD. Run it with:
//   tutti run -n 2 ./ddp_linear
#include <torch/torch.h>
#include <tutti/torch.h>
#include <tutti/tutti.h>

#include <cstdio>
#include <exception>

int main() try {
  auto world = tutti::init_process_group();

  torch::manual_seed(1);  // every run begins alike
  torch::nn::Linear net(10, 1);
  auto model =
      tutti::DistributedDataParallel(net, world);  // all ranks now hold rank 0's parameters
  torch::optim::SGD optimizer(model.parameters(), 0.001);

  torch::manual_seed(world.rank());  // every rank has its own samples
  const auto inputs = torch::randn({10, 10});
  const auto labels = torch::randn({10, 1});

  optimizer.zero_grad();
  auto loss = torch::mse_loss(model.forward(inputs), labels);
  loss.backward();  // on return every rank holds the mean of all gradients
  optimizer.step();

  std::printf("Rank %d, Loss: %.6f\n", world.rank(), loss.item<float>());
  world.close();
} catch (const std::exception& failure) {
  std::fprintf(stderr, "ddp_linear: %s\n", failure.what());
  return 1;
}
