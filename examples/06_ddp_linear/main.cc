// One data-parallel step: a linear model, mean squared error, SGD. Run it with:
//   tutti run -n 2 ./ddp_linear [--device cuda]
#include <torch/torch.h>
#include <tutti/torch.h>
#include <tutti/tutti.h>

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

torch::Device device_named(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.empty() || words == std::vector<std::string>{"--device", "cpu"}) return torch::kCPU;
  if (words != std::vector<std::string>{"--device", "cuda"}) {
    throw std::runtime_error("usage: ddp_linear [--device cpu|cuda]");
  }
  if (!torch::cuda::is_available()) {
    throw std::runtime_error("--device cuda: there is no device of CUDA that libtorch can use");
  }
  // The ranks of a host take its devices in turn.
  return {torch::kCUDA, static_cast<torch::DeviceIndex>(tutti::local_device())};
}

}  // namespace

int main(int argc, char** argv) try {
  const torch::Device device = device_named(argc, argv);
  auto world = tutti::init_process_group();

  torch::manual_seed(1);  // every run begins alike
  torch::nn::Linear net(10, 1);
  net->to(device);
  auto model =
      tutti::DistributedDataParallel(net, world);  // all ranks now hold rank 0's parameters
  torch::optim::SGD optimizer(model.parameters(), 0.001);

  torch::manual_seed(world.rank());  // every rank has its own samples
  const auto inputs = torch::randn({10, 10}).to(device);
  const auto labels = torch::randn({10, 1}).to(device);

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
