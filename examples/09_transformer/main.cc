// Trains a Transformer to predict the next character of a text, a part of which is held out.
//   tutti run -n 4 ./transformer --plot loss.svg
#include <torch/torch.h>
#include <tutti/torch.h>
#include <tutti/tutti.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <vector>

#include "arguments.h"
#include "common/checkpoint.h"
#include "common/device.h"
#include "common/report.h"
#include "common/schedule.h"
#include "text.h"
#include "transformer.h"

namespace {

constexpr std::size_t kContext = 64;  // characters of a sample

/// Part [begin, end) of a text: a sample begins `stride` characters after the one before it, and
/// its targets are its characters, each one later.
class Samples : public torch::data::datasets::BatchDataset<Samples, torch::data::Example<>,
                                                           std::vector<std::size_t>> {
 public:
  Samples(const Text& text, std::size_t begin, std::size_t end, std::size_t stride)
      : count_((end - begin - kContext - 1) / stride + 1), stride_(stride) {
    codes_ = torch::tensor(torch::ArrayRef<std::uint8_t>(text.codes.data() + begin, end - begin));
  }
  torch::data::Example<> get_batch(std::vector<std::size_t> samples) override {
    std::vector<torch::Tensor> chosen;
    for (const std::size_t sample : samples) {
      const auto at = static_cast<std::int64_t>(sample * stride_);
      chosen.push_back(codes_.narrow(0, at, kContext + 1));
    }
    const torch::Tensor codes = torch::stack(chosen).to(torch::kLong);
    return {codes.narrow(1, 0, kContext), codes.narrow(1, 1, kContext)};
  }
  std::optional<std::size_t> size() const override { return count_; }

 private:
  std::size_t count_, stride_;
  torch::Tensor codes_;
};

torch::Tensor loss_of(const torch::Tensor& scores, const torch::Tensor& targets) {
  return torch::cross_entropy_loss(scores.flatten(0, 1), targets.flatten());
}

/// The mean loss of a character, on all ranks together: every sample is looked at by one of them.
double evaluate(Transformer& net, Samples& samples, torch::Device device,
                tutti::ProcessGroup& world) {
  const torch::NoGradGuard no_grad;
  net->eval();
  const auto ranks = static_cast<std::size_t>(world.world_size());
  double sum = 0;
  std::vector<std::size_t> chosen;
  for (auto i = static_cast<std::size_t>(world.rank()); i < *samples.size(); i += ranks) {
    chosen.push_back(i);
    if (chosen.size() < 64 && i + ranks < *samples.size()) continue;
    const auto batch = samples.get_batch(chosen);
    const auto scores = net->forward(batch.data.to(device));
    const double loss = loss_of(scores, batch.target.to(device)).item<double>();
    sum += loss * static_cast<double>(chosen.size());
    chosen.clear();
  }
  net->train();
  return world.all_reduce_value(sum) / static_cast<double>(*samples.size());
}

int train(const Arguments& arguments, tutti::ProcessGroup& world) {
  const torch::Device device = device_named(arguments.device);
  const Text text = read_text(arguments.text, arguments.limit, 2 * (kContext + 1));
  const std::size_t count = text.codes.size();
  const std::size_t split = count - std::max(count / 10, kContext + 1);  // the end is held out
  Samples samples(text, 0, split, 1), held_out(text, split, count, kContext);
  const double entropy = pair_entropy(text, split, count);

  torch::manual_seed(arguments.seed);
  Transformer net(TransformerOptions{.alphabet = static_cast<std::int64_t>(text.alphabet),
                                     .context = kContext});
  net->to(device);
  auto model = tutti::DistributedDataParallel(net, world);
  torch::optim::AdamW optimizer(model.parameters(), arguments.learning_rate);
  torch::manual_seed(arguments.seed + world.rank());  // dropout differs between ranks

  const auto ranks = static_cast<std::size_t>(world.world_size());
  const std::size_t own_batch = std::max(arguments.batch / ranks, std::size_t{1});
  tutti::DistributedSampler sampler(*samples.size(), world, {.seed = arguments.seed});
  const auto loader = torch::data::make_data_loader(samples, sampler, own_batch);

  LossCurve curve;
  RunState run{.net = *net,
               .optimizer = optimizer,
               .sampler = sampler,
               .batch = arguments.batch,
               .curve = &curve};
  resume_if_asked(arguments, &run, world);
  LossPlot plot(world.rank() == 0 ? arguments.plot : "", &curve,
                {.title = "A Transformer that predicts the next character",
                 .unit = "nats per character",
                 .step_count = arguments.steps,
                 .level = PlotText::Level{"entropy of character pairs", entropy}});
  Progress progress(world, arguments.steps);
  Meter meter;
  model.train();
  for (; run.step < arguments.steps; ++run.epoch) {  // an epoch has a sample for every character
    sampler.set_epoch(run.epoch);
    for (auto& batch : *loader) {
      set_learning_rate(&optimizer, arguments.learning_rate, run.step, arguments.steps);
      optimizer.zero_grad();
      auto loss = loss_of(model.forward(batch.data.to(device)), batch.target.to(device));
      loss.backward();
      optimizer.step();
      ++run.step;
      meter.add(batch.data.size(0));
      curve.training.push_back(loss.item<double>());
      if (plot.due(run.step)) {
        meter.leave_out(
            [&] { plot.add_held_out(run.step, evaluate(net, held_out, device, world)); });
      }
      if (progress.due()) {
        progress.show(run.step, loss.item<double>(), meter.speed(model.stats()));
      }
      if (saved_and_ending(arguments, run, world)) return 0;
      if (run.step == arguments.steps) break;
    }
  }
  progress.finish();
  const Speed speed = meter.speed(model.stats());
  char result[100];
  std::snprintf(result, sizeof(result),
                "held-out loss %.3f nats per character, entropy of its character pairs %.3f",
                evaluate(net, held_out, device, world), entropy);
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
  std::fprintf(stderr, "transformer: %s\n", failure.what());
  return 1;
}
