#include "launch/log_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>

#include "base/of_rank.h"
#include "net/fd.h"
#include "tutti/error.h"

namespace tutti::launch {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

std::optional<int> parse_number(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_number = error == std::errc() && end == text.data() + text.size() && number >= 0;
  return is_number ? std::optional(number) : std::nullopt;
}

std::optional<StreamSet> parse_set(std::string_view text) {
  const auto number = parse_number(text);
  if (!number || *number > kBothStreams) return std::nullopt;
  return static_cast<StreamSet>(*number);
}

template <class Take>
void for_each_entry(std::string_view text, const Take& take) {
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    take(text.substr(begin, end - begin));
    begin = end + 1;
  }
}

void check_rank(std::string_view word, std::string_view text, int rank, int ranks) {
  if (rank < ranks) return;
  refuse(fmt::format("{} {}: there is no rank {}: the job has ranks 0 to {}", word, text, rank,
                     ranks - 1));
}

/// Opens a regular file to write to it. A pipe or a terminal is refused: it takes nothing while
/// nobody reads it. `why`: it could not be opened.
net::Fd open_file(const std::string& path, int how, std::string* why) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  net::Fd file(::open(path.c_str(), kFlags | how, 0666));
  *why = file ? "" : std::strerror(errno);
  struct stat status = {};
  const int found = file ? ::fstat(file.get(), &status) : ::stat(path.c_str(), &status);
  if (found != 0 || S_ISREG(status.st_mode)) return file;
  *why = "it is no regular file";
  return {};
}

std::size_t place_of(int rank, Stream stream) noexcept {
  return 2 * static_cast<std::size_t>(rank) + index(stream);
}

std::string path_of(const LogPlan& plan, int attempt, int rank, Stream stream) {
  const char* const name = stream == Stream::out ? "stdout" : "stderr";
  if (plan.names == LogPlan::Names::torchrun) {
    return fmt::format("{}/attempt_{}/{}/{}.log", plan.folder, attempt, rank, name);
  }
  const std::size_t digits = fmt::formatted_size("{}", plan.streams.size() - 1);
  return fmt::format("{}/{}/rank.{:0{}}/{}", plan.folder, attempt + 1, rank, digits, name);
}

}  // namespace

std::vector<StreamSet> parse_streams(std::string_view word, std::string_view text, int ranks) {
  if (const auto all = parse_set(text)) {
    return std::vector<StreamSet>(static_cast<std::size_t>(ranks), *all);
  }
  std::vector<StreamSet> streams(static_cast<std::size_t>(ranks), kNoStream);
  for_each_entry(text, [&](std::string_view entry) {
    const std::size_t colon = entry.find(':');
    const auto rank = parse_number(entry.substr(0, colon));
    const auto set = colon == entry.npos ? std::nullopt : parse_set(entry.substr(colon + 1));
    if (!rank || !set) {
      refuse(
          fmt::format("{} {}: cannot read \"{}\"; give 0 (none), 1 (stdout), 2 (stderr) or 3 "
                      "(both), or RANK:NUMBER,...",
                      word, text, entry));
    }
    check_rank(word, text, *rank, ranks);
    of_rank(streams, *rank) = *set;
  });
  return streams;
}

std::vector<bool> parse_ranks(std::string_view word, std::string_view text, int ranks) {
  std::vector<bool> named(static_cast<std::size_t>(ranks));
  for_each_entry(text, [&](std::string_view entry) {
    const std::size_t dash = entry.find('-');
    const auto first = parse_number(entry.substr(0, dash));
    const auto last = dash == entry.npos ? first : parse_number(entry.substr(dash + 1));
    if (!first || !last || *first > *last) {
      refuse(fmt::format("{} {}: cannot read \"{}\"; give ranks, as in 0,2-3", word, text, entry));
    }
    check_rank(word, text, *last, ranks);
    for (int rank = *first; rank <= *last; ++rank) of_rank(named, rank) = true;
  });
  return named;
}

LogFiles::LogFiles(const LogPlan& plan, int attempt) : paths_(2 * plan.streams.size()) {
  if (plan.folder.empty()) return;
  for (std::size_t rank = 0; rank < plan.streams.size(); ++rank) {
    for (const Stream stream : {Stream::out, Stream::err}) {
      if (!has(plan.streams[rank], stream)) continue;
      std::string path = path_of(plan, attempt, static_cast<int>(rank), stream);
      std::error_code error;
      std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
      if (error) {
        refuse(fmt::format("cannot make the folder of {}: {}; {}", path, error.message(),
                           plan.way_out));
      }
      std::string why;
      if (!open_file(path, O_TRUNC, &why)) {
        refuse(fmt::format("cannot write {}: {}; {}", path, why, plan.way_out));
      }
      paths_[2 * rank + index(stream)] = std::move(path);
    }
  }
}

bool LogFiles::keeps(int rank, Stream stream) const noexcept {
  const std::size_t place = place_of(rank, stream);
  return place < paths_.size() && !paths_[place].empty();
}

std::string LogFiles::write(int rank, Stream stream, std::string_view bytes) {
  if (!keeps(rank, stream)) return {};
  std::string& path = paths_[place_of(rank, stream)];
  std::string why;
  const net::Fd file = open_file(path, O_APPEND, &why);
  while (why.empty() && !bytes.empty()) {
    const ssize_t wrote = ::write(file.get(), bytes.data(), bytes.size());
    if (wrote > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(wrote));
    } else if (errno != EINTR) {
      why = std::strerror(errno);
    }
  }
  if (why.empty()) return {};
  return fmt::format(
      "tutti: cannot write {}: {}; what rank {} prints from now on is not kept there",
      std::exchange(path, {}), why, rank);
}

}  // namespace tutti::launch
