// The store in a file that all ranks see: a log of the calls that have changed something.
//
// Whoever has the file locked reads what was added since its own last call, does its call on its
// own table, and appends the call if it changes anything: so all tables are the same. What a
// process that was killed has appended in part is cut off by the next that appends. The first call
// tells such a file from others: its header is there whole, since a kill cuts between pages, and
// what an error has cut is taken back.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/signals.h"
#include "net/fd.h"
#include "net/frame.h"
#include "net/poller.h"
#include "net/system_error.h"
#include "store/call_store.h"
#include "store/table.h"
#include "tutti/store.h"

namespace tutti {
namespace {

using Clock = Deadline::Clock;
using std::chrono::milliseconds;
using store::Command;

constexpr milliseconds kLongestPause{10};
/// Others have the file for less than this, unless they are stopped; however short a call's time.
constexpr milliseconds kLockTime{250};

/// Whether it stands in files.
bool may_change(Command command) {
  return command == Command::set || command == Command::add || command == Command::append ||
         command == Command::compare_set || command == Command::erase;
}

bool changes(const store::Call& call, const store::Answer& answer) {
  const bool is_conditional =
      call.command == Command::compare_set || call.command == Command::erase;
  return may_change(call.command) && (!is_conditional || answer.number != 0);
}

/// Whether the log of a store begins like this.
bool is_log(std::span<const std::byte> begin) {
  net::ByteReader header(net::text_of(begin));
  const std::uint32_t body_bytes = header.u32();
  const auto command = static_cast<Command>(header.u32());
  const std::uint64_t id = header.u64();
  return header.ok() && body_bytes <= store::kMaxCallBytes && may_change(command) && id == 0;
}

class FileStore final : public store::CallStore {
 public:
  explicit FileStore(std::string path)
      : path_(std::move(path)), fd_(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    if (!fd_) throw net::system_error(fmt::format("cannot open the store's file {}", path_), errno);
  }

 private:
  store::Answer perform(const store::Call& call, Timeout timeout) override;
  /// The answer; empty: it waits for keys, which are *missing.
  std::optional<store::Answer> try_perform(const store::Call& call,
                                           std::vector<std::string>* missing);
  /// Against other threads and other processes.
  void lock(Deadline& deadline);
  void unlock() noexcept;
  int set_lock(short kind) noexcept;
  Error cannot_lock(int problem) const;
  void check_file() const;
  void read_news();
  void write_down(const store::Call& call);
  [[noreturn]] void fail(std::string_view what, int problem = errno) const {
    throw net::system_error(fmt::format("cannot {} the store's file {}", what, path_), problem);
  }
  [[noreturn]] void refuse() const {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{} is no store's file of Tutti: give another path, or remove it", path_));
  }

  const std::string path_;
  const net::Fd fd_;
  const pid_t pid_ = ::getpid();
  std::mutex mutex_;  // guards what follows; held while the file is locked
  store::Table table_;
  off_t read_to_ = 0;  // whole frames
};

/// All of the file, for this opening of it (not for the process: its threads exclude each other as
/// well). Such locks of fcntl are those that file systems keep between hosts, if any. 0, or the
/// number of the error.
int FileStore::set_lock(short kind) noexcept {
  struct flock whole {};
  whole.l_type = kind;
  whole.l_whence = SEEK_SET;
  return ::fcntl(fd_.get(), F_OFD_SETLK, &whole) == 0 ? 0 : errno;
}

Error FileStore::cannot_lock(int problem) const {
  const bool is_unable = problem == ENOLCK || problem == ENOSYS || problem == EOPNOTSUPP;
  return net::system_error(
      fmt::format("cannot lock the store's file {}{}", path_,
                  is_unable
                      ? " (its file system keeps no locks between hosts, or its lock service "
                        "does not run: give a path on another one, or meet at tcp://HOST:PORT)"
                      : ""),
      problem);
}

void FileStore::lock(Deadline& deadline) {
  milliseconds backoff(1);
  for (;;) {
    if (mutex_.try_lock()) {
      const int problem = set_lock(F_WRLCK);
      if (problem == 0) return;
      mutex_.unlock();
      if (problem != EAGAIN && problem != EACCES && problem != EINTR) throw cannot_lock(problem);
    }
    if (net::pause(backoff, deadline) == net::PollResult::expired) {
      throw Error(
          ErrorCode::kTimeout,
          fmt::format("the store's file {} stayed locked until the deadline: a process that "
                      "uses it is stopped (`fuser {}` shows who has it open)",
                      path_, path_));
    }
    backoff = std::min(backoff * 2, kLongestPause);
  }
}

void FileStore::unlock() noexcept {
  set_lock(F_UNLCK);
  mutex_.unlock();
}

void FileStore::check_file() const {
  struct stat now {};
  if (::fstat(fd_.get(), &now) != 0) fail("look at");
  if (now.st_nlink > 0 && now.st_size >= read_to_) return;
  throw Error(
      ErrorCode::kSystem,
      fmt::format("the store's file {} was removed or cut while it was in use: give each job "
                  "a path of its own, and start it again",
                  path_));
}

void FileStore::read_news() {
  net::FrameDecoder decoder(store::kMaxCallBytes);
  // Not on the stack: by `ulimit -s 64` a thread has no more than this.
  constexpr std::size_t kReadBytes = std::size_t{64} << 10;
  const auto room = std::make_unique_for_overwrite<std::byte[]>(kReadBytes);
  const std::span chunk(room.get(), kReadBytes);
  for (off_t at = read_to_;;) {
    const ssize_t got = ::pread(fd_.get(), chunk.data(), chunk.size(), at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("read");
    if (got == 0) return;  // what is left in the decoder was appended in part
    const std::span news = chunk.first(static_cast<std::size_t>(got));
    if (at == 0 && !is_log(news)) refuse();
    at += got;
    decoder.feed(news);
    net::Frame frame;
    auto next = decoder.next(&frame);
    for (; next == net::FrameDecoder::Next::frame; next = decoder.next(&frame)) {
      const std::optional<store::Call> call = store::decode_call(frame);
      if (!call || !may_change(call->command)) break;
      table_.apply(*call);
      read_to_ += static_cast<off_t>(net::kFrameHeaderBytes + frame.body.size());
    }
    if (next == net::FrameDecoder::Next::more) continue;
    refuse();
  }
}

void FileStore::write_down(const store::Call& call) {
  std::string bytes;
  net::append_frame(&bytes, store::encode(call, 0));
  const TooLargeIsAnError too_large_is_an_error;
  if (::ftruncate(fd_.get(), read_to_) != 0) fail("cut");
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t wrote = ::pwrite(fd_.get(), bytes.data() + done, bytes.size() - done,
                                   read_to_ + static_cast<off_t>(done));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      const int problem = errno;
      [[maybe_unused]] const int cut = ::ftruncate(fd_.get(), read_to_);
      fail("write", problem);
    }
    done += static_cast<std::size_t>(wrote);
  }
  read_to_ += static_cast<off_t>(bytes.size());
}

std::optional<store::Answer> FileStore::try_perform(const store::Call& call,
                                                    std::vector<std::string>* missing) {
  check_file();
  read_news();
  std::optional<store::Answer> answer = table_.apply(call);
  if (!answer) *missing = table_.missing(call.keys);
  if (!answer || !changes(call, *answer)) return answer;
  try {
    write_down(call);
  } catch (...) {  // what nobody else sees does not count here either: it is all read anew
    table_ = store::Table();
    read_to_ = 0;
    throw;
  }
  return answer;
}

store::Answer FileStore::perform(const store::Call& call, Timeout timeout) {
  if (pid_ != ::getpid()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("the store's file {} is used in a forked child, which shares the lock of "
                    "its parent: call make_file_store there",
                    path_));
  }
  Deadline deadline = Deadline::after(std::min(timeout, store::kLongest));
  deadline.start(Clock::now());
  for (milliseconds backoff(1);; backoff = std::min(backoff * 2, kLongestPause)) {
    Deadline locking = Deadline::at(
        Clock::now() + std::max<std::chrono::nanoseconds>(deadline.left(Clock::now()), kLockTime));
    std::vector<std::string> missing;
    lock(locking);
    try {
      std::optional<store::Answer> answer = try_perform(call, &missing);
      unlock();
      if (answer) return std::move(*answer);
    } catch (...) {
      unlock();
      throw;
    }
    if (net::pause(backoff, deadline) != net::PollResult::expired) continue;
    throw store::missing_error(call.command, missing,
                               std::chrono::duration<double>(timeout).count(),
                               fmt::format("store in the file {}", path_));
  }
}

}  // namespace

std::shared_ptr<Store> make_file_store(std::string path) {
  if (path.empty()) throw Error(ErrorCode::kInvalidArgument, "make_file_store: no path is given");
  return std::make_shared<FileStore>(std::move(path));
}

}  // namespace tutti
