// The conformance suite must find what is wrong: a backend that does everything right but for one
// planted fault, on one rank.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "group/foreign_backend.h"
#include "ranks.h"

namespace tutti::conformance {
namespace {

using test_kit::ConformanceOptions;
using test_kit::Rank;

/// Spoils what a blocking operation has left.
using Fault = std::function<void(const Request&)>;

/// Native, and then the fault.
class Spoiled final : public Backend {
 public:
  Spoiled(std::unique_ptr<Backend> inner, Fault fault)
      : inner_(std::move(inner)), fault_(std::move(fault)) {}

  Support supports(const OpKey& key) const override { return inner_->supports(key); }
  void run(const Request& request) override {
    inner_->run(request);
    if (fault_ && request.output.count > 0) fault_(request);
  }
  Work start(Request request) override { return inner_->start(std::move(request)); }
  std::unique_ptr<Backend> make_group(const GroupSpec& spec) override {
    return inner_->make_group(spec);
  }
  Memory allocate(std::size_t byte_count) override { return inner_->allocate(byte_count); }
  void abort(const Cause& cause) noexcept override { inner_->abort(cause); }
  void close(Deadline deadline) override { inner_->close(deadline); }
  BackendInfo info() const override { return inner_->info(); }

 private:
  const std::unique_ptr<Backend> inner_;
  const Fault fault_;
};

/// What the suite says on four ranks, of which rank 2 has the fault, all ranks' complaints in one.
std::string complaints(const ConformanceOptions& options, const Fault& fault) {
  std::string all;
  for (const test_kit::Outcome& outcome : test_kit::collect_ranks(4, [&](const Rank& me) {
         ProcessGroup world = make_world_on(me, [&](group::Parts& made, const GroupSpec& spec) {
           made.backend =
               std::make_shared<Spoiled>(native::make_native(spec), me.rank == 2 ? fault : Fault());
         });
         std::string said;
         for (const std::string& failure : run_conformance(world, options).failures) {
           said += failure + "\n";
         }
         world.close();
         return said;
       })) {
    EXPECT_EQ(outcome.failure, "") << outcome.rank;
    all += outcome.result;
  }
  return all;
}

std::byte* bytes_of(const Buffer& buffer) { return static_cast<std::byte*>(buffer.data); }

TEST(ConformanceFinds, NothingWhereNothingIsWrong) {
  EXPECT_EQ(complaints({.canonical = true}, nullptr), "");
}

TEST(ConformanceFinds, OneWrongBitOfTheLastElement) {
  for (const Op op : {Op::all_reduce, Op::broadcast, Op::all_gather, Op::all_to_all, Op::scan,
                      Op::reduce_scatter}) {
    const std::string said = complaints({.op = op}, [&](const Request& request) {
      if (request.dtype == DType::i32) {
        bytes_of(request.output)[request.output.byte_count() - 4] ^= std::byte{1};
      }
    });
    EXPECT_NE(said.find("rank 2 of 4: " + std::string(name_of(op))), std::string::npos) << said;
    EXPECT_NE(said.find("expected 0x"), std::string::npos) << said;
    EXPECT_EQ(said.find("f32"), std::string::npos) << said;
  }
}

TEST(ConformanceFinds, AnInputThatWasChanged) {
  for (const Op op : {Op::all_reduce, Op::all_gather, Op::all_to_all}) {
    const std::string said = complaints({.op = op}, [&](const Request& request) {
      if (request.dtype != DType::u8 || request.input.data == request.output.data) return;
      auto* const input = static_cast<std::byte*>(const_cast<void*>(request.input.data));
      if (input < bytes_of(request.output) ||
          input >= bytes_of(request.output) + request.output.byte_count()) {
        *input ^= std::byte{1};
      }
    });
    EXPECT_NE(said.find("changed its input"), std::string::npos) << said;
  }
}

TEST(ConformanceFinds, AByteWrittenBehindTheOutput) {
  const std::string said = complaints({.op = Op::all_gather}, [](const Request& request) {
    bytes_of(request.output)[request.output.byte_count()] = std::byte{0};
  });
  EXPECT_NE(said.find("wrote outside the output"), std::string::npos) << said;
}

/// Within the error bound, and so right by itself; but the other ranks have other bits.
TEST(ConformanceFinds, ASumThatIsAnotherOnOneRank) {
  const auto last_place = [](const Request& request) {
    if (request.dtype != DType::f32 || request.reduce.kind() != ReduceOp::Kind::sum) return;
    for (std::size_t i = 0; i < request.output.count; ++i) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, bytes_of(request.output) + 4 * i, sizeof bits);
      const std::uint32_t exponent = bits >> 23 & 0xff;
      if (exponent < 100 || exponent > 150) continue;
      bits ^= 1;
      std::memcpy(bytes_of(request.output) + 4 * i, &bits, sizeof bits);
    }
  };
  const std::string loose = complaints({.op = Op::all_reduce}, last_place);
  EXPECT_NE(loose.find("all_reduce sum of f32: ranks 0 and 2 of 4 have different bits"),
            std::string::npos)
      << loose;
  EXPECT_EQ(loose.find("expected"), std::string::npos) << loose;
  const std::string strict = complaints({.op = Op::all_reduce, .canonical = true}, last_place);
  EXPECT_NE(strict.find("rank 2 of 4: all_reduce sum"), std::string::npos) << strict;
  EXPECT_NE(strict.find("expected 0x"), std::string::npos) << strict;
}

}  // namespace
}  // namespace tutti::conformance
