// A backward whose part on a device is still in the device's thread when an exception of the
// program has come out of backward(). The device is made up: libtorch runs a thread for it all the
// same.
#include <gtest/gtest.h>
#include <torch/version.h>

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 15

TEST(DeviceThread, NeedsANewerLibtorch) {
  GTEST_SKIP() << "a device is made up in another way before libtorch 2.15";
}

#else

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "block_net.h"

namespace {

struct MadeUpGuard final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::PrivateUse1> {
  static c10::Device device() { return {c10::DeviceType::PrivateUse1, 0}; }
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, device()); }
  c10::Device exchangeDevice(c10::Device) const override { return device(); }
  c10::Device getDevice() const override { return device(); }
  c10::Stream getStream(c10::Device) const noexcept override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return stream(); }
};

struct MadeUpHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, MadeUpGuard)

}  // namespace

namespace tutti::ddp {
namespace {

using namespace std::chrono_literals;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::tensor_list;

Tensor on_device(const Tensor& x) {
  auto* data = new double[static_cast<std::size_t>(x.numel())]();
  return at::for_blob(data, x.sizes())
      .deleter([](void* at) { delete[] static_cast<double*>(at); })
      .target_device(MadeUpGuard::device())
      .options(torch::dtype(torch::kDouble).device(MadeUpGuard::device()))
      .make_tensor();
}

std::atomic<int> in_device_thread{0};

struct ToDevice : Function<ToDevice> {
  static Tensor forward(AutogradContext* context, const Tensor& x) {
    context->saved_data["like"] = x.detach();
    return on_device(x);
  }
  static tensor_list backward(AutogradContext* context, const tensor_list&) {
    ++in_device_thread;
    std::this_thread::sleep_for(50ms);
    return {torch::zeros_like(context->saved_data["like"].toTensor())};
  }
};
struct FromDevice : Function<FromDevice> {
  static Tensor forward(AutogradContext*, const Tensor& x) {
    return torch::zeros(x.sizes(), torch::kDouble);
  }
  static tensor_list backward(AutogradContext*, const tensor_list& gradients) {
    return {on_device(gradients[0])};
  }
};

using Model = DistributedDataParallel<NetImpl>;

/// Leaves its backward by an exception of a hook while the device's thread is in it, and the
/// buckets are under way: rank 1 comes late to each.
void break_a_backward(ProcessGroup& world, Model& model) {
  static const bool is_known = [] {
    static MadeUpHooks hooks;
    c10::register_privateuse1_backend("made_up");
    at::RegisterPrivateUse1HooksInterface(&hooks);
    return true;
  }();
  ASSERT_TRUE(is_known);
  bool is_late = false;
  const auto mean = [&](const GradientBucket& bucket, ProcessGroup& group) {
    if (is_late && world.rank() == 1) std::this_thread::sleep_for(100ms);
    return group.all_reduce(bucket.gradients, {.op = bucket.mean}, async, bucket.where);
  };
  model.set_communication_hook("mean", mean);
  loss_of(model.forward(share(world, 0))).backward();
  is_late = true;
  Tensor input = share(world, 1).clone().requires_grad_();
  const int before = in_device_thread;
  input.register_hook([before](const Tensor& gradient) -> Tensor {
    while (in_device_thread == before) std::this_thread::sleep_for(1ms);
    throw std::runtime_error("given up");
    return gradient;
  });
  Tensor weight = torch::ones({3}, torch::dtype(torch::kDouble).requires_grad(true));
  const Tensor loss = loss_of(model.forward(input));
  const Tensor beside = FromDevice::apply(ToDevice::apply(weight)).sum();  // the first in backward
  EXPECT_ANY_THROW((loss + beside).backward());
}

void on_two_processes(const std::function<void(ProcessGroup&, std::unique_ptr<Model>, Net&)>& run) {
  on_ranks(2, [&](ProcessGroup& world) {
    Net net = make_net();
    run(world, std::make_unique<Model>(net, world, DataParallelOptions{.bucket_bytes = 512}), net);
  });
}

TEST(DeviceThread, TheWrapperMayGoWhileOneHoldsItsBackward) {
  on_two_processes([](ProcessGroup& world, std::unique_ptr<Model> model, Net&) {
    break_a_backward(world, *model);
    std::this_thread::sleep_for(120ms);  // the thread waits for the buckets
    model.reset();
    std::this_thread::sleep_for(500ms);  // it comes to the end of the backward
  });
}

TEST(DeviceThread, TheNextForwardEndsWhatOneHolds) {
  on_two_processes([](ProcessGroup& world, std::unique_ptr<Model> model, Net& net) {
    break_a_backward(world, *model);
    std::this_thread::sleep_for(60ms);  // as above
    Tensor out = model->forward(share(world, 2));
    model->zero_grad(false);
    std::this_thread::sleep_for(500ms);
    for (const Tensor& parameter : net->parameters())
      EXPECT_EQ(parameter.grad().abs().sum().item<double>(), 0.0);
    model->zero_grad();
    loss_of(out).backward();
    check_gradients(net, expected_gradients(net, 2), "the next step");
  });
}

}  // namespace
}  // namespace tutti::ddp

#endif
