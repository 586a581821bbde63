// What ranks tell their spawner: memory that they share, with a *report* per rank and a page about
// the *call* that made them.
//
// A rank writes its report alone, its stage last. Nothing is sent, so nobody waits: what a rank had
// told is there however it ended. A rank by exec finds the memory by its descriptor.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "net/fd.h"
#include "tutti/error.h"

namespace tutti::spawning {

enum class Stage : std::uint32_t {
  starts,
  not_executed,  ///< errno is in `code`
  runs,          ///< its function
  returned,      ///< with `code`
  failed,        ///< with an Error
  threw,         ///< another exception, or no exception at all
  unwound,       ///< by pthread_exit, or because somebody has cancelled its thread
};

struct Report {
  std::atomic<Stage> stage;
  std::int32_t code;  ///< what the function returned; an ErrorCode
  std::int32_t rank;  ///< of the Error's context, as all below but the last
  std::uint64_t seq;
  std::int32_t culprit_count;
  std::array<std::int32_t, 256> culprits;
  std::array<char, 64> op;
  std::array<char, 256> host;
  std::array<char, 256> call_site;
  std::array<char, 14 * 1024> text;  ///< what() of the exception
};

/// The call of spawn, which a rank by exec must come to.
struct Call {
  std::uint64_t magic;
  std::int32_t world_size;
  std::int32_t times;           ///< so often it had been made, this time included
  std::uint64_t callable;       ///< which type of function it was given
  std::atomic<pid_t> keeper;    ///< the parent of all ranks
  std::array<char, 1024> site;  ///< "train.cc:88", with the whole path
};

class Reports {
 public:
  /// Errors  kSystem.
  static Reports make(int world_size, const std::string& site, std::uint64_t callable, int times);
  /// Those behind a descriptor that was handed down; empty: it is something else.
  static std::optional<Reports> find(int fd);

  int fd() const noexcept { return fd_.get(); }
  Call& call() const noexcept { return *reinterpret_cast<Call*>(memory_.get()); }
  Report& of(int rank) const noexcept {
    return *reinterpret_cast<Report*>(memory_.get() + kReportBytes * (1 + std::size_t(rank)));
  }

 private:
  static constexpr std::size_t kReportBytes = 16 * 1024;
  static_assert(sizeof(Report) <= kReportBytes && sizeof(Call) <= kReportBytes);
  Reports(net::Fd fd, std::shared_ptr<std::byte> memory) noexcept
      : fd_(std::move(fd)), memory_(std::move(memory)) {}
  static std::shared_ptr<std::byte> map(int fd, std::size_t byte_count);

  net::Fd fd_;
  std::shared_ptr<std::byte> memory_;
};

/// Runs `function` as that rank, and reports how it ended. Returns the exit code. pthread_exit goes
/// on behind it, as it must.
int run_and_report(const std::function<int(int rank)>& function, int rank, Report& report);

/// The Error that stands in a report whose stage is `failed`.
Error error_in(const Report& report);
std::string text_in(const Report& report);

}  // namespace tutti::spawning
