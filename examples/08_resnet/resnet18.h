// ResNet-18 (He et al., Deep Residual Learning for Image Recognition, 2015).
#pragma once

#include <torch/torch.h>

#include <cstdint>

inline torch::nn::Conv2d convolution(std::int64_t from, std::int64_t to, std::int64_t width,
                                     std::int64_t stride) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, width)
                               .stride(stride)
                               .padding(width / 2)
                               .bias(false));  // the normalisation after it has one
}

/// Two convolutions beside a shortcut: what they learn is added to what came in.
struct BasicBlockImpl : torch::nn::Module {
  BasicBlockImpl(std::int64_t from, std::int64_t to, std::int64_t stride)
      : conv1(convolution(from, to, 3, stride)),
        bn1(to),
        conv2(convolution(to, to, 3, 1)),
        bn2(to) {
    register_module("conv1", conv1);
    register_module("bn1", bn1);
    register_module("conv2", conv2);
    register_module("bn2", bn2);
    if (stride == 1 && from == to) return;
    downsample = register_module(
        "downsample",
        torch::nn::Sequential(convolution(from, to, 1, stride), torch::nn::BatchNorm2d(to)));
  }
  torch::Tensor forward(torch::Tensor x) {
    const auto shortcut = downsample ? downsample->forward(x) : x;
    x = torch::relu(bn1(conv1(x)));
    x = bn2(conv2(x));
    return torch::relu(x + shortcut);
  }

  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn1;
  torch::nn::Conv2d conv2;
  torch::nn::BatchNorm2d bn2;
  torch::nn::Sequential downsample{nullptr};  ///< where the shortcut changes its shape, too
};
TORCH_MODULE(BasicBlock);

/// All names and shapes are those of torchvision's resnet18: its state_dict fits.
struct ResNet18Impl : torch::nn::Module {
  ResNet18Impl(std::int64_t channels, std::int64_t class_count)
      : conv1(convolution(channels, 64, 7, 2)), fc(512, class_count) {
    register_module("conv1", conv1);
    register_module("bn1", bn1);
    register_module("layer1", layer1);
    register_module("layer2", layer2);
    register_module("layer3", layer3);
    register_module("layer4", layer4);
    register_module("fc", fc);
    for (const auto& module : modules(false)) {
      if (const auto* const convolve = module->as<torch::nn::Conv2d>()) {
        torch::nn::init::kaiming_normal_(convolve->weight, 0, torch::kFanOut, torch::kReLU);
      }
    }
  }
  torch::Tensor forward(torch::Tensor x) {  // of 28 x 28 pixels there remain
    x = torch::relu(bn1(conv1(x)));         // 64 x 14 x 14
    x = torch::max_pool2d(x, 3, 2, 1);      // 64 x 7 x 7
    x = layer1->forward(x);
    x = layer2->forward(x);  // 128 x 4 x 4
    x = layer3->forward(x);  // 256 x 2 x 2
    x = layer4->forward(x);  // 512 x 1 x 1
    return fc(torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
  }

  static torch::nn::Sequential layer(std::int64_t from, std::int64_t to, std::int64_t stride) {
    return torch::nn::Sequential(BasicBlock(from, to, stride), BasicBlock(to, to, 1));
  }

  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn1{64};
  torch::nn::Sequential layer1 = layer(64, 64, 1);
  torch::nn::Sequential layer2 = layer(64, 128, 2);
  torch::nn::Sequential layer3 = layer(128, 256, 2);
  torch::nn::Sequential layer4 = layer(256, 512, 2);
  torch::nn::Linear fc;
};
TORCH_MODULE(ResNet18);
