// SyncBatchNorm against one process that has the batches of all ranks in one.
#include <numeric>
#include <sstream>

#include "torch_ranks.h"

namespace tutti::ddp::norm {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

/// How many samples each rank has.
using Parts = std::vector<std::int64_t>;

/// The ranks' batches in one. All ranks know it.
Tensor whole_batch(const Parts& parts, std::vector<std::int64_t> shape, torch::Dtype dtype) {
  torch::manual_seed(21);
  shape.insert(shape.begin(), std::accumulate(parts.begin(), parts.end(), std::int64_t{0}));
  return (torch::randn(shape, torch::kDouble) * 2 + 3).to(dtype);
}
Tensor part_of(const Tensor& whole, const Parts& parts, int rank) {
  const auto begin = std::accumulate(parts.begin(), parts.begin() + rank, std::int64_t{0});
  return whole.narrow(0, begin, parts[static_cast<std::size_t>(rank)]);
}
Tensor sum_over(ProcessGroup& world, const Tensor& tensor) {
  Tensor sum = tensor.clone();
  world.all_reduce(sum);
  return sum;
}

/// Weights that are not all 1, the same everywhere.
void disturb(nn::Module& module) {
  torch::manual_seed(22);
  const torch::NoGradGuard no_grad;
  for (const auto& item : module.named_parameters())
    item.value().add_(torch::randn_like(item.value()));
}

/// Several steps of a plain and a synchronised norm: outputs, gradients, buffers.
template <class Plain, class Synced>
void compare(ProcessGroup& world, const Parts& parts, const std::vector<std::int64_t>& shape,
             const nn::BatchNormOptions& options, torch::Dtype dtype, double tolerance,
             torch::MemoryFormat format = torch::MemoryFormat::Contiguous) {
  const std::string what = c10::str(shape, " ", dtype, " in parts of ", parts);
  Plain plain(options);
  Synced synced(options, world);
  for (nn::Module* each : {static_cast<nn::Module*>(plain.ptr().get()),
                           static_cast<nn::Module*>(synced.ptr().get())}) {
    each->to(dtype);
    disturb(*each);
  }
  for (int step = 0; step < 3; ++step) {
    const Tensor whole = (whole_batch(parts, shape, dtype) + step).contiguous(format);
    const Tensor whole_input = whole.clone().requires_grad_(true);
    const Tensor input = part_of(whole, parts, world.rank()).clone().requires_grad_(true);
    const Tensor expected = plain->forward(whole_input);
    const Tensor output = synced->forward(input);
    check(output.is_contiguous(format) || output.numel() == 0, "memory format");
    const auto samples = static_cast<double>(whole.size(0));
    ((expected * torch::cos(whole)).sum() / samples).backward();
    ((output * torch::cos(input.detach())).sum() / samples).backward();

    const auto mine = [&](const Tensor& of_whole) {
      return part_of(of_whole, parts, world.rank());
    };
    const auto near = [&](const Tensor& actual, const Tensor& wanted, const std::string& name,
                          double within) {
      if (actual.numel() == 0) return;
      const double scale = std::max(1.0, wanted.abs().max().item<double>());
      check_near(actual / scale, wanted / scale, within, what + ": " + name);
    };
    near(output, mine(expected), "output", tolerance);
    near(input.grad(), mine(whole_input.grad()), "input gradient", tolerance);
    const auto buffers = synced->named_buffers();
    for (const auto& item : plain->named_buffers()) {
      if (!item.value().defined()) continue;
      near(buffers[item.key()].to(dtype), item.value().to(dtype), item.key(), tolerance);
      Tensor of_rank_0 = buffers[item.key()].clone();
      world.broadcast(of_rank_0);
      check(of_rank_0.equal(buffers[item.key()]), item.key() + " differs between ranks");
    }
    const auto parameters = synced->named_parameters();
    for (const auto& item : plain->named_parameters()) {
      if (!item.value().defined()) continue;
      // libtorch adds up f32 channels in f32 where they come last, here and in the one process.
      const bool rough = format != torch::MemoryFormat::Contiguous && dtype == torch::kFloat;
      near(sum_over(world, parameters[item.key()].grad()), item.value().grad(), item.key(),
           rough ? 2 * tolerance : tolerance);
    }
    plain->zero_grad();
    synced->zero_grad();
  }
}

/// 1d, 2d and 3d, with all that their options change.
void compare_all(ProcessGroup& world, const Parts& parts, torch::Dtype dtype, double tolerance) {
  const auto options = [](std::int64_t features) { return nn::BatchNormOptions(features); };
  compare<nn::BatchNorm1d, SyncBatchNorm1d>(world, parts, {5}, options(5), dtype, tolerance);
  compare<nn::BatchNorm1d, SyncBatchNorm1d>(world, parts, {4, 7}, options(4).eps(0.1), dtype,
                                            tolerance);
  compare<nn::BatchNorm2d, SyncBatchNorm2d>(world, parts, {3, 4, 5}, options(3).affine(false),
                                            dtype, tolerance);
  compare<nn::BatchNorm2d, SyncBatchNorm2d>(world, parts, {3, 4, 5},
                                            options(3).momentum(std::nullopt), dtype, tolerance,
                                            torch::MemoryFormat::ChannelsLast);
  compare<nn::BatchNorm3d, SyncBatchNorm3d>(
      world, parts, {2, 3, 2, 3}, options(2).track_running_stats(false), dtype, tolerance);
}

void compare_all(ProcessGroup& world, const Parts& parts) {
  compare_all(world, parts, torch::kFloat, 1e-6);
  compare_all(world, parts, torch::kDouble, 1e-12);
}

TEST(SyncBatchNorm, IsThatOfTheWholeBatch) {
  for (const int ranks : {1, 2, 3}) {
    on_ranks(ranks, [&](ProcessGroup& world) {
      compare_all(world, Parts(static_cast<std::size_t>(world.world_size()), 8));
    });
  }
}

TEST(SyncBatchNorm, CountsWhatEachRankHas) {
  on_ranks(3, [](ProcessGroup& world) {
    for (const Parts& parts : {Parts{9, 4, 1}, Parts{0, 8, 3}, Parts{1, 1, 0}, Parts{0, 0, 8}}) {
      compare_all(world, parts);
    }
  });
}

void compare_four(const test_kit::RunOptions& options) {
  const auto body = [](ProcessGroup& world) {
    torch::set_num_threads(1);
    compare_all(world, {5, 2, 0, 4});
  };
  EXPECT_NO_THROW(test_kit::run_ranks(4, body, options));
}

TEST(SyncBatchNorm, OverHosts) {
  compare_four({.as = test_kit::As::processes, .hosts = {0, 0, 1, 1}});
}

#ifdef TUTTI_HAS_GLOO
TEST(SyncBatchNorm, OnGloo) {
  test_kit::RunOptions on_gloo{.as = test_kit::As::processes};
  on_gloo.init.backend = "gloo";
  compare_four(on_gloo);
}
#endif

/// Statistics have all their digits even where they are small beside the mean.
TEST(SyncBatchNorm, AMeanFarFromZeroCostsNoDigits) {
  on_ranks(2, [](ProcessGroup& world) {
    torch::manual_seed(world.rank());
    const Tensor input = torch::randn({64, 3}, torch::kDouble) + 1e5 * (world.rank() + 1);
    const auto exact = [&](const Tensor& mine) {
      Tensor all = torch::empty({2, 64, 3}, torch::kDouble);
      world.all_gather(mine.contiguous(), all);
      return all.view({-1, 3});
    };
    SyncBatchNorm1d norm(nn::BatchNormOptions(3).momentum(1.0), world);
    norm->to(torch::kDouble);
    norm->forward(input);
    const Tensor all = exact(input);
    check_near(norm->running_mean / all.mean(0), torch::ones({3}), 1e-15, "mean");
    check_near(norm->running_var / all.var(0), torch::ones({3}), 1e-14, "variance");
  });
}

/// f32, and one step of each half type with parameters of its own type and of f32.
TEST(SyncBatchNorm, HalfTypesHaveTheirTypesPrecision) {
  on_ranks(2, [](ProcessGroup& world) {
    for (const torch::Dtype dtype : {torch::kBFloat16, torch::kHalf}) {
      for (const torch::Dtype kept : {dtype, torch::kFloat}) {
        const Parts parts{6, 3};
        const Tensor whole = whole_batch(parts, {4, 3, 3}, dtype);
        nn::BatchNorm2d plain(4);
        plain->to(torch::kDouble);
        SyncBatchNorm2d synced(4, world);
        synced->to(kept);
        const Tensor whole_input = whole.to(torch::kDouble).requires_grad_(true);
        const Tensor input = part_of(whole, parts, world.rank()).clone().requires_grad_(true);
        const Tensor expected = plain->forward(whole_input);
        const Tensor output = synced->forward(input);
        check(output.scalar_type() == dtype, "type of the output");
        const Tensor along = whole_batch(parts, {4, 3, 3}, torch::kDouble).sin();
        expected.backward(along);
        output.backward(part_of(along, parts, world.rank()).to(dtype));
        const double step = dtype == torch::kHalf ? 1e-3 : 8e-3;
        const auto mine = [&](const Tensor& t) { return part_of(t, parts, world.rank()); };
        check_near(output.to(torch::kDouble), mine(expected), 3 * step, "output");
        check_near(input.grad().to(torch::kDouble), mine(whole_input.grad()), 2 * step, "gradient");
        check_near(synced->running_mean.to(torch::kDouble), plain->running_mean, step, "mean");
        check(synced->weight.grad().scalar_type() == kept, "type of the weight's gradient");
      }
    }
  });
}

TEST(SyncBatchNorm, EvaluationIsBatchNormsAndNeedsNoGroup) {
  on_ranks(2, [](ProcessGroup& world) {
    auto group = std::make_optional(world.new_group({0, 1}));
    for (const bool tracked : {true, false}) {
      const auto options = nn::BatchNormOptions(3).track_running_stats(tracked);
      nn::BatchNorm2d plain(options);
      SyncBatchNorm2d synced(options, *group);
      plain->eval();
      synced->eval();
      if (!tracked) group.reset();
      if (world.rank() == 0) continue;  // alone
      const Tensor input = whole_batch({4}, {3, 2, 2}, torch::kFloat);
      check(synced->forward(input).equal(plain->forward(input)), "evaluation");
    }
  });
}

// ---- in a model --------------------------------------------------------------------------------

template <class Norm1d, class Norm2d, class... Group>
nn::Sequential make_net(Group&... group) {
  torch::manual_seed(31);
  nn::Sequential net(nn::Conv2d(nn::Conv2dOptions(1, 4, 3).bias(false)), Norm2d(4, group...),
                     nn::ReLU(), nn::Conv2d(nn::Conv2dOptions(4, 4, 3).bias(false)),
                     Norm2d(4, group...), nn::ReLU(), nn::Flatten(), nn::Linear(16, 8),
                     Norm1d(8, group...), nn::ReLU(), nn::Linear(8, 3));
  net->to(torch::kDouble);
  return net;
}

Tensor loss_of(const Tensor& output, const Tensor& target) {
  return torch::cross_entropy_loss(output, target, {}, at::Reduction::Sum);
}

void check_same_model(ProcessGroup& world, nn::Module& model, const nn::Module& expected) {
  check_same_everywhere(world, model);
  const auto parameters = model.named_parameters();
  for (const auto& item : expected.named_parameters()) {
    check_near(parameters[item.key()], item.value(), 1e-10, item.key());
  }
  const auto buffers = model.named_buffers();
  for (const auto& item : expected.named_buffers()) {
    check_near(buffers[item.key()].to(torch::kDouble), item.value().to(torch::kDouble), 1e-10,
               item.key());
  }
}

/// Trains a net with three norms on uneven batches of which one is empty.
void train_like_one_process(ProcessGroup& world, ProcessGroup& norms, std::size_t bucket_bytes,
                            bool find_unused) {
  nn::Sequential alone = make_net<nn::BatchNorm1d, nn::BatchNorm2d>();
  nn::Sequential net = make_net<SyncBatchNorm1d, SyncBatchNorm2d>(norms);
  DistributedDataParallel model(
      net, world, {.bucket_bytes = bucket_bytes, .find_unused_parameters = find_unused});
  torch::optim::SGD optimizer(model.parameters(), 0.1), alone_optimizer(alone->parameters(), 0.1);
  const double ranks = world.world_size();
  for (int step = 0; step < 6; ++step) {
    const Parts parts = step % 2 == 0 ? Parts{6, 2, 4} : Parts{7, 0, 3};
    const Tensor images = whole_batch(parts, {1, 6, 6}, torch::kDouble) + step;
    const auto count = static_cast<double>(images.size(0));
    const Tensor targets = torch::randint(0, 3, {images.size(0)}, torch::kLong);
    alone_optimizer.zero_grad();
    (loss_of(alone->forward(images), targets) / count).backward();
    alone_optimizer.step();
    optimizer.zero_grad();
    const Tensor output = model.forward(part_of(images, parts, world.rank()));
    (loss_of(output, part_of(targets, parts, world.rank())) * ranks / count).backward();
    optimizer.step();
    check_same_model(world, *net, *alone);
  }
}

TEST(SyncBatchNorm, TrainsInDistributedDataParallelLikeOneProcess) {
  on_ranks(3, [](ProcessGroup& world) {
    ProcessGroup norms = world.new_group({0, 1, 2});
    for (const std::size_t bucket_bytes : {64u, 512u, 1u << 20}) {
      train_like_one_process(world, world, bucket_bytes, false);
      train_like_one_process(world, norms, bucket_bytes, true);
    }
  });
}

/// One rank leaves out a block that comes before the norm: the block's bucket leaves as backward
/// begins there, and after the norm's exchange on the other rank.
struct SkipsImpl : nn::Module {
  explicit SkipsImpl(ProcessGroup& group) : norm(4, group) {
    register_module("before", before);
    register_module("norm", norm);
    register_module("after", after);
    register_module("skipped", skipped);
  }
  Tensor forward(const Tensor& x, bool skip) {
    const Tensor y = before(x);
    return after(norm(skip ? y : skipped(y)));
  }
  nn::Linear before{4, 4}, after{4, 4}, skipped{4, 4};
  SyncBatchNorm1d norm;
};

void train_skipping(ProcessGroup& world, ProcessGroup& norms) {
  auto model = DistributedDataParallel(std::make_shared<SkipsImpl>(norms), world,
                                       {.bucket_bytes = 16, .find_unused_parameters = true});
  for (int step = 0; step < 5; ++step) {
    model.zero_grad();
    model.forward(torch::randn({3, 4}), world.rank() == step % 2).pow(2).sum().backward();
  }
}

TEST(SyncBatchNorm, InAGroupOfItsOwnTheOrderAmongBucketsMayDiffer) {
  on_ranks(2, [](ProcessGroup& world) {
    ProcessGroup norms = world.new_group({0, 1});
    train_skipping(world, norms);
  });
}

TEST(SyncBatchNorm, InTheGroupOfTheBucketsAnotherOrderIsSaid) {
  const auto body = [](const test_kit::Rank& me) {
    torch::set_num_threads(1);
    ProcessGroup world = init_process_group(me.init);
    const std::string text =
        error_of(ErrorCode::kCollectiveMismatch, [&] { train_skipping(world, world); });
    check_contains(text, "all_reduce(f64 x 8, sum) for the gradients of SyncBatchNorm1d 1");
    check_contains(text, " of DistributedDataParallel 2");
    return std::string();
  };
  // On two hosts: there the buckets begin while backward runs.
  for (const auto& rank :
       test_kit::collect_ranks(2, body, {.as = test_kit::As::processes, .hosts = {0, 1}})) {
    EXPECT_EQ(rank.failure, "") << "rank " << rank.rank;
  }
}

TEST(SyncBatchNorm, OptionsNamesAndCheckpointsAreBatchNorms) {
  on_ranks(1, [](ProcessGroup& world) {
    const auto options = nn::BatchNorm2dOptions(3).eps(0.25).momentum(0.5);
    nn::BatchNorm2d plain(options);
    SyncBatchNorm2d synced(options, world);
    disturb(*plain);
    plain->forward(torch::randn({4, 3, 2, 2}));
    std::stringstream there, back;
    torch::save(plain, there);
    torch::load(synced, there);
    check(synced->named_parameters().keys() == plain->named_parameters().keys(), "parameters");
    check(synced->named_buffers().keys() == plain->named_buffers().keys(), "buffers");
    check(parameter_hash(*synced) == parameter_hash(*plain), "values");
    check(synced->running_var.equal(plain->running_var), "running_var");
    torch::save(synced, back);
    nn::BatchNorm2d again(3);
    torch::load(again, back);
    check(again->num_batches_tracked.item<std::int64_t>() == 1, "num_batches_tracked");
    std::ostringstream text;
    text << *synced;
    check(text.str() ==
              "tutti::SyncBatchNorm2d(3, eps=0.25, momentum=0.5, affine=true, "
              "track_running_stats=true)",
          text.str());
    const auto copy = std::dynamic_pointer_cast<SyncBatchNorm2dImpl>(synced->clone());
    check(!copy->weight.is_same(synced->weight) && copy->weight.equal(synced->weight), "clone");
    copy->forward(torch::randn({4, 3, 2, 2}));
    check(copy->num_batches_tracked.item<std::int64_t>() == 2, "the clone's own buffers");
    check(synced->num_batches_tracked.item<std::int64_t>() == 1, "the clone's own buffers");
  });
}

// ---- conversion --------------------------------------------------------------------------------

struct ResidualImpl : nn::SequentialImpl {
  using SequentialImpl::SequentialImpl;
  Tensor forward(const Tensor& x) { return x + SequentialImpl::forward(x); }
};

TEST(ConvertSyncBatchNorm, ExchangesAllInSequentialsAndListsAndKeepsTensors) {
  on_ranks(2, [](ProcessGroup& world) {
    const auto make = [] {
      torch::manual_seed(41);
      nn::BatchNorm1d shared(4);
      nn::ModuleList list(nn::Sequential(nn::Linear(4, 4), shared), nn::BatchNorm1d(4));
      nn::Sequential inner(shared, nn::Linear(4, 4));
      nn::BatchNorm1d in_evaluation(4);
      in_evaluation->eval();
      inner->push_back("still", in_evaluation);
      auto net = std::make_shared<ResidualImpl>(nn::BatchNorm1d(nn::BatchNormOptions(4).eps(0.5)));
      net->push_back("wide", nn::Linear(4, 4));
      net->register_module("list", list);
      net->register_module("inner", inner);
      net->to(torch::kDouble);
      return net;
    };
    const auto net = make(), alone = make();
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    DistributedDataParallel model(net, world);  // of what it was before
    const auto before = net->named_parameters();
    const auto names = net->named_buffers().keys();
    check(convert_sync_batch_norm(*net, world) == 5, "how many");
    check(convert_sync_batch_norm(*net, world) == 0, "none is left");

    const auto after = net->named_parameters();
    check(after.keys() == before.keys(), "names of parameters");
    for (const auto& item : before) check(after[item.key()].is_same(item.value()), item.key());
    check(net->named_buffers().keys() == names, "names of buffers");
    const auto* const first = (*net)[0]->as<SyncBatchNorm1d>();
    check(first->options.eps() == 0.5 && first->running_mean.scalar_type() == torch::kDouble, "0");
    const auto modules = net->named_modules();
    check(modules["inner.0"] == modules["list.0.1"], "one that stands in two places stays one");
    check(!modules["inner.still"]->is_training() && modules["inner.0"]->is_training(), "mode");
    check(modules["list.1"]->as<SyncBatchNorm1d>() != nullptr, "element of a list");

    const Parts parts{5, 3};
    const Tensor whole = whole_batch(parts, {4}, torch::kDouble);
    const Tensor expected = alone->forward(whole);
    check_near(model.forward(part_of(whole, parts, world.rank())),
               part_of(expected, parts, world.rank()), 1e-12, "output");
    check_near(first->running_var, (*alone)[0]->as<nn::BatchNorm1d>()->running_var, 1e-12, "var");
  });
}

TEST(ConvertSyncBatchNorm, TakesHoldersOfEveryDimension) {
  on_ranks(1, [](ProcessGroup& world) {
    nn::Sequential net(nn::BatchNorm1d(3), nn::BatchNorm2d(3), nn::BatchNorm3d(3), nn::ReLU());
    check(convert_sync_batch_norm(net, world) == 3, "how many");
    check(net[0]->as<SyncBatchNorm1d>() && net[1]->as<SyncBatchNorm2d>() &&
              net[2]->as<SyncBatchNorm3d>() && net[3]->as<nn::ReLU>(),
          "types");
  });
}

TEST(ConvertSyncBatchNorm, NamesTheMembersThatAForwardCallsAndChangesNothing) {
  on_ranks(1, [](ProcessGroup& world) {
    struct BlockImpl : nn::Module {
      BlockImpl() { register_module("bn", bn); }
      Tensor forward(const Tensor& x) { return bn(x); }
      nn::BatchNorm1d bn{4};
    };
    struct DerivedImpl : nn::BatchNorm1dImpl {
      using BatchNorm1dImpl::BatchNorm1dImpl;
      Tensor forward(const Tensor& x) { return BatchNorm1dImpl::forward(x) + 1; }
    };
    nn::Sequential net(nn::BatchNorm1d(4), std::make_shared<BlockImpl>(),
                       std::make_shared<DerivedImpl>(4));
    const std::string text =
        error_of(ErrorCode::kInvalidArgument, [&] { convert_sync_batch_norm(net, world); });
    check(text ==
              "convert_sync_batch_norm: cannot exchange 1.bn, 2 from outside: only a BatchNorm "
              "itself in a Sequential or ModuleList, since other code names the type; declare as "
              "tutti::SyncBatchNorm there",
          text);
    check(net[0]->as<nn::BatchNorm1d>() != nullptr, "nothing has changed");
  });
}

// ---- mistakes ----------------------------------------------------------------------------------

TEST(SyncBatchNorm, WhatDoesNotFitIsRefused) {
  on_ranks(2, [](ProcessGroup& world) {
    SyncBatchNorm1d one(4, world);
    SyncBatchNorm2d two(4, world);
    SyncBatchNorm3d three(4, world);
    const std::string rank = ", rank " + std::to_string(world.rank()) + ": ";
    const auto refused = [&](auto& norm, const Tensor& input, const std::string& text) {
      const std::string told = error_of(ErrorCode::kInvalidArgument, [&] { norm->forward(input); });
      check_contains(told, rank + text);
    };
    refused(one, torch::ones({4}), "expected 2D or 3D input (got 1D input)");
    refused(two, torch::ones({2, 4, 3}), "expected 4D input (got 3D input)");
    refused(three, torch::ones({2, 4, 3, 3}), "expected 5D input (got 4D input)");
    refused(one, torch::ones({2, 3}), "expected input with 4 features, got one of [2, 3]");
    refused(one, torch::ones({2, 4}, torch::kLong), "the input is Long; convert it to Float");
    refused(one, torch::ones({2, 4}, torch::kDouble), "the input is Double, the module Float;");
    check_contains(error_of(ErrorCode::kInvalidArgument, [&] { one->forward(Tensor()); }),
                   "the input of SyncBatchNorm1d 1: undefined tensor");
    for (const std::int64_t values : {0, 1}) {
      refused(one, torch::ones({world.rank() == 0 ? values : 0, 4}),
              "Expected more than 1 value per channel when training, got input size [");
    }
    check(one->num_batches_tracked.item<std::int64_t>() == 0, "nothing has been counted");
    one->eval();
    check_contains(error_of(ErrorCode::kInvalidArgument, [&] { one->forward(torch::ones({4})); }),
                   "expected 2D or 3D input (got 1D input)");
    one->train();
    one->forward(torch::randn({2, 4}));  // the group is still good
  });
}

TEST(SyncBatchNorm, ASecondDerivativeIsRefused) {
  on_ranks(2, [](ProcessGroup& world) {
    SyncBatchNorm1d norm(4, world);
    const Tensor input = torch::randn({3, 4}).requires_grad_(true);
    const Tensor output = norm->forward(input).pow(2).sum();
    check_contains(error_of(ErrorCode::kUnsupported,
                            [&] { torch::autograd::grad({output}, {input}, {}, true, true); }),
                   "create_graph");
  });
}

TEST(SyncBatchNorm, AGroupThatIsGoneIsSaid) {
  on_ranks(2, [](ProcessGroup& world) {
    auto group = std::make_optional(world.new_group({0, 1}));
    SyncBatchNorm1d norm(4, *group);
    const Tensor input = torch::randn({3, 4}).requires_grad_(true);
    const Tensor loss = norm->forward(input).pow(2).sum();
    group.reset();
    const std::string text = "SyncBatchNorm1d 1, rank " + std::to_string(world.rank()) +
                             ": its group has been destroyed; keep the ProcessGroup for as long as "
                             "the module trains";
    check(error_of(ErrorCode::kClosed, [&] { loss.backward(); }) == text, "backward");
    check(error_of(ErrorCode::kClosed, [&] { norm->forward(input); }) == text, "forward");
    error_of(ErrorCode::kInvalidArgument, [] { SyncBatchNorm1d(4, ProcessGroup()); });
  });
}

TEST(SyncBatchNorm, RanksThatDisagreeAreShownBoth) {
  const auto body = [](const test_kit::Rank& me) {
    torch::set_num_threads(1);
    ProcessGroup world = init_process_group(me.init);
    nn::Sequential net(nn::BatchNorm1d(me.rank == 0 ? 4 : 5));
    convert_sync_batch_norm(net, world, {"train.cc", 7});
    const std::string text = error_of(ErrorCode::kCollectiveMismatch, [&] {
      net->forward(torch::randn({3, me.rank == 0 ? 4 : 5}));
    });
    const std::string purpose = " for the statistics of SyncBatchNorm1d 1 (train.cc:7)";
    check_contains(text, "rank 0 called all_gather(f64 x 9)" + purpose);
    check_contains(text, "rank 1 called all_gather(f64 x 11)" + purpose);
    return std::string();
  };
  for (const auto& rank : test_kit::collect_ranks(2, body, {.as = test_kit::As::processes})) {
    EXPECT_EQ(rank.failure, "") << "rank " << rank.rank;
  }
}

}  // namespace
}  // namespace tutti::ddp::norm
