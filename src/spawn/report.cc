#include "spawn/report.h"

#include <cxxabi.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <string_view>
#include <utility>
#include <vector>

#include "net/system_error.h"

namespace tutti::spawning {
namespace {

constexpr std::uint64_t kMagic = 0x316e777073495454;  // "TTIspwn1"

/// Cut where it does not fit, which is said; the rest of a field is zero from the beginning.
template <std::size_t kBytes>
void put(std::array<char, kBytes>& field, std::string_view text) noexcept {
  constexpr std::string_view kCut = "... (cut)";
  const std::size_t fits = std::min(text.size(), kBytes - 1);
  std::copy_n(text.begin(), fits, field.begin());
  if (fits < text.size()) std::copy(kCut.rbegin(), kCut.rend(), field.rbegin() + 1);
}

template <std::size_t kBytes>
std::string get(const std::array<char, kBytes>& field) {
  return {field.begin(), std::find(field.begin(), field.end(), '\0')};
}

void put(Report& report, const Error& error) noexcept {
  const ErrorContext& context = error.context();
  report.code = static_cast<std::int32_t>(error.code());
  report.rank = context.rank;
  report.seq = context.seq;
  const std::size_t count = std::min(context.culprits.size(), report.culprits.size());
  std::copy_n(context.culprits.begin(), count, report.culprits.begin());
  report.culprit_count = static_cast<std::int32_t>(count);
  put(report.op, context.op);
  put(report.host, context.host);
  put(report.call_site, context.call_site);
  put(report.text, error.what());
}

}  // namespace

std::shared_ptr<std::byte> Reports::map(int fd, std::size_t byte_count) {
  void* const at = ::mmap(nullptr, byte_count, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return nullptr;
  return {static_cast<std::byte*>(at),
          [byte_count](std::byte* memory) { ::munmap(memory, byte_count); }};
}

Reports Reports::make(int world_size, const std::string& site, std::uint64_t callable, int times) {
  const std::size_t byte_count = kReportBytes * (1 + static_cast<std::size_t>(world_size));
  net::Fd fd(::memfd_create("tutti-spawn", MFD_CLOEXEC));
  if (!fd) throw net::system_error("cannot make memory for reports", errno);
  // Reserved now: a rank that writes must not find that there is no memory.
  if (const int failed = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(byte_count))) {
    throw net::system_error("cannot reserve memory for reports", failed);
  }
  std::shared_ptr<std::byte> memory = map(fd.get(), byte_count);
  if (!memory) throw net::system_error("cannot map memory for reports", errno);
  Reports reports(std::move(fd), std::move(memory));
  reports.call().magic = kMagic;
  reports.call().world_size = world_size;
  reports.call().times = times;
  reports.call().callable = callable;
  put(reports.call().site, site);
  return reports;
}

std::optional<Reports> Reports::find(int fd) {
  struct stat file = {};
  if (fd < 0 || ::fstat(fd, &file) != 0) return std::nullopt;
  const auto byte_count = static_cast<std::size_t>(file.st_size);
  if (byte_count < 2 * kReportBytes || byte_count % kReportBytes != 0) return std::nullopt;
  std::shared_ptr<std::byte> memory = map(fd, byte_count);
  if (!memory) return std::nullopt;
  Reports reports({}, std::move(memory));
  const Call& call = reports.call();
  const bool is_ours = call.magic == kMagic && call.world_size > 0 &&
                       byte_count / kReportBytes == 1 + static_cast<std::size_t>(call.world_size);
  if (!is_ours) return std::nullopt;
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  reports.fd_ = net::Fd(fd);
  return reports;
}

int run_and_report(const std::function<int(int rank)>& function, int rank, Report& report) {
  report.stage.store(Stage::runs);
  try {
    report.code = function(rank);
    report.stage.store(Stage::returned);
    const int seen = report.code & 0xff;  // of an exit code the rest is lost
    return report.code != 0 && seen == 0 ? 1 : seen;
  } catch (const Error& error) {
    put(report, error);
    report.stage.store(Stage::failed);
  } catch (const std::exception& thrown) {
    const char* const text = thrown.what();
    put(report.text, text != nullptr && *text != '\0' ? text : "an exception without a text");
    report.stage.store(Stage::threw);
  } catch (abi::__forced_unwind&) {
    report.stage.store(Stage::unwound);
    throw;
  } catch (...) {
    put(report.text, "an exception of a type not derived from std::exception");
    report.stage.store(Stage::threw);
  }
  return 1;
}

Error error_in(const Report& report) {
  ErrorContext context;
  context.op = get(report.op);
  context.seq = report.seq;
  context.rank = report.rank;
  const auto count =
      std::clamp<std::int32_t>(report.culprit_count, 0, std::int32_t(report.culprits.size()));
  context.culprits.assign(report.culprits.begin(), report.culprits.begin() + count);
  context.host = get(report.host);
  context.call_site = get(report.call_site);
  return Error(static_cast<ErrorCode>(report.code), get(report.text), std::move(context));
}

std::string text_in(const Report& report) { return get(report.text); }

}  // namespace tutti::spawning
