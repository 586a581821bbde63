// One rank of a small data-parallel training, the same on every backend; rank 0 leaves the
// parameters in a file: `tutti run -n 2 ddp_rank gloo f64 params.bin`.
#include <torch/torch.h>
#include <tutti/torch.h>
#include <tutti/tutti.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>

namespace {

constexpr int kSteps = 20;

torch::nn::Sequential make_model(torch::Dtype dtype) {
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(10, 32), torch::nn::Tanh(), torch::nn::Linear(32, 1));
  net->to(dtype);
  return net;
}

void train(tutti::ProcessGroup& world, torch::nn::Sequential net, torch::Dtype dtype) {
  auto model = tutti::DistributedDataParallel(net, world);
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  torch::manual_seed(100 + static_cast<std::uint64_t>(world.rank()));
  for (int step = 0; step < kSteps; ++step) {
    const auto inputs = torch::randn({8, 10}, dtype);
    const auto labels = torch::sin(inputs.sum(1, true));
    optimizer.zero_grad();
    torch::mse_loss(model.forward(inputs), labels).backward();
    optimizer.step();
  }
}

void leave_parameters(const torch::nn::Sequential& net, const char* path) {
  std::ofstream file(path, std::ios::binary);
  for (const auto& parameter : net->parameters()) {
    const auto values = parameter.detach().contiguous();
    file.write(static_cast<const char*>(values.data_ptr()),
               static_cast<std::streamsize>(values.nbytes()));
  }
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 4) throw std::runtime_error("usage: ddp_rank BACKEND f32|f64 FILE");
  const torch::Dtype dtype = std::strcmp(argv[2], "f64") == 0 ? torch::kFloat64 : torch::kFloat32;
  auto world = tutti::init_process_group({.backend = argv[1]});
  auto net = make_model(dtype);
  train(world, net, dtype);
  if (world.rank() == 0) leave_parameters(net, argv[3]);
  world.close();
} catch (const std::exception& failure) {
  std::fprintf(stderr, "ddp_rank: %s\n", failure.what());
  return 1;
}
