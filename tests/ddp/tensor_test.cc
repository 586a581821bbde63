// Tensors as buffers, and the sampler as libtorch's data loader uses it.
#include <sstream>

#include "torch_ranks.h"

namespace tutti {
namespace {

using ddp::check;
using ddp::check_contains;
using ddp::on_ranks;

std::string refusal(ErrorCode code, const torch::Tensor& tensor) {
  try {
    const Buffer buffer(tensor);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "the tensor was taken";
  return {};
}

TEST(TensorBuffer, SeesMemoryCountAndDtype) {
  const torch::Tensor tensor = torch::zeros({3, 4}, torch::kInt);
  const Buffer buffer(tensor);
  EXPECT_EQ(buffer.data, tensor.data_ptr());
  EXPECT_EQ(buffer.count, 12u);
  EXPECT_EQ(buffer.dtype, DType::i32);
  EXPECT_EQ(ConstBuffer(torch::zeros({2}, torch::kBFloat16)).dtype, DType::bf16);
  EXPECT_EQ(Buffer(torch::zeros({0})).count, 0u);
}

TEST(TensorBuffer, NotContiguousIsRefusedWithStridesAndRemedy) {
  const std::string message = refusal(ErrorCode::kInvalidArgument, torch::zeros({3, 4}).t());
  EXPECT_NE(message.find("[4, 3] strides [1, 4]"), std::string::npos) << message;
  EXPECT_NE(message.find("contiguous()"), std::string::npos) << message;
  refusal(ErrorCode::kInvalidArgument, torch::zeros({3, 4}).slice(1, 0, 2));
}

TEST(TensorBuffer, IsOnTheCpuOrOnCudaOnly) {
  EXPECT_EQ(Buffer(torch::zeros({2})).device, Device());
  const std::string message =
      refusal(ErrorCode::kUnsupported, torch::empty({2}, torch::Device(torch::kMeta)));
  EXPECT_NE(message.find("tensor on meta"), std::string::npos) << message;
}

TEST(TensorBuffer, ARefusalNamesTheLineThatGaveTheTensor) {
  const torch::Tensor transposed = torch::zeros({3, 4}).t();
  const auto message_of = [](const auto& give) {
    try {
      give();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("the tensor was taken");
  };
  const auto combined = [](Operand) {};
  const auto read = [](ConstBuffer) {};
  const auto line = [](int number) { return c10::str("tensor_test.cc:", number, ": tensor as "); };
  EXPECT_EQ(message_of([&] { combined(transposed); }).find(line(__LINE__)), 0u);
  EXPECT_EQ(message_of([&] { read(transposed); }).find(line(__LINE__)), 0u);
}

TEST(TensorBuffer, TheContextOfARefusalHasWhatItsTextSays) {
  const torch::Tensor with_holes = torch::zeros({3, 4}).slice(1, 0, 2);
  const auto context_of = [](const auto& give) {
    try {
      give();
    } catch (const Error& error) {
      return error.context();
    }
    return ErrorContext{};
  };
  const auto line = [](int number) { return c10::str("tensor_test.cc:", number); };
  const ErrorContext dense = context_of([&] { in_memory_order(with_holes); });
  EXPECT_EQ(dense.call_site, line(__LINE__ - 1));
  EXPECT_EQ(dense.op, "in_memory_order");
  const ErrorContext buffer = context_of([&] { Buffer given(with_holes); });
  EXPECT_EQ(buffer.call_site, line(__LINE__ - 1));
}

TEST(TensorBuffer, DenseMemoryIsTakenWhereItIsAskedFor) {
  const torch::Tensor transposed = torch::zeros({3, 4}).t();
  EXPECT_EQ(in_memory_order(transposed).count, 12u);
  EXPECT_THROW(in_memory_order(torch::zeros({3, 4}).slice(1, 0, 2)), Error);
  EXPECT_THROW(in_memory_order(torch::zeros({3, 1}).expand({3, 4})), Error);
}

TEST(TensorBuffer, OtherwiseUnfitTensorsAreRefused) {
  refusal(ErrorCode::kInvalidArgument, torch::Tensor());
  refusal(ErrorCode::kInvalidArgument, torch::eye(3).to_sparse());
  refusal(ErrorCode::kUnsupported, torch::zeros({2}, torch::kComplexHalf));
  const torch::Tensor complex = torch::zeros({2}, torch::kComplexFloat);
  EXPECT_NE(refusal(ErrorCode::kInvalidArgument, complex.conj()).find("resolve_conj"),
            std::string::npos);
}

TEST(TensorBuffer, ComplexAndEightBitFloatsHaveDTypes) {
  EXPECT_EQ(Buffer(torch::zeros({2}, torch::kComplexFloat)).dtype, DType::complex64);
  EXPECT_EQ(Buffer(torch::zeros({2}, torch::kComplexDouble)).dtype, DType::complex128);
  EXPECT_EQ(Buffer(torch::zeros({2}).to(torch::kFloat8_e4m3fn)).dtype, DType::f8_e4m3);
  EXPECT_EQ(Buffer(torch::zeros({2}).to(torch::kFloat8_e5m2)).dtype, DType::f8_e5m2);
}

TEST(TensorBuffer, TheRetainerKeepsTheMemory) {
  std::shared_ptr<const void> keeper;
  float* memory = nullptr;
  {
    torch::Tensor tensor = torch::full({1000}, 7.0);
    const Buffer buffer(tensor);
    keeper = buffer.retain(buffer.source);
    memory = static_cast<float*>(buffer.data);
    EXPECT_EQ(tensor.use_count(), 2);
  }
  EXPECT_EQ(memory[999], 7);
}

TEST(TensorCollectives, TensorsGoWhereBuffersGo) {
  on_ranks(2, [](ProcessGroup& world) {
    torch::Tensor tensor = torch::full({5}, world.rank() + 1.0, torch::kDouble);
    world.all_reduce(tensor);
    check(tensor.eq(3).all().item<bool>(), "sum");
    torch::Tensor all = torch::zeros({2, 5}, torch::kDouble);
    world.all_gather(tensor * (world.rank() + 1), all);
    check(all[1].eq(6).all().item<bool>(), "gathered");
    Work work =
        world.broadcast(torch::full({5}, 1.0), async);  // the tensor lives as long as the work
    work.wait();
    world.all_reduce(torch::zeros({}));  // a scalar has one element
  });
}

TEST(ParameterHash, FollowsNamesAndBits) {
  torch::nn::Linear a(3, 2), b(3, 2);
  EXPECT_NE(parameter_hash(*a), parameter_hash(*b));
  const torch::NoGradGuard no_grad;
  b->weight.copy_(a->weight);
  b->bias.copy_(a->bias);
  EXPECT_EQ(parameter_hash(*a), parameter_hash(*b));
  b->bias[1] = std::nextafter(b->bias[1].item<float>(), 100.0F);
  EXPECT_NE(parameter_hash(*a), parameter_hash(*b));
}

struct Numbers : torch::data::datasets::Dataset<Numbers, std::size_t> {
  explicit Numbers(std::size_t the_count) : count(the_count) {}
  std::size_t get(std::size_t index) override { return index; }
  std::optional<std::size_t> size() const override { return count; }
  std::size_t count;
};

template <class Loader>
std::vector<std::size_t> drain(const Loader& loader) {
  std::vector<std::size_t> seen;
  for (const auto& batch : *loader) seen.insert(seen.end(), batch.begin(), batch.end());
  return seen;
}

TEST(DistributedSampler, TheDataLoaderTakesItAndItsCopiesShareOneState) {
  DistributedSampler sampler(11, 2, 1, {.shuffle = true, .seed = 3});
  const auto loader = torch::data::make_data_loader(Numbers(11), sampler, 4);
  const auto first = drain(loader);
  EXPECT_EQ(first.size(), 6u);
  EXPECT_EQ(sampler.index(), 6u);
  EXPECT_EQ(drain(loader), first);
  sampler.set_epoch(1);
  EXPECT_NE(drain(loader), first);
  DistributedSampler dropping(11, 2, 1, {.tail = Tail::drop});
  EXPECT_EQ(drain(torch::data::make_data_loader(Numbers(11), dropping, 4)).size(), 5u);
}

using Weights = std::vector<double>;

/// Of the batches of an epoch, or of what a loaded state has left of it, as the header says.
template <class Loader>
Weights weights_of_epoch(const Loader& loader, DistributedSampler& sampler, std::size_t epoch) {
  Weights weights;
  sampler.set_epoch(epoch);
  std::size_t consumed = sampler.index();
  for (const auto& batch : *loader) {
    consumed += batch.size();
    weights.push_back(sampler.weight(batch.size(), consumed));
  }
  EXPECT_EQ(consumed, sampler.share_count());
  return weights;
}

TEST(DistributedSampler, WeightsAreThoseOfTrainingWhateverALoaderFetchesAhead) {
  for (const std::size_t workers : {0, 1, 3}) {
    for (const int rank : {0, 1}) {  // 7 and 6 samples, in batches of 2, 2, 3 and of 2, 2, 2
      const double last = rank == 0 ? 2 * 3 / 5.0 : 2 * 2 / 5.0;
      DistributedSampler sampler(13, 2, rank, {.tail = Tail::exact});
      const auto loader = torch::data::make_data_loader(
          Numbers(13), sampler, torch::data::DataLoaderOptions(2).workers(workers));
      for (const std::size_t epoch : {0, 1}) {
        EXPECT_EQ(weights_of_epoch(loader, sampler, epoch), (Weights{1, 1, last}));
      }
      sampler.load_state_dict(sampler.state_dict(4));
      EXPECT_EQ(weights_of_epoch(loader, sampler, 1), Weights{last});
      EXPECT_EQ(weights_of_epoch(loader, sampler, 2), (Weights{1, 1, last}));
    }
  }
}

TEST(DistributedSampler, AWeightIsRefusedForABatchThatCannotBe) {
  DistributedSampler sampler(9, 2, 0, {.tail = Tail::exact});
  EXPECT_EQ(sampler.share_count(), 5u);
  EXPECT_THROW(sampler.weight(2, 1), Error);
  EXPECT_THROW(sampler.weight(2, 6), Error);
}

TEST(DistributedSampler, ASavedStateResumes) {
  DistributedSampler whole(100, 3, 2);
  whole.set_epoch(7);
  const auto expected = drain(torch::data::make_data_loader(Numbers(100), whole, 5));

  DistributedSampler before(100, 3, 2);
  before.set_epoch(7);
  before.reset();
  auto seen = *before.next(10);
  torch::serialize::OutputArchive out;
  before.save(out);
  std::stringstream file;
  out.save_to(file);
  torch::serialize::InputArchive in;
  in.load_from(file);
  DistributedSampler after(100, 3, 2);
  after.load(in);
  EXPECT_EQ(after.epoch(), 7u);
  const auto rest = drain(torch::data::make_data_loader(Numbers(100), after, 5));
  seen.insert(seen.end(), rest.begin(), rest.end());
  EXPECT_EQ(seen, expected);

  DistributedSampler other(100, 4, 2);
  EXPECT_THROW(other.load_state_dict(before.state_dict()), Error);
  EXPECT_EQ(before.state_dict(5).at("position"), 5u);
}

TEST(DistributedSampler, ADataSetThatGrewIsDealtAnew) {
  DistributedSampler sampler(4, 2, 0, {.shuffle = false});
  sampler.reset(6);
  EXPECT_EQ(*sampler.next(10), (std::vector<std::size_t>{0, 2, 4}));
  EXPECT_FALSE(sampler.next(10));
}

}  // namespace
}  // namespace tutti
