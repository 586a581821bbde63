// Communication hooks without libtorch: buckets of plain memory on ranks that are threads.
#include "ddp/hook.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <regex>
#include <stdexcept>

#include "ddp/compress.h"
#include "ddp/reducer.h"
#include "tutti/test_kit.h"

namespace tutti::ddp {
namespace {

void check(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error("check failed: " + what);
}

/// Two buckets whose gradients are `value(rank, index)`, reduced by `hook` as a backward would.
template <class Number>
struct Step {
  Step(ProcessGroup& the_group, NamedHook the_hook)
      : group(the_group),
        hook(std::move(the_hook)),
        reducer(2, {[this](std::size_t bucket) { launch(bucket); },
                    [this](std::size_t bucket) { works[bucket].wait(); }, [](std::size_t) {}}) {
    reducer.set_buckets(assign_buckets(std::vector<ParameterShape>(2, {kCount}), reverse_order(2),
                                       {.first_bytes = 1, .bytes = 1}));
  }
  void launch(std::size_t bucket) {
    purposes[bucket] = {bucket, "bucket " + std::to_string(bucket + 1) + " of 2"};
    const Where where = Where::current("train.cc", 7).with(purposes[bucket]);
    works[bucket] =
        start_mean(hook, {Buffer(gradients[bucket]), ReduceOp::avg, bucket, 2, where}, group);
  }
  template <class Value>
  void run(Value&& value) {
    for (auto& bucket : gradients) {
      bucket.resize(kCount);
      for (std::size_t i = 0; i < kCount; ++i) bucket[i] = value(group.rank(), i);
    }
    for (const std::size_t parameter : {1, 0}) reducer.mark_ready(parameter);
    reducer.finish();
  }

  static constexpr std::size_t kCount = 1000;
  ProcessGroup& group;
  NamedHook hook;
  std::vector<Number> gradients[2];
  Purpose purposes[2];
  Work works[2];
  Reducer reducer;
};

const auto kOneHost = test_kit::RunOptions{};
const auto kTwoHosts = test_kit::RunOptions{.hosts = {0, 1, 1}};

void on_three(const std::function<void(ProcessGroup&)>& body) {
  for (const auto& options : {kOneHost, kTwoHosts}) {
    EXPECT_NO_THROW(test_kit::run_ranks(3, body, options));
  }
}

TEST(Hook, WithoutOneAndWithOneThatEndsInThen) {
  on_three([](ProcessGroup& world) {
    const auto value = [](int rank, std::size_t i) { return float(rank) + float(i); };
    Step<float> plain(world, {"none", {}});
    Step<float> doubled(world, {"doubled", [](const GradientBucket& bucket, ProcessGroup& group) {
                                  auto* const all = static_cast<float*>(bucket.gradients.data);
                                  const std::size_t count = bucket.gradients.count;
                                  return group
                                      .all_reduce(bucket.gradients, {.op = bucket.mean}, async,
                                                  bucket.where)
                                      .then([all, count](const Error* failure) {
                                        if (failure != nullptr) return;
                                        for (std::size_t i = 0; i < count; ++i) all[i] *= 2;
                                      });
                                }});
    for (int step = 0; step < 3; ++step) {
      plain.run(value);
      doubled.run(value);
      for (std::size_t i = 0; i < Step<float>::kCount; ++i) {
        check(plain.gradients[0][i] == 1 + float(i), "the mean");
        check(doubled.gradients[1][i] == 2 * (1 + float(i)), "twice the mean");
      }
    }
  });
}

template <class Number>
void check_compression(const NamedHook& hook, double relative) {
  on_three([&](ProcessGroup& world) {
    Step<Number> step(world, hook.name == "bf16" ? NamedHook{"bf16", bf16_compress()}
                                                 : NamedHook{"f16", f16_compress()});
    const auto value = [](int rank, std::size_t i) {
      return Number(std::sin(double(i) + rank) * (i % 3 == 0 ? 1e-3 : 100));
    };
    for (int round = 0; round < 2; ++round) {  // the second in memory that is there
      step.run(value);
      for (std::size_t i = 0; i < step.kCount; ++i) {
        double mean = 0, most = 0;
        for (int rank = 0; rank < 3; ++rank) {
          mean += double(value(rank, i)) / 3;
          most = std::max(most, std::abs(double(value(rank, i))));
        }
        check(std::abs(double(step.gradients[0][i]) - mean) <= 2 * relative * most,
              "near the mean");
      }
      std::vector<Number> first = step.gradients[1];
      world.broadcast(first);
      check(std::memcmp(first.data(), step.gradients[1].data(), step.kCount * sizeof(Number)) == 0,
            "the same bits on all ranks");
    }
  });
}

TEST(Compress, TheMeanIsNearAndTheSameOnAllRanks) {
  for (const char* name : {"bf16", "f16"}) {
    const double relative = name[0] == 'b' ? 0x1p-8 : 0x1p-11;
    check_compression<float>({name, {}}, relative);
    check_compression<double>({name, {}}, relative);
  }
}

TEST(Compress, SumsDoNotOverflowAndOtherDtypesGoAsTheyAre) {
  on_three([](ProcessGroup& world) {
    Step<float> large(world, {"f16", f16_compress()});
    large.run([](int, std::size_t) { return 60000.f; });  // three of them are beyond f16
    check(large.gradients[0][5] == 60000.f, "the mean of large ones");
    Step<float> too_large(world, {"f16", f16_compress()});
    too_large.run([](int rank, std::size_t) { return rank == 1 ? 65520.f : 0.f; });
    check(std::isinf(too_large.gradients[0][5]), "what f16 cannot hold is infinite on all ranks");
    Step<std::complex<float>> complex(world, {"bf16", bf16_compress()});
    complex.run([](int rank, std::size_t i) {
      return std::complex<float>(1.f + float(rank) / 4096, float(i));
    });
    check(complex.gradients[0][9] == std::complex<float>(1.f + 1.f / 4096, 9), "not rounded");
  });
}

TEST(Compress, EveryValueIsThatOfTheTypesAndSoIsEveryTie) {
  std::vector<std::uint16_t> halves(65536);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  std::vector<float> floats(halves.size());
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const auto value_of = [&](std::uint16_t bits) {
      return dtype == DType::f16 ? float(float16::from_bits(bits))
                                 : float(bfloat16::from_bits(bits));
    };
    const auto bits_of = [&](float value) {
      return dtype == DType::f16 ? float16(value).bits : bfloat16(value).bits;
    };
    widen(Buffer(halves.data(), halves.size(), dtype), Buffer(floats));
    for (std::size_t i = 0; i < halves.size(); ++i) {
      const float expected = value_of(halves[i]);
      ASSERT_TRUE(floats[i] == expected || (std::isnan(floats[i]) && std::isnan(expected))) << i;
      ASSERT_EQ(std::signbit(floats[i]), std::signbit(expected)) << i;
    }
    std::vector<float> values;
    for (std::size_t i = 0; i < halves.size(); ++i) {
      const float next = value_of(static_cast<std::uint16_t>(i + 1));
      const float tie = std::isfinite(floats[i]) && std::isfinite(next)
                            ? float((double(floats[i]) + next) / 2)
                            : floats[i];
      for (const float about :
           {floats[i], tie, std::nextafter(tie, 0.f), std::nextafter(tie, 2 * tie)}) {
        values.push_back(about);
      }
    }
    for (const float special : {65519.99f, 65520.f, 3e38f, 1e-45f, 2.9e-8f, 2.98023e-8f, -0.f}) {
      values.push_back(special);
      values.push_back(-special);
    }
    std::vector<std::uint16_t> narrowed(values.size());
    narrow(Buffer(values), Buffer(narrowed.data(), narrowed.size(), dtype));
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(values[i])) {
        ASSERT_TRUE(std::isnan(value_of(narrowed[i])));
      } else {
        ASSERT_EQ(narrowed[i], bits_of(values[i])) << values[i];
      }
    }
  }
}

/// The message of the tutti::Error that a step with this hook ends in, on every rank.
std::string failure_of(const CommunicationHook& function) {
  std::string text;
  test_kit::run_ranks(1, [&](ProcessGroup& world) {
    Step<float> step(world, {"mine", function});
    const auto run = [&] { step.run([](int, std::size_t) { return 1.f; }); };
    try {
      run();
    } catch (const Error& error) {
      check(error.code() == ErrorCode::kInvalidArgument, "code");
      text = error.what();
      step.reducer.reset();
      step.hook.function = nullptr;
      run();  // nothing stale
      check(step.gradients[0][0] == 1, "the next step");
    }
  });
  return text;
}

TEST(Hook, OneThatThrowsOrReturnsNoWorkIsNamedWithItsBucket) {
  const std::string who = "rank 0: the communication hook 'mine' for bucket 1 of 2 ";
  EXPECT_EQ(failure_of([](const GradientBucket&, ProcessGroup&) -> Work {
              throw std::out_of_range("no such layer");
            }),
            who + "threw: no such layer");
  EXPECT_EQ(failure_of([](const GradientBucket&, ProcessGroup&) -> Work { throw 7; }),
            who + "threw something that is not an exception");
  EXPECT_EQ(failure_of([](const GradientBucket&, ProcessGroup&) { return Work(); }),
            who +
                "returned no Work; return that of an operation with tutti::async, or of `then` "
                "behind it");
  EXPECT_TRUE(std::regex_match(
      failure_of([](const GradientBucket& bucket, ProcessGroup& group) {
        return group.all_reduce(bucket.gradients, async).then([](const Error*) {
          throw std::runtime_error("no memory");
        });
      }),
      std::regex("all_reduce #\\d+ \\(rank 0\\) at hook_test.cc:\\d+: the callback given to "
                 "Work::then threw: no memory\\.")));
  EXPECT_EQ(failure_of([](const GradientBucket&, ProcessGroup&) -> Work {
              throw Error(ErrorCode::kInvalidArgument, "an Error as it is");
            }),
            "an Error as it is");
}

TEST(Hook, NamesThatDifferAreToldOnAllRanks) {
  on_three([](ProcessGroup& world) {
    const auto told = [&](const NamedHook& own) {
      try {
        check_same_hook(world, "model", own, Where::current());
      } catch (const Error& error) {
        check(error.code() == ErrorCode::kCollectiveMismatch, "code");
        return std::string(error.what());
      }
      return std::string();
    };
    const std::string who = "model, rank " + std::to_string(world.rank()) +
                            ": the ranks' communication hooks differ: rank 0 has ";
    const bool second = world.rank() == 1;
    check(told({"same", bf16_compress()}).empty(), "the same name");
    check(told({second ? "f16" : "bf16", f16_compress()}) ==
              who + "'bf16', rank 1 has 'f16'. Set the same one on every rank.",
          "names");
    check(told({"x", second ? CommunicationHook() : f16_compress()}) ==
              who + "'x', rank 1 has 'x (none)'. Set the same one on every rank.",
          "one without");
  });
}

}  // namespace
}  // namespace tutti::ddp
