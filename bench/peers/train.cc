// A rank that trains, for training.py; train.py does the same in Python with torch's own wrapper.
// It obeys the driver's commands, one per line, on the pipe PIPES.RANK.in; answers go to .out:
//
//   begin MODEL BATCH BUCKET_BYTES MOMENTUM  a model from seed 1; answers a sum of its parameters
//   loss              one step; its loss on this rank
//   steps COUNT HOW   nanoseconds per step for this rank; one before is not timed
//   part WHAT         of these, with `watched` and `apart`: data, backward, exposed
//   quit
//
// HOW  together: gradients are exchanged while backward runs; watched: the same, and torch's
//      wrapper is asked after each step how long it took; apart: after backward, all at once;
//      alone: not at all.
#include <torch/torch.h>
#include <tutti/torch.h>
#include <tutti/tutti.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "models.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kPixels = 784;
constexpr std::int64_t kStride = 7919;  // a prime: deals the images out in another order
constexpr std::int64_t kMaskOfSum = (std::int64_t{1} << 52) - 1;  // a double holds it

std::vector<std::uint8_t> read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// All of them in memory, as bytes.
struct Images {
  explicit Images(const std::string& folder) {
    pixels = torch::tensor(torch::ArrayRef<std::uint8_t>(read_bytes(folder + "/images")))
                 .view({-1, 1, 28, 28});
    labels = torch::tensor(torch::ArrayRef<std::uint8_t>(read_bytes(folder + "/labels")))
                 .to(torch::kLong);
    if (pixels.numel() != labels.numel() * kPixels) throw std::runtime_error("labels are missing");
  }
  torch::data::Example<> batch(std::int64_t number, std::int64_t batch) const {
    const std::int64_t count = labels.numel();
    const auto chosen =
        torch::arange(number * batch, (number + 1) * batch).mul_(kStride).remainder_(count);
    return {pixels.index_select(0, chosen).to(torch::kFloat).sub_(73).div_(90),
            labels.index_select(0, chosen)};
  }

  torch::Tensor pixels, labels;
};

/// All gradients in one buffer, which is averaged after backward: what the wrapper does, without
/// any overlap.
class Apart {
 public:
  Apart(const std::vector<torch::Tensor>& parameters, tutti::ProcessGroup& world)
      : parameters_(parameters), world_(world) {
    std::int64_t count = 0;
    for (const auto& parameter : parameters) count += parameter.numel();
    memory_ = world.allocate(static_cast<std::size_t>(count) * sizeof(float));
    flat_ = torch::from_blob(memory_.data.get(), {count}, torch::kFloat);
  }
  void exchange() {
    const torch::NoGradGuard no_grad;
    std::vector<torch::Tensor> views;
    std::int64_t offset = 0;
    for (const auto& parameter : parameters_) {
      const auto run = flat_.narrow(0, offset, parameter.numel());
      views.push_back(run.view(parameter.sizes()).variable_data());  // zero_grad detaches it
      views.back().copy_(parameter.grad());
      offset += parameter.numel();
    }
    world_.all_reduce(flat_, tutti::ReduceOp::avg);
    for (std::size_t i = 0; i < views.size(); ++i) parameters_[i].mutable_grad() = views[i];
  }

 private:
  std::vector<torch::Tensor> parameters_;
  tutti::ProcessGroup& world_;
  tutti::Memory memory_;
  torch::Tensor flat_;
};

std::unique_ptr<torch::optim::Optimizer> optimizer_for(
    const std::string& name, double momentum, const std::vector<torch::Tensor>& parameters) {
  if (name == "cnn") return std::make_unique<torch::optim::Adam>(parameters, 2e-3);
  return std::make_unique<torch::optim::SGD>(parameters,
                                             torch::optim::SGDOptions(0.01).momentum(momentum));
}

torch::nn::Sequential made_from_seed(const std::string& name) {
  torch::manual_seed(1);
  return models::make(name);
}

class Training {
 public:
  Training(const std::string& name, std::int64_t batch, std::size_t bucket_bytes, double momentum,
           const Images& images, tutti::ProcessGroup& world)
      : images_(images),
        world_(world),
        batch_(batch),
        net_(made_from_seed(name)),
        model_(net_, world, {.bucket_bytes = bucket_bytes}),
        optimizer_(optimizer_for(name, momentum, model_.parameters())) {
    torch::manual_seed(1 + static_cast<std::uint64_t>(world.rank()));  // dropout
    model_.train();
  }

  /// Depends on every bit of the parameters and their order.
  std::int64_t checksum() const {
    std::vector<torch::Tensor> all;
    for (const auto& parameter : net_->parameters()) all.push_back(parameter.detach().view(-1));
    const auto bits = torch::cat(all).view(torch::kInt).to(torch::kLong);
    return (bits * torch::arange(1, bits.numel() + 1)).sum().item<std::int64_t>() & kMaskOfSum;
  }

  double step(const std::string& how) {
    const auto begin = Clock::now();
    const auto batch = images_.batch(step_++ * world_.world_size() + world_.rank(), batch_);
    part_["data"] += Clock::now() - begin;
    optimizer_->zero_grad();
    double loss = 0;
    if (how == "together" || how == "watched") {
      loss = backward(batch);
    } else {
      const auto local = model_.no_sync();
      loss = backward(batch);
    }
    if (how == "apart") exchange_apart();
    optimizer_->step();
    return loss;
  }

  double nanoseconds_each(std::int64_t count, const std::string& how) {
    step(how);
    world_.barrier();
    part_.clear();
    timed_steps_ = count;
    const auto exposed = model_.stats().exposed;
    const auto begin = Clock::now();
    for (std::int64_t i = 0; i < count; ++i) step(how);
    const auto took = Clock::now() - begin;
    part_["exposed"] += model_.stats().exposed - exposed;
    return each(took);
  }
  double part(const std::string& what) { return each(part_[what]); }

 private:
  double backward(const torch::data::Example<>& batch) {
    const auto loss = torch::cross_entropy_loss(model_.forward(batch.data), batch.target);
    const auto begin = Clock::now();
    loss.backward();
    part_["backward"] += Clock::now() - begin;
    return loss.item<double>();
  }
  void exchange_apart() {
    const auto begin = Clock::now();
    if (!apart_) apart_.emplace(model_.parameters(), world_);
    apart_->exchange();
    part_["exposed"] += Clock::now() - begin;
  }
  double each(Clock::duration time) const {
    return std::chrono::duration<double, std::nano>(time).count() /
           static_cast<double>(timed_steps_);
  }

  const Images& images_;
  tutti::ProcessGroup& world_;
  const std::int64_t batch_;
  torch::nn::Sequential net_;
  tutti::DistributedDataParallel<torch::nn::SequentialImpl> model_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::optional<Apart> apart_;
  std::int64_t step_ = 0, timed_steps_ = 1;
  std::map<std::string, Clock::duration> part_;
};

/// Serves until "quit" or the end of the pipe.
int serve(const std::string& pipes, const Images& images, tutti::ProcessGroup& world) {
  const std::string base = pipes + "." + std::to_string(world.rank());
  std::ifstream commands(base + ".in");
  std::ofstream answers(base + ".out");
  answers.precision(17);
  std::optional<Training> training;
  std::string command, word;
  std::int64_t number = 0;
  std::size_t bucket_bytes = 0;
  double momentum = 0;
  while (commands >> command && command != "quit") {
    if (command == "begin" && commands >> word >> number >> bucket_bytes >> momentum) {
      training.reset();
      training.emplace(word, number, bucket_bytes, momentum, images, world);
      answers << training->checksum();
    } else if (command == "loss") {
      answers << training.value().step("together");
    } else if (command == "steps" && commands >> number >> word) {
      answers << training.value().nanoseconds_each(number, word);
    } else if (command == "part" && commands >> word) {
      answers << training.value().part(word);
    } else {
      std::fprintf(stderr, "train: unknown command '%s'\n", command.c_str());
      return 2;
    }
    answers << std::endl;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) return 2;  // PIPES FOLDER
  at::set_num_threads(1);
  const Images images(argv[2]);
  auto world = tutti::init_process_group();
  return serve(argv[1], images, world);
} catch (const std::exception& failure) {
  std::fprintf(stderr, "train: %s\n", failure.what());
  return 1;
}
