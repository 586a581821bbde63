// Data-parallel training against one process that has the ranks' batches in one: every kind of
// model and of step, on 1 to 4 ranks of one host and on two hosts of two, which must end with the
// bits of one host. TUTTI_TEST_FULL=1 runs every dtype with every optimizer.
#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <string_view>

#include "torch_ranks.h"

namespace tutti::ddp::equivalence {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

constexpr int kSteps = 50;
constexpr std::int64_t kBatch = 48;  // divisible by 1, 2, 3, 4, and by 4 once more
constexpr std::int64_t kClasses = 5;
constexpr std::int64_t kSide = 6;

/// What a model is made of.
enum class Kind { mlp, cnn, shared, unused, frozen, reentrant };

struct NetImpl : nn::Module {
  explicit NetImpl(Kind the_kind) : kind(the_kind) {
    const std::int64_t inputs = kind == Kind::cnn ? 4 * 4 * 4 : kSide * kSide;
    if (kind == Kind::cnn) register_module("convolve", convolve);
    first = register_module("first", nn::Linear(inputs, 24));
    block = register_module("block", nn::Sequential(nn::Linear(24, 24), nn::Tanh()));
    if (kind == Kind::shared) register_module("again", block);
    if (kind == Kind::unused) register_module("spare", spare);
    register_module("out", out);
    if (kind != Kind::frozen) return;
    first->weight.requires_grad_(false);
    block[0]->parameters()[1].requires_grad_(false);
  }
  Tensor forward(const Tensor& images, int step) {
    Tensor x = kind == Kind::cnn ? torch::relu(convolve(images)) : images;
    x = torch::tanh(first(x.flatten(1)));
    x = kind == Kind::reentrant ? Checkpoint::apply(x, hint, &block) : block->forward(x);
    if (kind == Kind::shared) x = block->forward(x);
    if (kind == Kind::unused && step % 3 == 0) x = torch::tanh(spare(x));
    return out(x);
  }
  Kind kind;
  nn::Conv2d convolve{nn::Conv2dOptions(1, 4, 3)};
  nn::Linear first{nullptr};
  nn::Sequential block{nullptr};
  nn::Linear spare{24, 24}, out{24, kClasses};
  Tensor hint = torch::zeros({1}, torch::requires_grad());
};
TORCH_MODULE(Net);

/// What is trained, and how.
struct Form {
  std::string name;
  Kind kind = Kind::mlp;
  DataParallelOptions options = {.bucket_bytes = 2048};
  int micro_batches = 1;  // all but the last inside no_sync
  bool exact = false;     // shares that differ by one
  bool uneven = false;    // rank 0 has the most steps; the others leave a join and follow
  double max_norm = 0;    // to which gradients are clipped
  CommunicationHook hook = {};
};

const std::vector<Form>& forms() {
  static const std::vector<Form> kForms = {
      {.name = "Mlp"},
      {.name = "Cnn", .kind = Kind::cnn},
      {.name = "SharedParameters", .kind = Kind::shared},
      {.name = "UnusedParameters",
       .kind = Kind::unused,
       .options = {.bucket_bytes = 2048, .find_unused_parameters = true}},
      {.name = "FrozenParameters", .kind = Kind::frozen},
      {.name = "ReentrantBlock", .kind = Kind::reentrant},
      {.name = "MicroBatches", .micro_batches = 4},
      {.name = "CopiedGradients",
       .kind = Kind::cnn,
       .options = {.bucket_bytes = 2048, .gradients_as_views = false}},
      {.name = "ExactSampler", .exact = true},
      {.name = "JoinOfUnevenInputs", .uneven = true},
      {.name = "ClippedGradients", .max_norm = 0.02},
      {.name = "CommunicationHook",
       .kind = Kind::cnn,
       .hook =
           [](const GradientBucket& bucket, ProcessGroup& group) {
             return group.all_reduce(bucket.gradients, {.op = bucket.mean}, async, bucket.where);
           }},
  };
  return kForms;
}

/// How a form is trained this time.
struct Way {
  torch::Dtype dtype = torch::kDouble;
  bool adam = false;
};

std::vector<Way> ways() {
  const char* const wish = std::getenv("TUTTI_TEST_FULL");
  if (wish == nullptr || std::string_view(wish) != "1") {
    return {{torch::kDouble, true}, {torch::kFloat, false}};
  }
  return {{torch::kDouble, true},
          {torch::kDouble, false},
          {torch::kFloat, true},
          {torch::kFloat, false}};
}

/// Each once.
std::vector<Tensor> parameters_of(const nn::Module& module) {
  std::vector<Tensor> all;
  for (const Tensor& parameter : module.parameters()) {
    const auto same = [&](const Tensor& other) { return other.is_same(parameter); };
    if (std::none_of(all.begin(), all.end(), same)) all.push_back(parameter);
  }
  return all;
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(bool adam, const nn::Module& module) {
  std::vector<Tensor> p = parameters_of(module);
  if (adam) return std::make_unique<torch::optim::Adam>(std::move(p), 1e-3);
  return std::make_unique<torch::optim::SGD>(std::move(p),
                                             torch::optim::SGDOptions(0.05).momentum(0.9));
}

/// The samples of a step: those of all ranks, which the one process takes, and this rank's of them.
class Batches {
 public:
  struct Batch {
    std::vector<std::size_t> whole, mine;
    double weight = 1;
    int ranks_in = 0;  ///< that have samples
  };

  Batches(ProcessGroup& world, const Form& form)
      : world_(world),
        form_(form),
        count_(form.exact ? 99 : 4 * kBatch),
        sampler_(count_, world, {.tail = form.exact ? Tail::exact : Tail::pad}),
        whole_(count_, 1, 0) {}

  Batch next(int step) { return form_.uneven ? uneven(step) : sampled(); }
  /// How many of the steps `rank` has samples for.
  int steps_of(int rank) const { return form_.uneven ? kSteps - 10 * rank : kSteps; }
  std::int64_t count() const { return static_cast<std::int64_t>(count_); }

 private:
  Batch sampled() {
    Batch batch;
    const auto own = static_cast<std::size_t>(kBatch / world_.world_size());
    std::optional<std::vector<std::size_t>> mine = sampler_.next(own);
    while (!mine) {
      sampler_.set_epoch(epoch_);
      whole_.set_epoch(epoch_++);
      sampler_.reset();
      whole_.reset();
      mine = sampler_.next(own);
    }
    batch.mine = *mine;
    batch.whole = *whole_.next(world_.all_reduce_value(mine->size()));
    batch.weight = sampler_.weight(mine->size(), sampler_.index());
    batch.ranks_in = world_.world_size();
    return batch;
  }
  /// Without a collective: who has left a join takes part in none.
  Batch uneven(int step) const {
    Batch batch;
    const auto own = static_cast<std::size_t>(kBatch / world_.world_size());
    for (int rank = 0; rank < world_.world_size() && step < steps_of(rank); ++rank) {
      for (std::size_t i = 0; i < own; ++i) {
        const std::size_t number = static_cast<std::size_t>(step) * kBatch + batch.whole.size();
        batch.whole.push_back(number % count_);
        if (rank == world_.rank()) batch.mine.push_back(number % count_);
      }
      ++batch.ranks_in;
    }
    return batch;
  }

  ProcessGroup& world_;
  const Form& form_;
  const std::size_t count_;
  DistributedSampler sampler_, whole_;
  std::size_t epoch_ = 0;
};

Tensor rows(const Tensor& of, const std::vector<std::size_t>& indices) {
  const std::vector<std::int64_t> list(indices.begin(), indices.end());
  return of.index_select(0, torch::tensor(list, torch::kLong));
}

/// One process with the ranks' batches in one.
class Alone {
 public:
  Alone(const Form& form, const Way& way, Net net)
      : way_(way),
        max_norm_(form.max_norm),
        net_(std::move(net)),
        optimizer_(make_optimizer(way.adam, *net_)) {
    what_ = form.name + (way.dtype == torch::kDouble ? ", f64" : ", f32") +
            (way.adam ? " Adam" : " SGD");
  }
  void step(const Tensor& images, const Tensor& classes, int step, double mean_of_ranks) {
    optimizer_->zero_grad();
    const Tensor loss = torch::cross_entropy_loss(net_->forward(images, step), classes);
    loss.backward();
    if (max_norm_ > 0) {
      const double norm = nn::utils::clip_grad_norm_(parameters_of(*net_), max_norm_);
      check(norm > max_norm_, "gradients are clipped in every step");
    }
    optimizer_->step();
    const double expected = loss.item<double>();
    const double off = std::abs(mean_of_ranks - expected);
    const std::string where =
        c10::str(what_, ", step ", step, ": loss ", mean_of_ranks, ", alone ", expected);
    check(off <= (way_.dtype == torch::kDouble ? 1e-10 : 1e-5 * std::max(expected, 0.1)), where);
  }
  void check_like(const nn::Module& trained) const {
    if (way_.dtype != torch::kDouble) return;
    const auto actual = trained.named_parameters();
    for (const auto& item : net_->named_parameters()) {
      check_near(actual[item.key()], item.value(), 1e-10, what_ + ": " + item.key());
    }
  }

 private:
  const Way way_;
  const double max_norm_;
  Net net_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::string what_;
};

Net make_net(Kind kind, torch::Dtype dtype) {
  torch::manual_seed(5);
  Net net(kind);
  net->to(dtype);
  return net;
}

/// Trains in every step like one process; returns the hash that all ranks end with.
std::uint64_t train(ProcessGroup& world, const Form& form, const Way& way) {
  Net net = make_net(form.kind, way.dtype);
  auto model = DistributedDataParallel(net, world, form.options);
  if (form.hook) model.set_communication_hook("mean", form.hook);
  const auto optimizer = make_optimizer(way.adam, model);
  Alone alone(form, way, make_net(form.kind, way.dtype));  // on rank 0
  Batches batches(world, form);
  torch::manual_seed(6);  // the same data on every rank
  const Tensor images = torch::randn({batches.count(), 1, kSide, kSide}, way.dtype);
  const Tensor classes = torch::randint(0, kClasses, {batches.count()}, torch::kLong);
  const auto end_step = [&](const Batches::Batch& batch, int step, double loss) {
    if (form.max_norm > 0) clip_grad_norm_(model.parameters(), form.max_norm);
    optimizer->step();
    optimizer->zero_grad();
    check_same_everywhere(world, *net);
    const double mean = world.all_reduce_value(loss) / batch.ranks_in;
    if (world.rank() == 0) {
      alone.step(rows(images, batch.whole), rows(classes, batch.whole), step, mean);
    }
  };
  const int own_steps = batches.steps_of(world.rank());
  std::optional<detail::DataParallel::Join> join;
  if (form.uneven) join.emplace(model, JoinOptions{.divide_by_world = false}, Where::current());
  for (int step = 0; step < own_steps; ++step) {
    const Batches::Batch batch = batches.next(step);
    double loss_sum = 0;
    const auto backward = [&](const Tensor& part, const Tensor& of) {
      const Tensor loss = torch::cross_entropy_loss(model.forward(part, step), of) * batch.weight /
                          form.micro_batches;
      loss.backward();
      loss_sum += loss.item<double>();
    };
    const auto parts = rows(images, batch.mine).chunk(form.micro_batches);
    const auto of = rows(classes, batch.mine).chunk(form.micro_batches);
    {
      const auto local = model.no_sync();
      for (std::size_t i = 0; i + 1 < parts.size(); ++i) backward(parts[i], of[i]);
    }
    backward(parts.back(), of.back());
    end_step(batch, step, loss_sum);
  }
  if (join) {
    int step = own_steps;
    join->finish([&] {
      end_step(batches.next(step), step, 0);
      ++step;
    });
  }
  if (world.rank() == 0) alone.check_like(*net);
  return parameter_hash(*net);
}

/// What every rank has ended with, as text.
std::string trained_by(int ranks, const std::vector<int>& hosts,
                       const std::function<std::string(ProcessGroup&)>& body) {
  const auto rank = [&](const test_kit::Rank& me) {
    torch::set_num_threads(1);
    ProcessGroup world = init_process_group(me.init);
    std::string result = body(world);
    world.close();
    return result;
  };
  const auto outcomes =
      test_kit::collect_ranks(ranks, rank, {.as = test_kit::As::processes, .hosts = hosts});
  for (const auto& outcome : outcomes) {
    EXPECT_EQ(outcome.failure, "") << "rank " << outcome.rank << " of " << ranks;
    EXPECT_EQ(outcome.result, outcomes[0].result) << "rank " << outcome.rank << " of " << ranks;
  }
  return outcomes[0].result;
}

class Equivalence : public testing::TestWithParam<Form> {};

TEST_P(Equivalence, OneProcessOneHostAndTwo) {
  const auto body = [](ProcessGroup& world) {
    std::ostringstream hashes;
    for (const Way& way : ways()) hashes << std::hex << train(world, GetParam(), way) << ' ';
    return hashes.str();
  };
  std::string of_four;
  for (const int ranks : {1, 2, 3, 4}) of_four = trained_by(ranks, {}, body);
  EXPECT_EQ(trained_by(4, {0, 0, 1, 1}, body), of_four);
}
INSTANTIATE_TEST_SUITE_P(Forms, Equivalence, testing::ValuesIn(forms()),
                         [](const auto& form) { return form.param.name; });

/// Large enough for libtorch to use all threads that it may.
TEST(Training, ThreadsMayDifferBetweenRanks) {
  trained_by(4, {}, [](ProcessGroup& world) {
    torch::set_num_threads(1 + world.rank());
    check(torch::get_num_threads() == 1 + world.rank(), "threads");
    torch::manual_seed(7);
    nn::Sequential net(nn::Linear(300, 300), nn::Tanh(), nn::BatchNorm1d(300), nn::Linear(300, 300),
                       nn::ReLU(), nn::Linear(300, 10));
    convert_sync_batch_norm(net, world);
    auto model = DistributedDataParallel(net, world, {.bucket_bytes = 1 << 18});
    const auto optimizer = make_optimizer(true, model);
    torch::manual_seed(8 + static_cast<std::uint64_t>(world.rank()));
    for (int step = 0; step < 5; ++step) {
      optimizer->zero_grad();
      const Tensor output = model.forward(torch::randn({256, 300}));
      torch::cross_entropy_loss(output, torch::randint(0, 10, {256}, torch::kLong)).backward();
      optimizer->step();
      check_same_everywhere(world, *net);
    }
    return std::to_string(parameter_hash(*net));
  });
}

// ---- several dtypes in one model ---------------------------------------------------------------

/// A tower of each dtype over one input.
struct TowersImpl : nn::Module {
  TowersImpl() {
    for (const torch::Dtype dtype : {torch::kDouble, torch::kFloat, torch::kBFloat16}) {
      nn::Sequential tower(nn::Linear(6, 16), nn::Tanh(), nn::Linear(16, 1));
      tower->to(dtype);
      towers->push_back(tower);
    }
    register_module("towers", towers);
  }
  std::vector<Tensor> forward(const Tensor& x) {
    std::vector<Tensor> outputs;
    for (const auto& tower : *towers) {
      const torch::Dtype dtype = tower->parameters()[0].scalar_type();
      outputs.push_back(tower->as<nn::Sequential>()->forward(x.to(dtype)).to(torch::kDouble));
    }
    return outputs;
  }
  nn::ModuleList towers;
};
TORCH_MODULE(Towers);

Tensor loss_of(const std::vector<Tensor>& outputs, const Tensor& target) {
  Tensor loss = torch::zeros({}, torch::kDouble);
  for (const Tensor& output : outputs) loss = loss + torch::mse_loss(output, target);
  return loss;
}

std::string train_towers(ProcessGroup& world) {
  torch::manual_seed(9);
  Towers net;
  torch::manual_seed(9);
  Towers alone;
  auto model = DistributedDataParallel(net, world);
  const auto optimizer = make_optimizer(false, model);
  const auto alone_optimizer = make_optimizer(false, *alone);
  torch::manual_seed(10);
  double first = 0, last = 0;
  for (int step = 0; step < kSteps; ++step) {
    const Tensor x = torch::randn({kBatch, 6}), target = x.sum(1, true).to(torch::kDouble) / 6;
    const auto mine = [&](const Tensor& t) { return t.chunk(world.world_size())[world.rank()]; };
    optimizer->zero_grad();
    const Tensor loss = loss_of(model.forward(mine(x)), mine(target));
    loss.backward();
    optimizer->step();
    check_same_everywhere(world, *net);
    alone_optimizer->zero_grad();
    const Tensor alone_loss = loss_of(alone->forward(x), target);
    alone_loss.backward();
    alone_optimizer->step();
    last = world.all_reduce_value(loss.item<double>(), {.op = ReduceOp::avg});
    if (step == 0) first = last;
    check(std::abs(last - alone_loss.item<double>()) < 0.02 * first, "loss");
  }
  check(last < first / 4, c10::str("it learns: from ", first, " to ", last));
  check(model.stats().buckets == 3, "a bucket of each dtype");
  const auto expected = alone->parameters();
  const auto actual = net->parameters();
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const torch::Dtype dtype = actual[i].scalar_type();
    const double near = dtype == torch::kDouble ? 1e-10 : dtype == torch::kFloat ? 1e-5 : 0.05;
    check_near(actual[i].to(torch::kDouble), expected[i].to(torch::kDouble), near, c10::str(dtype));
  }
  return std::to_string(parameter_hash(*net));
}

TEST(Training, AModelOfSeveralDtypes) {
  const std::string of_four = trained_by(4, {}, train_towers);
  EXPECT_EQ(trained_by(4, {0, 0, 1, 1}, train_towers), of_four);
  trained_by(3, {}, train_towers);
}

}  // namespace
}  // namespace tutti::ddp::equivalence
