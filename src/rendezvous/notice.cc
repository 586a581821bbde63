#include "rendezvous/notice.h"

#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <utility>

#include "tutti/error.h"
#include "tutti/store.h"

namespace tutti::rendezvous {
namespace {

constexpr const char* kNoTcp = "-";

/// Whoever has the file locked has it for milliseconds.
constexpr std::chrono::milliseconds kCallTime{1000};
/// How soon a file that was removed is made again.
constexpr std::chrono::seconds kPeriod{1};
/// How often a file is opened again that was removed between its opening and the call.
constexpr int kOpenings = 4;

}  // namespace

std::string encode(const Notice& notice) {
  return fmt::format("{} {}", notice.tcp ? notice.tcp->text() : kNoTcp, encode(notice.claim));
}

std::optional<Notice> decode_notice(const std::string& text) {
  const std::size_t space = text.find(' ');
  if (space == std::string::npos) return std::nullopt;
  std::optional<Claim> claim = decode_claim(text.substr(space + 1));
  if (!claim) return std::nullopt;
  Notice notice{std::move(*claim), std::nullopt};
  const std::string tcp = text.substr(0, space);
  if (tcp == kNoTcp) return notice;
  notice.tcp = net::TcpAddress::parse(tcp);
  if (!notice.tcp || notice.tcp->is_wildcard()) return std::nullopt;
  return notice;
}

NoticeFile::NoticeFile(std::string path, std::string world)
    : path_(std::move(path)), key_("notice/" + std::move(world)) {}

template <class Call>
std::string NoticeFile::in_store(Call&& call) const {
  for (int left = kOpenings;;) {
    const std::shared_ptr<Store> store = make_file_store(path_);
    try {
      return call(*store);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kSystem || --left == 0) throw;
    }
  }
}

std::string NoticeFile::read() const {
  return in_store([&](Store& store) { return store.try_get(key_, kCallTime).value_or(""); });
}

std::string NoticeFile::replace(const std::string& before, const std::string& now) const {
  return in_store([&](Store& store) { return store.compare_set(key_, before, now, kCallTime); });
}

void Posted::look() {
  const auto now = Deadline::Clock::now();
  if (is_down_ || now < next_look_) return;
  next_look_ = now + kPeriod;
  std::string there;
  try {
    there = file_.replace("", text_);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInvalidArgument) throw;
    return;  // those who have come need it no more, and for the others it is tried again
  }
  if (there == text_) return;
  const std::optional<Notice> own = decode_notice(text_), other = decode_notice(there);
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("file://{} is used by two jobs: rank 0 of this one is {}, and {} has "
                          "taken its place there. Give each job a path of its own, and start "
                          "them again",
                          file_.path(), describe_with_host(own->claim),
                          other ? describe_with_host(other->claim) : "another program"));
}

void Posted::take_down() noexcept {
  if (std::exchange(is_down_, true)) return;
  try {
    file_.replace(text_, "");
  } catch (const std::exception&) {  // nobody will answer for it
  }
}

}  // namespace tutti::rendezvous
