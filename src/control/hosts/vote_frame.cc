#include "control/hosts/vote_frame.h"

#include <algorithm>

#include "net/frame.h"

namespace tutti::control {

namespace {

constexpr std::uint32_t kVersion = 1;
/// Rounds and numbers grow by one: none comes near.
constexpr std::uint64_t kMostOfACount = std::uint64_t{1} << 62;

class Encoder {
 public:
  std::string frame(const VoteFrame& frame) && {
    out_.u32(kVersion);
    out_.u64(frame.term);
    vote(frame.vote);
    set(frame.hosts);
    out_.u32(frame.want ? 1 : 0);
    if (frame.want) entry(*frame.want);
    out_.u32(static_cast<std::uint32_t>(frame.entries.size()));
    for (const Entry& each : frame.entries) entry(each);
    ranks(frame.lost_before);
    return std::move(bytes_);
  }

 private:
  void vote(const Vote& vote) {
    out_.u64(vote.number);
    ballot(vote.promised);
    ballot(vote.accepted);
    if (!vote.accepted.is_none()) entry(vote.value);
    set(vote.cut_off);
    set(vote.gone);
  }
  void ballot(const Ballot& ballot) {
    out_.u64(ballot.round);
    out_.i64(ballot.host);
  }
  void entry(const Entry& entry) {
    out_.u32(static_cast<std::uint32_t>(entry.verdict.code));
    out_.u32(static_cast<std::uint32_t>(entry.verdict.groups.size()));
    for (const GroupId group : entry.verdict.groups) out_.u64(group);
    ranks(entry.verdict.culprits);
    out_.bytes(std::string_view(entry.verdict.text).substr(0, kMostEntryText));
    out_.i64(entry.verdict.finder.value);
    set(entry.out);
  }
  void ranks(const std::vector<WorldRank>& ranks) {
    out_.u32(static_cast<std::uint32_t>(ranks.size()));
    for (const auto [rank] : ranks) out_.u32(static_cast<std::uint32_t>(rank));
  }
  void set(const HostSet& set) {
    const std::vector<int> hosts = set.members();
    out_.u32(static_cast<std::uint32_t>(hosts.size()));
    for (const int host : hosts) out_.u32(static_cast<std::uint32_t>(host));
  }

  std::string bytes_;
  net::ByteWriter out_{&bytes_};
};

class Decoder {
 public:
  Decoder(std::string_view bytes, int host_count)
      : left_(bytes.size()), in_(bytes), host_count_(host_count) {}

  std::optional<VoteFrame> frame() && {
    VoteFrame frame;
    need(in_.u32() == kVersion);
    frame.term = in_.u64();
    vote(frame.vote);
    set(frame.hosts);
    const std::uint32_t wants = in_.u32();
    need(wants <= 1);
    if (wants == 1) entry(frame.want.emplace());
    const std::uint32_t entries = in_.u32();
    need(entries <= kKeptEntries && entries <= frame.vote.number);
    for (std::uint32_t i = 0; is_good() && i < entries; ++i) entry(frame.entries.emplace_back());
    ranks(frame.lost_before);
    if (!is_good() || !in_.at_end()) return std::nullopt;
    return frame;
  }

 private:
  bool is_good() const { return good_ && in_.ok(); }
  void need(bool holds) { good_ = good_ && holds; }

  void vote(Vote& vote) {
    vote.number = in_.u64();
    need(vote.number < kMostOfACount);
    ballot(vote.promised);
    ballot(vote.accepted);
    need(vote.accepted <= vote.promised);
    if (is_good() && !vote.accepted.is_none()) entry(vote.value);
    set(vote.cut_off);
    set(vote.gone);
    need(vote.gone.is_within(vote.cut_off));
  }
  void ballot(Ballot& ballot) {
    ballot.round = in_.u64();
    const std::int64_t host = in_.i64();
    need(ballot.round < kMostOfACount && host >= -1 && host < host_count_);
    need(host >= 0 || ballot.round == 0);
    if (is_good()) ballot.host = static_cast<int>(host);
  }
  void entry(Entry& entry) {
    const std::uint32_t code = in_.u32();
    need(code < kErrorCodeCount);
    if (is_good()) entry.verdict.code = static_cast<ErrorCode>(code);
    const std::uint32_t groups = in_.u32();
    need(groups <= kVerdictGroups);
    for (std::uint32_t i = 0; is_good() && i < groups; ++i)
      entry.verdict.groups.push_back(in_.u64());
    ranks(entry.verdict.culprits);
    entry.verdict.text = in_.bytes(kMostEntryText);
    const std::int64_t finder = in_.i64();
    need(finder >= -1 && finder <= INT32_MAX);
    if (is_good()) entry.verdict.finder = WorldRank(static_cast<int>(finder));
    set(entry.out);
  }
  /// None is more than `most`. Memory grows with what is there, not with what is announced.
  std::vector<int> numbers(std::uint32_t most) {
    std::vector<int> found;
    const std::uint32_t count = in_.u32();
    need(count <= kMostCulprits && count <= left_ / 4);
    for (std::uint32_t i = 0; is_good() && i < count; ++i) {
      const std::uint32_t number = in_.u32();
      need(number <= most);
      if (is_good()) found.push_back(static_cast<int>(number));
    }
    return found;
  }
  void ranks(std::vector<WorldRank>& ranks) { ranks = world_ranks(numbers(INT32_MAX)); }
  void set(HostSet& set) {
    if (host_count_ <= 0) return need(false);
    const std::vector<int> hosts = numbers(static_cast<std::uint32_t>(host_count_ - 1));
    need(std::is_sorted(hosts.begin(), hosts.end(), std::less_equal<>()));
    for (const int host : hosts) set.insert(host);
  }

  std::size_t left_;
  net::ByteReader in_;
  int host_count_;
  bool good_ = true;
};

}  // namespace

std::string encode(const VoteFrame& frame) { return Encoder().frame(frame); }

std::optional<VoteFrame> decode_vote_frame(std::string_view bytes, int host_count) {
  return Decoder(bytes, host_count).frame();
}

VoteFrame merged(VoteFrame earlier, VoteFrame later) {
  if (later.term < earlier.term) return earlier;
  const auto before = [](const VoteFrame& frame) {
    return frame.vote.number - frame.entries.size();
  };
  // Entries that only the earlier one tells, if the later one goes on from there.
  const bool goes_on = before(later) <= earlier.vote.number && before(earlier) < before(later);
  const std::uint64_t all = later.vote.number - before(earlier);
  if (!goes_on || all > kKeptEntries) return later;
  const auto more = static_cast<std::ptrdiff_t>(before(later) - before(earlier));
  later.entries.insert(later.entries.begin(), earlier.entries.begin(),
                       earlier.entries.begin() + more);
  later.lost_before = std::move(earlier.lost_before);
  return later;
}

}  // namespace tutti::control
