// Trains a small convolutional network on Fashion-MNIST: 60,000 images, N ranks, one command.
//   tutti run -n 4 ./fashion_mnist
#include <torch/torch.h>
#include <tutti/torch.h>
#include <tutti/tutti.h>

#include <algorithm>
#include <cstdio>
#include <exception>

#include "arguments.h"
#include "common/checkpoint.h"
#include "common/device.h"
#include "common/fashion_mnist.h"
#include "common/report.h"

namespace {

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("convolve1", convolve1);
    register_module("convolve2", convolve2);
    register_module("hidden", hidden);
    register_module("dropout", dropout);
    register_module("classes", classes);
  }
  torch::Tensor forward(const torch::Tensor& images) {
    auto x = torch::relu(convolve1(images));  // 16 x 14 x 14
    x = torch::relu(convolve2(x));            // 32 x 7 x 7
    x = torch::relu(hidden(x.flatten(1)));
    return classes(dropout(x));
  }

  torch::nn::Conv2d convolve1{torch::nn::Conv2dOptions(1, 16, 5).stride(2).padding(2)};
  torch::nn::Conv2d convolve2{torch::nn::Conv2dOptions(16, 32, 3).stride(2).padding(1)};
  torch::nn::Linear hidden{32 * 7 * 7, 128};
  torch::nn::Dropout dropout{0.25};
  torch::nn::Linear classes{128, 10};
};
TORCH_MODULE(Net);

/// Share of the test images classified correctly; every image is looked at by one rank.
double test_accuracy(Net& net, FashionMnist& images, torch::Device device,
                     tutti::ProcessGroup& world) {
  const torch::NoGradGuard no_grad;
  net->eval();
  const auto ranks = static_cast<std::size_t>(world.world_size());
  std::int64_t correct = 0;
  std::vector<std::size_t> samples;
  for (auto i = static_cast<std::size_t>(world.rank()); i < *images.size(); i += ranks) {
    samples.push_back(i);
    if (samples.size() < 500 && i + ranks < *images.size()) continue;
    const auto batch = images.get_batch(samples);
    const auto classes = net->forward(batch.data.to(device)).argmax(1);
    correct += classes.eq(batch.target.to(device)).sum().item<std::int64_t>();
    samples.clear();
  }
  return static_cast<double>(world.all_reduce_value(correct)) / static_cast<double>(*images.size());
}

int train(const Arguments& arguments, tutti::ProcessGroup& world) {
  const torch::Device device = device_named(arguments.device);
  FashionMnist images(read_image_set(arguments.data, "train"), arguments.limit);
  FashionMnist test_images(read_image_set(arguments.data, "t10k"));

  torch::manual_seed(arguments.seed);
  Net net;
  net->to(device);
  auto model = tutti::DistributedDataParallel(net, world);
  if (arguments.compress == "bf16") model.set_communication_hook("bf16", tutti::bf16_compress());
  if (arguments.compress == "f16") model.set_communication_hook("f16", tutti::f16_compress());
  torch::optim::Adam optimizer(model.parameters(), arguments.learning_rate);
  torch::manual_seed(arguments.seed + world.rank());  // dropout differs between ranks

  const auto ranks = static_cast<std::size_t>(world.world_size());
  const std::size_t own_batch = std::max(arguments.batch / ranks, std::size_t{1});
  tutti::DistributedSampler sampler(*images.size(), world, {.seed = arguments.seed});
  const auto loader = torch::data::make_data_loader(images, sampler, own_batch);
  const std::size_t epoch_steps = (sampler.share_count() + own_batch - 1) / own_batch;
  const auto all_steps = static_cast<double>(arguments.epochs * epoch_steps);
  RunState run{*net, optimizer, sampler, arguments.batch};
  resume_if_asked(arguments, &run, world);

  Progress progress(world, arguments.epochs, epoch_steps);
  Meter meter;
  model.train();
  for (; run.epoch < arguments.epochs; ++run.epoch) {
    sampler.set_epoch(run.epoch);
    for (auto& batch : *loader) {
      const double rate = arguments.learning_rate * (1 - static_cast<double>(run.step) / all_steps);
      for (auto& group : optimizer.param_groups()) group.options().set_lr(rate);
      optimizer.zero_grad();
      const auto scores = model.forward(batch.data.to(device));
      auto loss = torch::cross_entropy_loss(scores, batch.target.to(device));
      loss.backward();
      optimizer.step();
      ++run.step;
      meter.add(batch.target.numel());
      if (progress.due()) {
        progress.show(run.step, loss.item<double>(), meter.speed(model.stats()));
      }
      if (saved_and_ending(arguments, run, world)) return 0;
    }
  }
  progress.finish();
  const Speed speed = meter.speed(model.stats());
  char result[40];
  std::snprintf(result, sizeof(result), "test accuracy %.2f %%",
                100 * test_accuracy(net, test_images, device, world));
  return report(*net, speed, model.stats(), result, world) ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) try {
  const Arguments arguments = parse_arguments(argc, argv);
  end_when_asked(arguments);
  auto world = tutti::init_process_group();
  const int code = train(arguments, world);
  world.close();
  return code;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "fashion_mnist: %s\n", failure.what());
  return 1;
}
