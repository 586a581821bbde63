// Ranks that train, for tests: forked before libtorch has made a thread, one thread each.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <stdexcept>
#include <string>

#include "tutti/test_kit.h"
#include "tutti/torch.h"

namespace tutti::ddp {

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

inline void on_ranks(int ranks, const std::function<void(ProcessGroup&)>& body) {
  ASSERT_NO_THROW(test_kit::run_ranks(ranks,
                                      [&](ProcessGroup& world) {
                                        torch::set_num_threads(1);
                                        body(world);
                                      },
                                      {.as = test_kit::As::processes}));
}

}  // namespace tutti::ddp
