#include "control/hosts/vote_place.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "control/hosts/vote_frame.h"
#include "tutti/error.h"

namespace tutti::control {

struct VotePlace::Word {
  std::uint64_t term = 0;  // its lower 32 bits
  std::uint32_t slot = 0;
  std::uint32_t version = 0;  // 20 bits, never 0

  static constexpr std::uint32_t kVersions = 0xfffff;
  static Word unpack(std::uint64_t word) noexcept {
    return {word >> 32, static_cast<std::uint32_t>(word >> 20 & 0xfff),
            static_cast<std::uint32_t>(word & kVersions)};
  }
  std::uint64_t pack() const noexcept {
    return term << 32 | std::uint64_t{slot} << 20 | std::uint64_t{version};
  }
  Word next(SlotIndex owner) const noexcept {
    return {term, static_cast<std::uint32_t>(owner.value), version % kVersions + 1};
  }
};

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

std::optional<SlotIndex> VotePlace::relay_on(const Board& board) noexcept {
  const std::uint64_t word = board.header().vote.load();
  const Word found = Word::unpack(word);
  if (word == 0 || found.slot >= static_cast<std::uint32_t>(board.slot_count()))
    return std::nullopt;
  return SlotIndex(static_cast<int>(found.slot));
}

std::optional<HostVote> VotePlace::read(const Word& word) const {
  if (word.slot >= static_cast<std::uint32_t>(board_.slot_count())) return std::nullopt;
  const auto& place =
      board_.relay_area(SlotIndex(static_cast<int>(word.slot))).votes[word.version % 2];
  const std::uint64_t byte_count = place.byte_count.load(std::memory_order_acquire);
  if (byte_count > kVoteBytes) return std::nullopt;
  std::string bytes(byte_count, '\0');
  for (std::size_t i = 0; i < byte_count; i += 8) {
    const std::uint64_t each = place.words[i / 8].load(std::memory_order_acquire);
    for (std::size_t k = i; k < std::min<std::size_t>(i + 8, byte_count); ++k)
      bytes[k] = static_cast<char>(each >> (8 * (k - i)));
  }
  return decoded(bytes, host_count_);
}

bool VotePlace::move(const HostVote& vote, const Word& next) {
  const std::string bytes = encoded(vote);
  if (bytes.size() > kVoteBytes) {
    throw Error(ErrorCode::kInternal,
                fmt::format("status board: the host's vote for entry {} takes {} bytes, and there "
                            "is room for {}",
                            vote.vote.number + 1, bytes.size(), kVoteBytes));
  }
  own_.reserve_relay_area(bytes.size());
  auto& place = board_.relay_area(own_.index()).votes[next.version % 2];
  place.byte_count.store(bytes.size(), std::memory_order_release);
  for (std::size_t i = 0; i < bytes.size(); i += 8) {
    std::uint64_t word = 0;
    for (std::size_t k = i; k < std::min(i + 8, bytes.size()); ++k)
      word |= std::uint64_t{static_cast<unsigned char>(bytes[k])} << (8 * (k - i));
    place.words[i / 8].store(word, std::memory_order_release);
  }
  if (!board_.header().vote.compare_exchange_strong(word_, next.pack())) return false;
  word_ = next.pack();
  return true;
}

std::optional<HostVote> VotePlace::take_over(std::uint64_t next_entry) {
  word_ = board_.header().vote.load();
  const Word there = Word::unpack(word_);
  auto vote = word_ == 0 ? first_vote(host_count_) : read(there);
  // Read while another one wrote it: the word has moved, and so does not move now.
  if (!vote || vote->vote.number > next_entry + kMostBehind) return std::nullopt;
  vote->term = there.term + 1;
  Word next = there.next(own_.index());
  next.term = vote->term;
  if (!move(*vote, next)) return std::nullopt;
  return vote;
}

bool VotePlace::write(const HostVote& vote) {
  return move(vote, Word::unpack(word_).next(own_.index()));
}

}  // namespace tutti::control
