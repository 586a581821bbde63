#include "control/hosts/vote_place.h"

#include <fmt/format.h>

#include <string>

#include "control/hosts/vote_frame.h"
#include "tutti/error.h"

namespace tutti::control {

namespace {

/// A frame without a wish is the same values.
std::string encoded(const HostVote& host) {
  for (HostVote kept = host;; forget_oldest(kept)) {
    std::string bytes =
        encode({kept.term, kept.vote, {}, kept.entries, kept.hosts, kept.lost_before});
    if (bytes.size() <= kVoteBytes || kept.entries.empty()) return bytes;
  }
}

std::optional<HostVote> decoded(std::string_view bytes, int host_count) {
  auto frame = decode_vote_frame(bytes, host_count);
  if (!frame) return std::nullopt;
  return HostVote{frame->term, std::move(frame->vote), std::move(frame->hosts),
                  std::move(frame->entries), std::move(frame->lost_before)};
}

}  // namespace

bool VotePlace::put(std::uint64_t term, const HostVote& vote) {
  const std::string bytes = encoded(vote);
  if (bytes.size() > kVoteBytes) {
    throw Error(ErrorCode::kInternal,
                fmt::format("status board: the host's vote for entry {} takes {} bytes, and there "
                            "is room for {}",
                            vote.vote.number + 1, bytes.size(), kVoteBytes));
  }
  return place_.write(term, bytes);
}

std::optional<HostVote> VotePlace::take_over(std::uint64_t next_entry) {
  const std::optional<std::string> bytes = place_.look();
  if (!bytes) return std::nullopt;
  auto vote = bytes->empty() ? first_vote(host_count_) : decoded(*bytes, host_count_);
  // Read while another one wrote it: the word has moved, and so does not move now.
  if (!vote || vote->vote.number > next_entry + kMostBehind) return std::nullopt;
  vote->term = place_.term() + 1;
  if (!put(vote->term, *vote)) return std::nullopt;
  return vote;
}

bool VotePlace::write(const HostVote& vote) { return put(place_.term(), vote); }

}  // namespace tutti::control
