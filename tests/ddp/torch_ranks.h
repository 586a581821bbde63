// Ranks that train, for tests: forked while libtorch has made no thread, one thread each.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>

#include "tutti/test_kit.h"
#include "tutti/torch.h"

namespace tutti::ddp {

/// No threads in the process of the tests: each of them may fork.
inline const bool makes_no_threads = (torch::set_num_threads(1), true);

/// In a rank gtest's macros would speak to nobody: a failed check is thrown.
inline void check(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error("check failed: " + what);
}

inline void check_near(const torch::Tensor& actual, const torch::Tensor& expected, double tolerance,
                       const std::string& what) {
  const double off = (actual - expected).abs().max().item<double>();
  check(off <= tolerance, what + ": off by " + std::to_string(off));
}

/// Runs `body` and returns the message of the tutti::Error it must throw.
inline std::string error_of(ErrorCode code, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    check(error.code() == code, std::string("wrong code: ") + error.what());
    return error.what();
  }
  throw std::runtime_error("nothing was thrown");
}

inline void check_contains(const std::string& text, const std::string& part) {
  check(text.find(part) != std::string::npos, "'" + part + "' is not in: " + text);
}

inline void check_same_everywhere(ProcessGroup& world, const torch::nn::Module& module) {
  const std::uint64_t own = parameter_hash(module);
  std::vector<std::uint64_t> hashes(static_cast<std::size_t>(world.world_size()));
  world.all_gather(own, hashes);
  for (std::uint64_t hash : hashes) check(hash == own, "parameters differ between ranks");
}

/// How ranks are laid out and what connects them: on one host over native unless ctest says
/// otherwise (tests/ddp/CMakeLists.txt).
inline test_kit::RunOptions layout(int ranks) {
  test_kit::RunOptions options{.as = test_kit::As::processes};
  const char* const backend = std::getenv("TUTTI_TEST_BACKEND");
  if (backend != nullptr) options.init.backend = backend;
  const char* const where = std::getenv("TUTTI_TEST_LAYOUT");
  for (int rank = 0; where != nullptr && rank < ranks; ++rank) options.hosts.push_back(rank % 2);
  return options;
}

inline void on_ranks(int ranks, const std::function<void(ProcessGroup&)>& body) {
  ASSERT_NO_THROW(test_kit::run_ranks(
      ranks,
      [&](ProcessGroup& world) {
        torch::set_num_threads(1);
        body(world);
      },
      layout(ranks)));
}

/// What each rank says that ends as it may: "nothing", or the code and text of its Error.
inline std::vector<std::string> told_by_ranks(int ranks,
                                              const std::function<void(ProcessGroup&)>& body) {
  const auto run = [&](const test_kit::Rank& me) {
    torch::set_num_threads(1);
    ProcessGroup world = init_process_group(me.init);
    try {
      body(world);
    } catch (const Error& error) {
      return std::string(name_of(error.code())) + ": " + error.what();
    }
    return std::string("nothing");
  };
  std::vector<std::string> told;
  for (const auto& rank : test_kit::collect_ranks(ranks, run, layout(ranks))) {
    told.push_back(rank.failure.empty() ? rank.result : "FAILED " + rank.failure);
  }
  return told;
}

/// A block whose activations are not kept: its backward runs forward again and a backward of its
/// own inside the engine, which therefore nests. The second input, which requires a gradient, makes
/// it a node of the graph.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context,
                               const torch::Tensor& input, const torch::Tensor&,
                               torch::nn::Sequential* block) {
    context->save_for_backward({input});
    context->saved_data["block"] = reinterpret_cast<std::int64_t>(block);
    const torch::NoGradGuard no_grad;
    return (*block)->forward(input);
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               const torch::autograd::tensor_list& gradients) {
    auto* block = reinterpret_cast<torch::nn::Sequential*>(context->saved_data["block"].toInt());
    const torch::Tensor input = context->get_saved_variables()[0].detach().requires_grad_(true);
    const torch::AutoGradMode with_grad(true);
    const torch::Tensor output = (*block)->forward(input);
    torch::autograd::backward({output}, {gradients[0]});
    return {input.grad(), torch::Tensor(), torch::Tensor()};
  }
};

}  // namespace tutti::ddp
