// More bytes, and more elements, than 32 bits count, over TCP between two hosts. Needs 11 GiB of
// memory; run with TUTTI_TEST_FULL=1.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "grids.h"
#include "ranks.h"

namespace tutti::conformance {
namespace {

constexpr std::size_t kGiB = std::size_t{1} << 30;

/// What programs can have without swapping: free memory, and what the kernel holds and gives back.
std::size_t available_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);)
    if (std::size_t kib = 0; std::sscanf(line.c_str(), "MemAvailable: %zu kB", &kib) == 1)
      return kib << 10;
  throw std::runtime_error("/proc/meminfo says no MemAvailable");
}

class Large : public testing::Test {
 protected:
  void SetUp() override {
    if (!full()) GTEST_SKIP() << "only with TUTTI_TEST_FULL=1";
    if (const std::size_t available = available_bytes(); available < 11 * kGiB)
      GTEST_SKIP() << "only " << available / kGiB << " GiB are available";
  }
  static void on_two_hosts(const std::function<void(ProcessGroup&)>& body) {
    test_kit::RunOptions options;
    options.deadline = std::chrono::minutes(20);
    options.hosts = {0, 1};
    on_ranks(2, body, options);
  }
};

/// The same block all the way, but for its number at the beginning of each.
template <class T>
class Blocks {
 public:
  explicit Blocks(T factor) : block_(kBlock / sizeof(T)), factor_(factor) {
    for (std::size_t i = 0; i < block_.size(); ++i) block_[i] = static_cast<T>(i % 83) * factor;
  }
  void fill(std::vector<T>& data) {
    for (std::size_t i = 0; i < data.size(); i += block_.size())
      std::memcpy(&data[i], numbered(i), kBlock);
  }
  std::size_t wrong(const std::vector<T>& data) {
    std::size_t count = 0;
    for (std::size_t i = 0; i < data.size(); i += block_.size())
      count += std::memcmp(&data[i], numbered(i), kBlock) != 0 ? 1 : 0;
    return count;
  }

 private:
  static constexpr std::size_t kBlock = std::size_t{1} << 20;
  /// In digits: they fit into any type.
  const T* numbered(std::size_t first) {
    std::size_t number = first / block_.size();
    for (std::size_t digit = 0; digit < 8; ++digit, number /= 10)
      block_[digit] = static_cast<T>(number % 10) * factor_;
    return block_.data();
  }
  std::vector<T> block_;
  const T factor_;
};

TEST_F(Large, Broadcast) {
  on_two_hosts([](ProcessGroup& world) {
    Blocks<std::uint8_t> blocks(1);
    std::vector<std::uint8_t> data(5 * kGiB);
    if (world.rank() == 0) blocks.fill(data);
    world.broadcast(data, {.root = 0});
    EXPECT_EQ(blocks.wrong(data), 0u);
  });
}

TEST_F(Large, AllReduce) {
  on_two_hosts([](ProcessGroup& world) {
    std::vector<float> data(3 * kGiB / sizeof(float));
    Blocks<float>(static_cast<float>(world.rank() + 1)).fill(data);
    world.all_reduce(data);
    EXPECT_EQ(Blocks<float>(3).wrong(data), 0u);
  });
}

}  // namespace
}  // namespace tutti::conformance
