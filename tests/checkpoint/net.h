// The net of the tests of checkpoints.
#pragma once

#include <torch/torch.h>

namespace tutti::checkpoint {

/// `net()` of files.py.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("conv", conv);
    register_module("bn", bn);
    register_module("fc", fc);
  }
  torch::Tensor forward(const torch::Tensor& x) { return fc(bn(conv(x)).flatten(1)); }

  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(1, 4, 3)};
  torch::nn::BatchNorm2d bn{4};
  torch::nn::Linear fc{16, 3};
};
TORCH_MODULE(Net);

}  // namespace tutti::checkpoint
