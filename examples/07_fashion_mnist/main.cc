// Trains a small convolutional network on Fashion-MNIST: 60,000 images, N ranks, one command.
//   tutti run -n 4 ./fashion_mnist
#include <torch/torch.h>
#include <tutti/torch.h>
#include <tutti/tutti.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>

#include "arguments.h"
#include "checkpoint.h"
#include "idx.h"
#include "progress.h"

namespace {

using Clock = std::chrono::steady_clock;

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

std::atomic<bool> stop_requested = false;

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

/// Images stay bytes in memory; a batch of them becomes floats.
class FashionMnist
    : public torch::data::datasets::BatchDataset<FashionMnist, torch::data::Example<>,
                                                 std::vector<std::size_t>> {
 public:
  explicit FashionMnist(const ImageSet& set, std::size_t limit = 0) {
    const auto count = static_cast<std::int64_t>(set.count);
    images_ = torch::tensor(torch::ArrayRef<std::uint8_t>(set.pixels)).view({count, 1, 28, 28});
    labels_ = torch::tensor(torch::ArrayRef<std::uint8_t>(set.labels)).to(torch::kLong);
    const auto used = static_cast<std::int64_t>(limit);
    if (limit == 0 || used >= count) return;
    images_ = images_.narrow(0, 0, used);
    labels_ = labels_.narrow(0, 0, used);
  }
  torch::data::Example<> get_batch(std::vector<std::size_t> samples) override {
    constexpr double kMean = 73, kDeviation = 90;  // of the training images
    const auto count = static_cast<std::int64_t>(samples.size());
    const auto chosen = torch::from_blob(samples.data(), {count}, torch::kLong);
    return {images_.index_select(0, chosen).to(torch::kFloat).sub_(kMean).div_(kDeviation),
            labels_.index_select(0, chosen)};
  }
  std::optional<std::size_t> size() const override {
    return static_cast<std::size_t>(labels_.numel());
  }

 private:
  torch::Tensor images_, labels_;
};

/// Share of the test images classified correctly; every image is looked at by one rank.
double test_accuracy(Net& net, FashionMnist& images, tutti::ProcessGroup& world) {
  const torch::NoGradGuard no_grad;
  net->eval();
  const auto ranks = static_cast<std::size_t>(world.world_size());
  std::int64_t correct = 0;
  std::vector<std::size_t> samples;
  for (auto i = static_cast<std::size_t>(world.rank()); i < *images.size(); i += ranks) {
    samples.push_back(i);
    if (samples.size() < 500 && i + ranks < *images.size()) continue;
    const auto batch = images.get_batch(samples);
    correct += net->forward(batch.data).argmax(1).eq(batch.target).sum().item<std::int64_t>();
    samples.clear();
  }
  return static_cast<double>(world.all_reduce_value(correct)) / static_cast<double>(*images.size());
}

struct Speed {
  double samples_per_second = 0;
  double communicating = 0;  ///< share of the time
};

/// One row per rank, and the hash that all of them must share.
bool report(tutti::ProcessGroup& world, const Speed& own, double accuracy, std::uint64_t hash) {
  const auto ranks = static_cast<std::size_t>(world.world_size());
  const std::vector<double> own_row = {own.samples_per_second, own.communicating};
  std::vector<double> rows(2 * ranks);
  std::vector<std::uint64_t> hashes(ranks);
  world.all_gather(own_row, rows);
  world.all_gather(hash, hashes);
  const bool identical = std::count(hashes.begin(), hashes.end(), hash) == world.world_size();
  if (world.rank() == 0) {
    std::printf("rank  samples/s  communicating\n");
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      std::printf("%4zu  %9.0f  %11.1f %%\n", rank, rows[2 * rank], 100 * rows[2 * rank + 1]);
    }
    std::printf("test accuracy %.2f %%\n", 100 * accuracy);
    std::printf("parameter hash %016llx%s\n", static_cast<unsigned long long>(hash),
                identical ? " on every rank" : ", BUT THE RANKS DIFFER");
    std::fflush(stdout);
  }
  return identical;
}

/// The end: says how to go on.
void save_and_say(const Arguments& arguments, const RunState& run, tutti::ProcessGroup& world) {
  save_checkpoint(arguments.checkpoint, run, world);
  if (world.rank() != 0) return;
  const std::string launcher =
      world.world_size() > 1 ? "tutti run -n " + std::to_string(world.world_size()) + " " : "";
  std::printf("saved after step %zu; go on with: %s%s --resume\n", run.step, launcher.c_str(),
              arguments.command.c_str());
  std::fflush(stdout);
}

int train(const Arguments& arguments, tutti::ProcessGroup& world) {
  FashionMnist images(read_image_set(arguments.data, "train"), arguments.limit);
  FashionMnist test_images(read_image_set(arguments.data, "t10k"));

  torch::manual_seed(arguments.seed);
  Net net;
  auto model = tutti::DistributedDataParallel(net, world);
  torch::optim::Adam optimizer(model.parameters(), arguments.learning_rate);
  torch::manual_seed(arguments.seed + world.rank());  // dropout differs between ranks

  const auto ranks = static_cast<std::size_t>(world.world_size());
  const std::size_t own_batch = std::max(arguments.batch / ranks, std::size_t{1});
  tutti::DistributedSampler sampler(*images.size(), world, {.seed = arguments.seed});
  const auto loader = torch::data::make_data_loader(images, sampler, own_batch);
  const std::size_t epoch_steps = (sampler.share_count() + own_batch - 1) / own_batch;
  const auto all_steps = static_cast<double>(arguments.epochs * epoch_steps);
  RunState run{*net, optimizer, sampler};
  if (arguments.resume) {
    load_checkpoint(arguments.checkpoint, &run, world);
    if (world.rank() == 0) std::printf("going on after step %zu\n", run.step);
  }

  Progress progress(world.rank() == 0, arguments.epochs, epoch_steps);
  const auto begin = Clock::now();
  std::size_t samples = 0;
  const auto speed = [&] {
    const double elapsed = seconds(Clock::now() - begin);
    return Speed{static_cast<double>(samples) / elapsed, seconds(model.stats().exposed) / elapsed};
  };
  model.train();
  for (; run.epoch < arguments.epochs; ++run.epoch) {
    sampler.set_epoch(run.epoch);
    for (auto& batch : *loader) {
      const double rate = arguments.learning_rate * (1 - static_cast<double>(run.step) / all_steps);
      for (auto& group : optimizer.param_groups()) group.options().set_lr(rate);
      optimizer.zero_grad();
      auto loss = torch::cross_entropy_loss(model.forward(batch.data), batch.target);
      loss.backward();
      optimizer.step();
      ++run.step;
      samples += static_cast<std::size_t>(batch.target.numel());
      if (progress.due()) {
        const Speed now = speed();
        progress.show(run.step, loss.item<double>(),
                      now.samples_per_second * static_cast<double>(ranks), now.communicating);
      }
      if (arguments.checkpoint.empty()) continue;
      if (arguments.checkpoint_every != 0 && run.step % arguments.checkpoint_every == 0) {
        save_checkpoint(arguments.checkpoint, run, world);
      }
      // A signal reaches the ranks at different steps: they stop after one they agree on.
      const auto mine = static_cast<std::uint8_t>(stop_requested.load());
      if (world.all_reduce_value(mine, {.op = tutti::ReduceOp::max}) != 0) {
        save_and_say(arguments, run, world);
        return 0;
      }
    }
  }
  progress.finish();
  const Speed final_speed = speed();
  const double accuracy = test_accuracy(net, test_images, world);
  return report(world, final_speed, accuracy, tutti::parameter_hash(*net)) ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) try {
  const Arguments arguments = parse_arguments(argc, argv);
  if (!arguments.checkpoint.empty()) {
    tutti::on_terminate([] { stop_requested = true; });
  }
  auto world = tutti::init_process_group();
  const int code = train(arguments, world);
  world.close();
  return code;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "fashion_mnist: %s\n", failure.what());
  return 1;
}
