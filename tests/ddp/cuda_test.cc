// Tensors and training on CUDA. Ranks are processes that share the first device; the process that
// starts them never uses CUDA, since one that has cannot be forked.
//
// TUTTI_TEST_DEVICE=cpu tries the tests' own code where there is no device: it shows nothing else.
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "08_resnet/resnet18.h"
#include "ddp/torch_ranks.h"

namespace tutti::ddp {
namespace {

using torch::Tensor;

bool is_trial() {
  const char* const device = std::getenv("TUTTI_TEST_DEVICE");
  return device != nullptr && device == std::string("cpu");
}
const torch::Device kGpu = is_trial() ? torch::Device(torch::kCPU) : torch::Device(torch::kCUDA, 0);

test_kit::RunOptions processes() {
  return {.as = test_kit::As::processes, .deadline = std::chrono::seconds(240)};
}

bool has_device() {
  static const bool has =
      test_kit::collect_ranks(
          1, [](const test_kit::Rank&) { return torch::cuda::is_available() ? "yes" : "no"; },
          processes())[0]
          .result == "yes";
  return has;
}

struct OnCuda : testing::Test {
  void SetUp() override {
    if (!is_trial() && !has_device()) GTEST_SKIP() << "no CUDA device";
  }
};
using CudaTensors = OnCuda;
using CudaTraining = OnCuda;

void on_gpu(int ranks, const std::function<void(ProcessGroup&)>& body) {
  ASSERT_NO_THROW(test_kit::run_ranks(
      ranks,
      [&](ProcessGroup& world) {
        torch::set_num_threads(1);
        body(world);
      },
      processes()));
}

/// The memory of a tensor, wherever that is.
Tensor bits_of(const Tensor& tensor) {
  return tensor.detach().cpu().contiguous().flatten().view(torch::kByte).clone();
}
void check_bits(const Tensor& actual, const Tensor& expected, const std::string& what) {
  check(bits_of(actual).equal(bits_of(expected)), what + ": other bits");
}

/// What differs between ranks, on the CPU.
Tensor values(std::int64_t count, torch::Dtype dtype, int rank) {
  torch::manual_seed(7 + rank);
  if (torch::isFloatingType(dtype) || torch::isComplexType(dtype)) {
    const auto made =
        torch::isComplexType(dtype) ? torch::kComplexDouble : torch::Dtype(torch::kDouble);
    return torch::randn({count}, made).to(dtype);
  }
  const Tensor whole = torch::arange(count).remainder(5).add(rank);
  return dtype == torch::kBool ? whole.remainder(2).to(dtype) : whole.to(dtype);
}

Tensor moved(const Tensor& tensor) { return tensor.to(kGpu, false, /*copy=*/true); }

/// Keeps the current stream of the device busy, for some milliseconds.
void delay(int times = 12) {
  if (is_trial()) return;
  const Tensor factor = torch::full({4096, 4096}, 1e-4, kGpu);
  Tensor product = factor;
  for (int i = 0; i < times; ++i) product = product.matmul(factor);
}

c10::Stream new_stream() {
  const c10::impl::VirtualGuardImpl device(kGpu.type());
  return is_trial() ? device.getStream(kGpu) : device.getStreamFromGlobalPool(kGpu, false);
}
c10::Stream now_stream() { return c10::impl::VirtualGuardImpl(kGpu.type()).getStream(kGpu); }
void behind(const c10::Stream& earlier, const c10::Stream& later) {
  if (is_trial()) return;
  c10::Event event(c10::DeviceType::CUDA);
  event.record(earlier);
  event.block(later);
}

// ---- tensors -----------------------------------------------------------------------------------

const std::vector<torch::Dtype> kDtypes = {
    torch::kBool,       torch::kByte,         torch::kChar,          torch::kShort,
    torch::kInt,        torch::kLong,         torch::kUInt16,        torch::kUInt32,
    torch::kUInt64,     torch::kHalf,         torch::kBFloat16,      torch::kFloat,
    torch::kDouble,     torch::kComplexFloat, torch::kComplexDouble, torch::kFloat8_e4m3fn,
    torch::kFloat8_e5m2};

void check_operations(ProcessGroup& world, torch::Dtype dtype, std::int64_t count) {
  const std::string what = c10::str(dtype, " x ", count);
  const Tensor own = values(count, dtype, world.rank());
  const bool can_add = dtype != torch::kFloat8_e4m3fn && dtype != torch::kFloat8_e5m2;
  if (can_add) {
    const ReduceOp op = dtype == torch::kBool ? ReduceOp::max : ReduceOp::sum;
    Tensor on_cpu = own.clone(), on_gpu = moved(own), later = moved(own);
    world.all_reduce(on_cpu, op);
    world.all_reduce(on_gpu, op);
    Work work = world.all_reduce(later, op, async);
    work.wait();
    check_bits(on_gpu, on_cpu, what + " all_reduce");
    check_bits(later, on_cpu, what + " all_reduce, asynchronous");
  }
  Tensor sent = moved(own);
  const int root = world.world_size() - 1;
  world.broadcast(sent, {.root = root});
  check_bits(sent, values(count, dtype, root), what + " broadcast");

  Tensor all = torch::empty({world.world_size(), count}, torch::dtype(dtype).device(kGpu));
  world.all_gather(moved(own), all);
  for (int rank = 0; rank < world.world_size(); ++rank) {
    check_bits(all[rank], values(count, dtype, rank), what + " all_gather");
  }
}

TEST_F(CudaTensors, OfEveryDtypeHaveTheBitsOfTheCpu) {
  for (const int ranks : {1, 2}) {
    on_gpu(ranks, [](ProcessGroup& world) {
      for (const torch::Dtype dtype : kDtypes) {
        for (const std::int64_t count : {0, 1, 1000}) check_operations(world, dtype, count);
      }
    });
  }
}

TEST_F(CudaTensors, ThatAreLargeTravelInPieces) {
  on_gpu(2, [](ProcessGroup& world) {
    for (const torch::Dtype dtype : {torch::kFloat, torch::kBFloat16}) {
      check_operations(world, dtype, 20'000'003);
    }
  });
}

TEST_F(CudaTensors, AreUsedInOrderWithTheCurrentStream) {
  on_gpu(2, [](ProcessGroup& world) {
    for (int round = 0; round < 4; ++round) {
      const c10::Stream stream = round % 2 == 0 ? now_stream() : new_stream();
      const c10::StreamGuard guard(stream);
      Tensor x = torch::zeros({1 << 20}, kGpu);
      delay();
      x.fill_(world.rank() + 1);
      world.all_reduce(x);
      const Tensor behind_call = x * 1;
      delay();
      x.fill_(10.0 * (world.rank() + 1));
      Work work = world.all_reduce(x, async);
      work.wait();
      const Tensor behind_wait = x * 1;
      x.fill_(-1);
      check(behind_call.eq(3).all().item<bool>(), "before or behind the call");
      check(behind_wait.eq(30).all().item<bool>(), "before or behind the wait");
    }
  });
}

TEST_F(CudaTensors, ThatAreFreedEarlyStayUntilTheWorkHasEnded) {
  on_gpu(2, [](ProcessGroup& world) {
    constexpr std::int64_t kCount = 1 << 22;
    for (int round = 0; round < 8; ++round) {
      Tensor x = torch::full({kCount}, world.rank() + 1.0, kGpu);
      delay(4);
      Work work = world.all_reduce(x, async);
      x.reset();
      const Tensor other = torch::full({kCount}, 7.0, kGpu);  // may not get that memory
      work.wait_host();
      check(work.done(), "done");
      check(other.eq(7).all().item<bool>(), "memory was given out too early");
    }
  });
}

TEST_F(CudaTensors, AreHashedAndSavedAsOnTheCpu) {
  on_gpu(1, [](ProcessGroup&) {
    torch::manual_seed(3);
    torch::nn::Sequential net(torch::nn::Linear(5, 7), torch::nn::BatchNorm1d(7));
    const std::uint64_t hash = parameter_hash(*net);
    net->to(kGpu);
    check(parameter_hash(*net) == hash, "another hash");
    const std::string file = std::filesystem::temp_directory_path() /
                             c10::str("tutti_cuda_", ::getpid(), ".safetensors");
    save_state_dict(*net, file);
    for (const Tensor& parameter : net->parameters()) parameter.detach().zero_();
    load_state_dict(*net, file);
    std::filesystem::remove(file);
    check(parameter_hash(*net) == hash, "another hash after loading");
  });
}

TEST_F(CudaTensors, AndTensorsOnTheCpuMakeOneOperation) {
  on_gpu(2, [](ProcessGroup& world) {
    const Tensor own = values(5000, torch::kFloat, world.rank());
    Tensor mixed = world.rank() == 0 ? moved(own) : own.clone(), expected = own.clone();
    world.all_reduce(mixed);
    world.all_reduce(expected);
    check_bits(mixed, expected, "one rank on the device");
  });
}

// ---- training ----------------------------------------------------------------------------------

torch::nn::Sequential make_net() {
  torch::manual_seed(11);
  return torch::nn::Sequential(torch::nn::Linear(20, 64), torch::nn::Tanh(),
                               torch::nn::Linear(64, 64), torch::nn::Tanh(),
                               torch::nn::Linear(64, 10));
}

struct Batch {
  Tensor data, target;
};
Batch batch_of(int step) {
  torch::manual_seed(100 + step);
  return {torch::randn({16, 20}).to(kGpu), torch::randint(10, {16}).to(kGpu)};
}

/// Every loss of 20 steps, over the ranks' shares of each batch, and the parameters at the end.
void check_training(ProcessGroup& world, const DataParallelOptions& options, double tolerance,
                    const CommunicationHook& hook = {}) {
  auto net = make_net(), alone = make_net();
  net->to(kGpu);
  alone->to(kGpu);
  DistributedDataParallel model(net, world, options);
  if (hook) model.set_communication_hook("the hook", hook);
  check(is_trial() || model.stats().overlaps, "buckets are begun while backward runs");
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  torch::optim::SGD other(alone->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 20; ++step) {
    const Batch whole = batch_of(step);
    other.zero_grad();
    const Tensor expected = torch::cross_entropy_loss(alone->forward(whole.data), whole.target);
    expected.backward();
    other.step();

    const std::int64_t count = 16 / world.world_size();
    const auto share = [&](const Tensor& all) {
      return all.narrow(0, count * world.rank(), count);
    };
    optimizer.zero_grad();
    Tensor loss = torch::cross_entropy_loss(model.forward(share(whole.data)), share(whole.target));
    loss.backward();
    optimizer.step();

    Tensor mean = loss.detach().clone();
    world.all_reduce(mean, ReduceOp::avg);
    const double off = std::abs(mean.item<double>() / expected.item<double>() - 1);
    check(off <= tolerance, c10::str("step ", step, ": the loss is off by ", off));
    check_same_everywhere(world, *net);
  }
}

TEST_F(CudaTraining, IsThatOfOneProcess) {
  for (const int ranks : {1, 2}) {
    on_gpu(ranks, [](ProcessGroup& world) {
      check_training(world, {}, 1e-5);
      check_training(world, {.bucket_bytes = 4096}, 1e-5);
      check_training(world, {.gradients_as_views = false}, 1e-5);
      check_training(world, {.find_unused_parameters = true}, 1e-5);
      check_training(world, {.static_graph = true}, 1e-5);
      check_training(world, {.bucket_bytes = 4096}, 2e-2, bf16_compress());
      check_training(world, {.bucket_bytes = 4096}, 1e-2, f16_compress());
    });
  }
}

TEST_F(CudaTraining, IsThatOfOneProcessOnAnotherStream) {
  on_gpu(2, [](ProcessGroup& world) {
    const c10::StreamGuard guard(new_stream());
    check_training(world, {.bucket_bytes = 4096}, 1e-5);
    check_training(world, {.bucket_bytes = 4096}, 2e-2, bf16_compress());
  });
}

/// A gradient that is known: that of (weight * factors).sum().
struct FactorsImpl : torch::nn::Module {
  FactorsImpl(std::int64_t count, torch::Dtype dtype) {
    for (const char* const name : {"a", "b", "c"}) {
      weights.push_back(register_parameter(name, torch::ones({count}, dtype)));
    }
  }
  Tensor forward(const Tensor& factors) {
    return ((weights[0] + weights[1] * 2 + weights[2] * 4) * factors).sum();
  }
  std::vector<Tensor> weights;
};
TORCH_MODULE(Factors);

/// The gradients' means after a step on `device`, with each rank's own factors.
std::vector<Tensor> means_on(torch::Device device, torch::Dtype dtype,
                             const CommunicationHook& hook, ProcessGroup& world) {
  const Tensor factors = values(3001, dtype, world.rank()).to(device);
  Factors net(3001, dtype);
  net->to(device);
  DistributedDataParallel model(net, world, {.bucket_bytes = 4096});
  if (hook) model.set_communication_hook("the hook", hook);
  std::vector<Tensor> means;
  for (int step = 0; step < 2; ++step) {  // the second one after the buckets were cut anew
    model.zero_grad();
    model.forward(factors).backward();
  }
  for (const Tensor& weight : net->weights) means.push_back(weight.grad().clone());
  return means;
}

TEST_F(CudaTraining, MakesMeansWithTheBitsOfTheCpu) {
  on_gpu(2, [](ProcessGroup& world) {
    for (const torch::Dtype dtype : {torch::kFloat, torch::kDouble, torch::kBFloat16}) {
      for (const auto& hook : {CommunicationHook(), bf16_compress(), f16_compress()}) {
        const auto expected = means_on(torch::kCPU, dtype, hook, world);
        const auto actual = means_on(kGpu, dtype, hook, world);
        const auto mixed =
            means_on(world.rank() == 0 ? torch::Device(torch::kCPU) : kGpu, dtype, hook, world);
        for (std::size_t i = 0; i < expected.size(); ++i) {
          check_bits(actual[i], expected[i], c10::str(dtype, " ", i));
          check_bits(mixed[i], expected[i], c10::str(dtype, " ", i, ", one rank on the device"));
        }
      }
    }
  });
}

/// Keeps the stream of the backward busy before it hands the gradient on.
struct Slow : torch::autograd::Function<Slow> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& input) {
    return input * 1;
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext*,
                                               const torch::autograd::tensor_list& gradients) {
    delay(6);
    return {gradients[0] * 1};
  }
};

/// Two halves of one bucket, on two streams.
struct HalvesImpl : torch::nn::Module {
  HalvesImpl() {
    register_module("a", a);
    register_module("b", b);
  }
  Tensor forward(const Tensor& x) {
    const c10::Stream own = now_stream();
    behind(own, aside);
    Tensor other;
    {
      const c10::StreamGuard guard(aside);
      other = Slow::apply(b(x));
    }
    behind(aside, own);
    return a(x) + other;
  }
  torch::nn::Linear a{32, 32}, b{32, 32};
  c10::Stream aside = new_stream();
};
TORCH_MODULE(Halves);

TEST_F(CudaTraining, PutsABucketBehindAllStreamsThatFillIt) {
  on_gpu(2, [](ProcessGroup& world) {
    const auto made = [] {
      torch::manual_seed(5);
      Halves net;
      net->to(kGpu);
      return net;
    };
    Halves net = made(), alone = made();
    alone->aside = now_stream();
    Tensor keeps_accumulators;  // which belong to the stream on which they were made
    {
      const c10::StreamGuard guard(net->aside);
      keeps_accumulators = net->b(torch::zeros({1, 32}, kGpu));
    }
    DistributedDataParallel model(net, world);
    for (int step = 0; step < 4; ++step) {
      torch::manual_seed(50 + step);
      const Tensor whole = torch::randn({8, 32}).to(kGpu);
      alone->zero_grad();
      alone->forward(whole).pow(2).mean().backward();
      model.zero_grad();
      const Tensor share = whole.narrow(0, 4 * world.rank(), 4);
      model.forward(share).pow(2).mean().backward();
      for (std::size_t i = 0; i < net->parameters().size(); ++i) {
        // Read on the current stream at once, as an optimizer does.
        const Tensor got = net->parameters()[i].grad() * 1;
        check_near(got, alone->parameters()[i].grad(), 1e-6, c10::str(step, ", ", i));
      }
    }
  });
}

TEST_F(CudaTraining, OnTheDeviceOfItsParametersNormsAreThoseOfTheCpu) {
  on_gpu(2, [](ProcessGroup& world) {
    const auto step_on = [&](torch::Device device) {
      torch::manual_seed(21);
      torch::nn::Sequential net(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3)),
                                torch::nn::BatchNorm2d(4), torch::nn::ReLU(), torch::nn::Flatten(),
                                torch::nn::Linear(4 * 36, 5));
      check(convert_sync_batch_norm(*net, world) == 1, "one is exchanged");
      net->to(device, torch::kDouble);  // convolutions of floats are rounded to TF32 there
      DistributedDataParallel model(net, world);
      torch::manual_seed(60 + world.rank());
      for (int step = 0; step < 3; ++step) {
        const Tensor input = torch::randn({2 + world.rank(), 3, 8, 8}, torch::kDouble).to(device);
        model.zero_grad();
        model.forward(input).pow(2).mean().backward();
      }
      std::vector<Tensor> kept;
      for (const Tensor& parameter : net->parameters()) kept.push_back(parameter.grad().cpu());
      for (const Tensor& buffer : net->buffers()) kept.push_back(buffer.cpu());
      // Of equal gradients, which convolutions of two devices do not make.
      for (const Tensor& parameter : net->parameters()) {
        torch::manual_seed(parameter.numel());
        parameter.mutable_grad() = torch::randn(parameter.sizes(), torch::kDouble).to(device);
      }
      const double norm = clip_grad_norm_(net->parameters(), 0.5);
      return std::pair(kept, norm);
    };
    const auto [expected, norm] = step_on(torch::kCPU);
    const auto [actual, norm_there] = step_on(kGpu);
    check(norm == norm_there, "the norm");
    for (std::size_t i = 0; i < expected.size(); ++i) {
      check_near(actual[i].to(torch::kDouble), expected[i].to(torch::kDouble), 1e-9,
                 c10::str("gradient or buffer ", i));
    }
  });
}

TEST_F(CudaTraining, OfThreadsOnOneDeviceIsRefused) {
  if (is_trial()) GTEST_SKIP() << "of devices only";
  // In a process of its own, which may use CUDA.
  const auto both = test_kit::collect_ranks(
      1,
      [](const test_kit::Rank&) {
        std::string failures;
        const auto ranks = test_kit::collect_ranks(2, [](const test_kit::Rank& me) {
          ProcessGroup world = init_process_group(me.init);
          auto net = make_net();
          net->to(kGpu);
          const DistributedDataParallel model(net, world);
          return std::string();
        });
        for (const auto& rank : ranks) failures += rank.failure + "\n";
        return failures;
      },
      processes());
  EXPECT_NE(both[0].result.find("are threads of one process, and both train on cuda:0"),
            std::string::npos)
      << both[0].result << both[0].failure;
}

/// Milliseconds of a step, of so many.
double time_of(int steps, const std::function<void()>& step) {
  torch::cuda::synchronize();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < steps; ++i) step();
  torch::cuda::synchronize();
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  return took.count() / steps;
}

double median(std::vector<double> all) {
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

/// Of ResNet-18, bare and wrapped, on one rank and on two that share the device.
void print_step_times(ProcessGroup& world) {
  constexpr int kSteps = 10, kPairs = 7;
  torch::manual_seed(1);
  ResNet18 bare_net(3, 10), net(3, 10);
  bare_net->to(kGpu);
  net->to(kGpu);
  DistributedDataParallel model(net, world);
  torch::optim::SGD bare_optimizer(bare_net->parameters(), 1e-3),
      optimizer(net->parameters(), 1e-3);
  std::int64_t count = 64;
  const auto step_of = [&](auto& any, torch::optim::SGD& any_optimizer) {
    return [&, images = torch::randn({count, 3, 64, 64}, kGpu),
            labels = torch::randint(10, {count}, torch::dtype(torch::kLong).device(kGpu))] {
      any_optimizer.zero_grad();
      torch::cross_entropy_loss(any.forward(images), labels).backward();
      any_optimizer.step();
    };
  };
  // A bare step of at least 20 ms, of the same size on all ranks.
  for (;; count *= 2) {
    const auto step = step_of(*bare_net, bare_optimizer);
    time_of(kSteps, step);
    const double took = time_of(kSteps, step);
    if (world.all_reduce_value(took, {.op = ReduceOp::min}) >= 20 || count == 8192) break;
  }
  const auto bare_step = step_of(*bare_net, bare_optimizer);
  const auto step = step_of(model, optimizer);
  time_of(kSteps, step);
  const DataParallelStats before = model.stats();
  std::vector<double> bare, wrapped, ratios;
  for (int pair = 0; pair < kPairs; ++pair) {
    bare.push_back(time_of(kSteps, bare_step));
    wrapped.push_back(time_of(kSteps, step));
    ratios.push_back(wrapped.back() / bare.back());
  }
  const DataParallelStats after = model.stats();
  const double exposed =
      std::chrono::duration<double, std::milli>(after.exposed - before.exposed).count() /
      static_cast<double>(after.steps - before.steps);
  if (world.rank() != 0) return;
  std::printf(
      "ResNet-18, n = %d, %d images of 64 x 64 a rank: bare %.2f ms, DDP %.2f ms "
      "(x %.4f, median of %d pairs), exposed %.2f ms of the host, %zu buckets, %.1f MB, over %s\n",
      world.world_size(), static_cast<int>(count), median(bare), median(wrapped), median(ratios),
      kPairs, exposed, after.buckets, static_cast<double>(after.bytes) / 1e6,
      world.backend().name.c_str());
  std::fflush(stdout);
}

TEST_F(CudaTraining, TakesThisLong) {
  if (is_trial()) GTEST_SKIP() << "of devices only";
  for (const int ranks : {1, 2}) on_gpu(ranks, print_step_times);
}

}  // namespace
}  // namespace tutti::ddp
