// Where rank 0 of a job serves its store, as it says in a file that all ranks see.
//
// The *notice* is a key of the store in that file. Rank 0 *posts* it once it serves, keeps it there
// while ranks come, and takes it down when all have come. A job that has died leaves one that
// nobody answers for: the next rank 0 puts its own in the place. The nonce of its claim tells a job
// from all others that have met, or meet, at the same path.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "net/tcp.h"
#include "rendezvous/claim.h"
#include "tutti/types.h"

namespace tutti::rendezvous {

struct Notice {
  Claim claim;                         ///< of rank 0; its nonce is the job's
  std::optional<net::TcpAddress> tcp;  ///< empty: ranks of its host alone can come
};
std::string encode(const Notice& notice);
std::optional<Notice> decode_notice(const std::string& text);

/// Opened anew for each call: users remove such files, and some file systems show what other hosts
/// have written to who opens them only.
class NoticeFile {
 public:
  /// Worlds of different names have notices of their own.
  NoticeFile(std::string path, std::string world);

  /// What stands there; empty: nothing.
  /// Errors  kSystem: the file cannot be opened, locked or written. kTimeout: it stays locked.
  ///         kInvalidArgument: it is no store's file.
  std::string read() const;
  /// Writes `now` if `before` stands there; what stands there then.
  std::string replace(const std::string& before, const std::string& now) const;

  const std::string& path() const noexcept { return path_; }

 private:
  template <class Call>
  std::string in_store(Call&& call) const;

  const std::string path_;
  const std::string key_;
};

/// A notice of this process, until it takes it down.
class Posted {
 public:
  Posted(NoticeFile file, std::string text) : file_(std::move(file)), text_(std::move(text)) {}
  ~Posted() { take_down(); }
  Posted(const Posted&) = delete;
  Posted& operator=(const Posted&) = delete;

  /// Now and then: posts it again if the file was removed meanwhile.
  /// Errors  kInvalidArgument: another job's stands in its place, with both.
  void look();
  void take_down() noexcept;

 private:
  const NoticeFile file_;
  const std::string text_;
  bool is_down_ = false;
  Deadline::Clock::time_point next_look_ = {};
};

}  // namespace tutti::rendezvous
