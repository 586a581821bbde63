// What a module has registered, looked at in every forward: without the names and copies that
// torch::nn::Module's own functions make. And which module a wrapper stands for.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <vector>

namespace tutti::ddp {

/// A registered parameter as it was seen. Holding the tensor, no other can be mistaken for it.
struct Registered {
  at::Tensor tensor;
  bool requires_grad = false;
};

/// All of a module and its children, undefined ones included; one that is shared several times.
std::vector<Registered> registered(const torch::nn::Module& module);

/// Whether that would give `seen` again. Allocates nothing.
bool is_as(const torch::nn::Module& module, const std::vector<Registered>& seen);

/// The module that a DistributedDataParallel stands for; any other is itself.
const torch::nn::Module& unwrapped(const torch::nn::Module& module);

}  // namespace tutti::ddp
