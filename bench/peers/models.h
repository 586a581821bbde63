// The models that training is measured with. models.py has the same: as layers are made in the same
// order, one seed gives both the same parameters. Braces, because only they make them in order.
#pragma once

#include <torch/torch.h>

#include <stdexcept>
#include <string>

namespace models {

using torch::Tensor;
namespace nn = torch::nn;

inline Tensor relu(const Tensor& x) { return torch::relu(x); }

/// 10 M parameters.
inline nn::Sequential mlp() {
  return nn::Sequential{nn::Flatten(),          nn::Linear(784, 2048), nn::Functional(relu),
                        nn::Linear(2048, 2048), nn::Functional(relu),  nn::Linear(2048, 2048),
                        nn::Functional(relu),   nn::Linear(2048, 10)};
}

/// That of the main job, examples/07_fashion_mnist.
inline nn::Sequential cnn() {
  return nn::Sequential{nn::Conv2d(nn::Conv2dOptions(1, 16, 5).stride(2).padding(2)),
                        nn::Functional(relu),
                        nn::Conv2d(nn::Conv2dOptions(16, 32, 3).stride(2).padding(1)),
                        nn::Functional(relu),
                        nn::Flatten(),
                        nn::Linear(32 * 49, 128),
                        nn::Functional(relu),
                        nn::Dropout(0.25),
                        nn::Linear(128, 10)};
}

inline nn::Conv2d convolution(std::int64_t from, std::int64_t to, std::int64_t width,
                              std::int64_t stride) {
  return nn::Conv2d(
      nn::Conv2dOptions(from, to, width).stride(stride).padding(width / 2).bias(false));
}

struct BlockImpl : nn::Module {
  BlockImpl(std::int64_t from, std::int64_t to, std::int64_t stride) {
    body = register_module("body", nn::Sequential{convolution(from, to, 3, stride),
                                                  nn::BatchNorm2d(to), nn::Functional(relu),
                                                  convolution(to, to, 3, 1), nn::BatchNorm2d(to)});
    if (from == to) return;
    shortcut = register_module(
        "shortcut", nn::Sequential{convolution(from, to, 1, stride), nn::BatchNorm2d(to)});
  }
  Tensor forward(const Tensor& x) {
    return torch::relu(body->forward(x) + (shortcut ? shortcut->forward(x) : x));
  }
  nn::Sequential body{nullptr}, shortcut{nullptr};
};
TORCH_MODULE(Block);

/// ResNet-18 for one channel and ten classes: 11 M parameters.
inline nn::Sequential resnet18() {
  return nn::Sequential{
      convolution(1, 64, 7, 2), nn::BatchNorm2d(64),
      nn::Functional(relu),     nn::MaxPool2d(nn::MaxPool2dOptions(3).stride(2).padding(1)),
      Block(64, 64, 1),         Block(64, 64, 1),
      Block(64, 128, 2),        Block(128, 128, 1),
      Block(128, 256, 2),       Block(256, 256, 1),
      Block(256, 512, 2),       Block(512, 512, 1),
      nn::AdaptiveAvgPool2d(1), nn::Flatten(),
      nn::Linear(512, 10)};
}

/// Many equal layers, so that buckets leave at even times: 40 of 512 x 512, 10.5 M parameters.
inline nn::Sequential layers() {
  nn::Sequential net(nn::Flatten(),
                     nn::Functional([](const Tensor& x) { return x.narrow(1, 0, 512); }));
  for (int layer = 0; layer < 40; ++layer) {
    if (layer != 0) net->push_back(nn::Functional(relu));
    net->push_back(nn::Linear(512, 512));
  }
  return net;
}

inline nn::Sequential make(const std::string& name) {
  if (name == "mlp") return mlp();
  if (name == "cnn") return cnn();
  if (name == "resnet18") return resnet18();
  if (name == "layers") return layers();
  throw std::invalid_argument("no model '" + name + "': mlp, cnn, resnet18, layers");
}

}  // namespace models
