// A model whose blocks may be left out, used twice or run again in backward, for tests that compare
// its gradients with those of one process.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "torch_ranks.h"

namespace tutti::ddp {

using torch::Tensor;

/// Throws in backward when told to.
inline bool break_backward = false;
struct Breakable : torch::autograd::Function<Breakable> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& input) {
    return input * 1;
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext*,
                                               const torch::autograd::tensor_list& gradients) {
    if (break_backward) throw std::runtime_error("broken by the test");
    return gradients;
  }
};

struct NetImpl : torch::nn::Module {
  explicit NetImpl(std::vector<std::int64_t> the_checkpointed = {})
      : checkpointed(the_checkpointed.begin(), the_checkpointed.end()) {
    for (std::int64_t i = 0; i < 4; ++i) {
      blocks.push_back(torch::nn::Sequential(torch::nn::Linear(6, 6), torch::nn::Tanh()));
      register_module("block" + std::to_string(i), blocks.back());
    }
    register_module("spare", spare);
    if (checkpointed.empty()) return;
    hint = torch::zeros({1}, torch::requires_grad());  // makes the checkpoint a node of the graph
  }
  Tensor forward(Tensor x) {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (skipped == static_cast<int>(i)) continue;
      x = Breakable::apply(x);
      x = checkpointed.contains(static_cast<std::int64_t>(i))
              ? Checkpoint::apply(x, hint, &blocks[i])
              : blocks[i]->forward(x);
    }
    return use_spare ? spare->forward(x) : x;
  }
  std::set<std::int64_t> checkpointed;
  std::vector<torch::nn::Sequential> blocks;
  torch::nn::Linear spare{6, 6};
  Tensor hint;
  bool use_spare = true;
  int skipped = -1;
};
TORCH_MODULE(Net);

inline Net make_net(const std::vector<std::int64_t>& checkpointed = {}) {
  torch::manual_seed(11);
  Net net(checkpointed);
  net->to(torch::kDouble);
  return net;
}

/// Rank r's share of a batch that all ranks know.
inline Tensor batch(int step) {
  torch::manual_seed(100 + step);
  return torch::randn({12, 6}, torch::kDouble);
}
inline Tensor share(ProcessGroup& world, int step) {
  const std::int64_t count = 12 / world.world_size();
  return batch(step).narrow(0, count * world.rank(), count);
}

inline Tensor loss_of(const Tensor& output) { return output.pow(2).mean(); }

/// The gradients of one process with the whole batch (a second time for `times` == 2).
inline std::vector<Tensor> expected_gradients(const Net& like, int step, int times = 1) {
  Net alone = make_net();
  alone->use_spare = like->use_spare;
  alone->skipped = like->skipped;
  for (int i = 0; i < times; ++i) loss_of(alone->forward(batch(step + i))).backward();
  std::vector<Tensor> gradients;
  for (const Tensor& parameter : alone->parameters()) gradients.push_back(parameter.grad());
  return gradients;
}

inline void check_gradients(const Net& net, const std::vector<Tensor>& expected,
                            const std::string& what) {
  const auto parameters = net->named_parameters();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::string name = what + ": " + parameters[i].key();
    check(parameters[i].value().grad().defined() == expected[i].defined(), name + " is there");
    if (expected[i].defined()) check_near(parameters[i].value().grad(), expected[i], 1e-12, name);
  }
}

inline void check_same_gradients(ProcessGroup& world, const Net& net) {
  for (const Tensor& parameter : net->parameters()) {
    if (!parameter.grad().defined()) continue;
    Tensor of_rank_0 = parameter.grad().clone();
    world.broadcast(of_rank_0);
    check(of_rank_0.equal(parameter.grad()), "gradients differ between ranks");
  }
}

}  // namespace tutti::ddp
