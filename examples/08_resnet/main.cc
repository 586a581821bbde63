// Trains ResNet-18 on Fashion-MNIST, a model whose BatchNorm has state besides its parameters.
//   tutti run -n 4 ./resnet --plot loss.svg
#include <torch/torch.h>
#include <tutti/torch.h>
#include <tutti/tutti.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "arguments.h"
#include "common/checkpoint.h"
#include "common/device.h"
#include "common/fashion_mnist.h"
#include "common/report.h"
#include "common/schedule.h"
#include "resnet18.h"

namespace {

constexpr std::size_t kImagesOfALook = 500;  // of the test images

struct Quality {
  double loss = 0, accuracy = 0;
};

/// On all ranks together: every image is looked at by one of them.
Quality evaluate(ResNet18& net, FashionMnist& images, torch::Device device,
                 tutti::ProcessGroup& world) {
  // Each rank has the running statistics of its own last batch: here they take rank 0's.
  share_buffers(*net, world);
  const torch::NoGradGuard no_grad;
  net->eval();
  const auto ranks = static_cast<std::size_t>(world.world_size());
  std::vector<double> sums = {0, 0};  // loss, correct
  std::vector<std::size_t> samples;
  for (auto i = static_cast<std::size_t>(world.rank()); i < *images.size(); i += ranks) {
    samples.push_back(i);
    if (samples.size() < 250 && i + ranks < *images.size()) continue;
    const auto batch = images.get_batch(samples);
    const auto scores = net->forward(batch.data.to(device)), target = batch.target.to(device);
    sums[0] += torch::cross_entropy_loss(scores, target, {}, at::Reduction::Sum).item<double>();
    sums[1] += scores.argmax(1).eq(target).sum().item<double>();
    samples.clear();
  }
  net->train();
  world.all_reduce(sums);
  const auto count = static_cast<double>(*images.size());
  return {sums[0] / count, sums[1] / count};
}

/// How many a rank has in an epoch. Throws std::runtime_error if there is none.
std::size_t whole_batches(const tutti::DistributedSampler& sampler, std::size_t own_batch) {
  const std::size_t share = sampler.share_count();
  if (share >= own_batch) return share / own_batch;
  throw std::runtime_error("a rank has " + std::to_string(share) +
                           " training images, fewer than its " + std::to_string(own_batch) +
                           " of a batch; --limit and --batch say how many");
}

int train(const Arguments& arguments, tutti::ProcessGroup& world) {
  const torch::Device device = device_named(arguments.device);
  FashionMnist images(read_image_set(arguments.data, "train"), arguments.limit);
  const ImageSet held_out = read_image_set(arguments.data, "t10k");
  FashionMnist test_images(held_out), some_test_images(held_out, kImagesOfALook);

  torch::manual_seed(arguments.seed);
  ResNet18 net(1, 10);
  net->to(device);
  auto model = tutti::DistributedDataParallel(net, world);
  torch::optim::Adam optimizer(model.parameters(), arguments.learning_rate);

  const auto ranks = static_cast<std::size_t>(world.world_size());
  const std::size_t own_batch = std::max(arguments.batch / ranks, std::size_t{2});
  tutti::DistributedSampler sampler(*images.size(), world, {.seed = arguments.seed});
  // BatchNorm cannot do with one image: what is left of an epoch after its last whole batch is.
  const auto loader = torch::data::make_data_loader(
      images, sampler, torch::data::DataLoaderOptions(own_batch).drop_last(true));
  const std::size_t epoch_steps = whole_batches(sampler, own_batch);
  const std::size_t step_count = arguments.epochs * epoch_steps;

  LossCurve curve;
  RunState run{.net = *net,
               .optimizer = optimizer,
               .sampler = sampler,
               .batch = arguments.batch,
               .curve = &curve};
  resume_if_asked(arguments, &run, world);
  LossPlot plot(
      world.rank() == 0 ? arguments.plot : "", &curve,
      {.title = "ResNet-18 on Fashion-MNIST", .unit = "nats per image", .step_count = step_count});
  Progress progress(world, arguments.epochs, epoch_steps);
  Meter meter;
  model.train();
  for (; run.epoch < arguments.epochs; ++run.epoch) {
    sampler.set_epoch(run.epoch);
    for (auto& batch : *loader) {
      set_learning_rate(&optimizer, arguments.learning_rate, run.step, step_count);
      optimizer.zero_grad();
      const auto scores = model.forward(batch.data.to(device));
      auto loss = torch::cross_entropy_loss(scores, batch.target.to(device));
      loss.backward();
      optimizer.step();
      ++run.step;
      meter.add(batch.target.numel());
      curve.training.push_back(loss.item<double>());
      if (plot.due(run.step)) {
        meter.leave_out([&] {
          plot.add_held_out(run.step, evaluate(net, some_test_images, device, world).loss);
        });
      }
      if (progress.due()) {
        progress.show(run.step, loss.item<double>(), meter.speed(model.stats()));
      }
      if (saved_and_ending(arguments, run, world)) return 0;
    }
  }
  progress.finish();
  const Speed speed = meter.speed(model.stats());
  const Quality quality = evaluate(net, test_images, device, world);
  char result[80];
  std::snprintf(result, sizeof(result), "test accuracy %.2f %%, loss %.3f", 100 * quality.accuracy,
                quality.loss);
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
  std::fprintf(stderr, "resnet: %s\n", failure.what());
  return 1;
}
