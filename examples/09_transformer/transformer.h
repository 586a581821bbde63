// A Transformer that predicts the next character (Vaswani et al., Attention Is All You Need, 2017;
// with the normalisation before each part, as GPT-2 has it).
#pragma once

#include <torch/torch.h>

#include <cstdint>

struct TransformerOptions {
  std::int64_t alphabet = 0;
  std::int64_t context = 64;  ///< characters that a prediction can look back at
  std::int64_t width = 128;
  std::int64_t heads = 4;
  std::int64_t blocks = 4;
  double dropout = 0.1;
};

/// Every place looks at those before it and at itself, and takes from them what it needs.
struct AttentionImpl : torch::nn::Module {
  explicit AttentionImpl(const TransformerOptions& options)
      : heads(options.heads),
        look(options.width, 3 * options.width),
        merge(options.width, options.width) {
    register_module("look", look);
    register_module("merge", merge);
  }
  torch::Tensor forward(const torch::Tensor& x) {  // samples x context x width
    const auto parts = look(x).view({x.size(0), x.size(1), 3, heads, -1}).permute({2, 0, 3, 1, 4});
    const auto taken = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0, true);
    return merge(taken.transpose(1, 2).flatten(2));
  }

  std::int64_t heads;
  torch::nn::Linear look, merge;
};
TORCH_MODULE(Attention);

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const TransformerOptions& options)
      : attention(options),
        before_attention(torch::nn::LayerNormOptions({options.width})),
        before_layers(torch::nn::LayerNormOptions({options.width})),
        layers(torch::nn::Linear(options.width, 4 * options.width), torch::nn::GELU(),
               torch::nn::Linear(4 * options.width, options.width)),
        dropout(options.dropout) {
    register_module("before_attention", before_attention);
    register_module("attention", attention);
    register_module("before_layers", before_layers);
    register_module("layers", layers);
    register_module("dropout", dropout);
  }
  torch::Tensor forward(torch::Tensor x) {
    x = x + dropout(attention(before_attention(x)));
    return x + dropout(layers->forward(before_layers(x)));
  }

  Attention attention;
  torch::nn::LayerNorm before_attention, before_layers;
  torch::nn::Sequential layers;
  torch::nn::Dropout dropout;
};
TORCH_MODULE(Block);

struct TransformerImpl : torch::nn::Module {
  explicit TransformerImpl(const TransformerOptions& options)
      : characters(options.alphabet, options.width),
        places(options.context, options.width),
        dropout(options.dropout),
        norm(torch::nn::LayerNormOptions({options.width})),
        next(options.width, options.alphabet) {
    for (std::int64_t i = 0; i < options.blocks; ++i) blocks->push_back(Block(options));
    register_module("characters", characters);
    register_module("places", places);
    register_module("dropout", dropout);
    register_module("blocks", blocks);
    register_module("norm", norm);
    register_module("next", next);
    for (auto& parameter : parameters()) {
      if (parameter.dim() == 2) torch::nn::init::normal_(parameter, 0, 0.02);
    }
  }
  /// From codes, samples x context: a score for each character that may come next, at every place.
  torch::Tensor forward(const torch::Tensor& codes) {
    const auto place = torch::arange(codes.size(1), codes.device());
    const auto x = dropout(characters(codes) + places(place));
    return next(norm(blocks->forward(x)));
  }

  torch::nn::Embedding characters, places;
  torch::nn::Dropout dropout;
  torch::nn::Sequential blocks;
  torch::nn::LayerNorm norm;
  torch::nn::Linear next;
};
TORCH_MODULE(Transformer);
