#include "control/board/log.h"

#include "control/board/layout.h"

namespace tutti::control {

namespace {

/// A word of the log: which entry it is, and where the verdict stands.
struct LogWord {
  std::uint64_t number = 0;    // its lower 32 bits; 0: none yet
  bool is_chosen = false;      // it stands among the chosen ones of a relay
  std::uint32_t slot = 0;      // 11 bits; kNowhere: it is not known here
  std::uint32_t proposal = 0;  // of that slot: 20 bits

  static constexpr std::uint32_t kNowhere = 0x7ff;
  static LogWord unpack(std::uint64_t word) noexcept {
    return {word >> 32, (word >> 31 & 1) != 0, static_cast<std::uint32_t>(word >> 20 & 0x7ff),
            static_cast<std::uint32_t>(word & kProposalMask)};
  }
  std::uint64_t pack() const noexcept {
    return number << 32 | std::uint64_t{is_chosen} << 31 | std::uint64_t{slot} << 20 |
           std::uint64_t{proposal};
  }
};
static_assert(kMaxLocalRanks <= LogWord::kNowhere);

/// How far entry `number` lies ahead of the one in `word`; negative: behind.
std::int32_t ahead(std::uint64_t number, const LogWord& word) noexcept {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(number) -
                                   static_cast<std::uint32_t>(word.number));
}

/// No rank falls so many entries behind: a word that says so is garbage. All words together do not
/// lead once around the numbers, so reading ends whatever stands there.
constexpr std::int32_t kFurthestBehind = 1 << 20;
static_assert(kLogEntries * kFurthestBehind < std::uint64_t{1} << 32);

bool is_open(std::uint64_t word, std::uint64_t number) noexcept {
  const std::int32_t first = ahead(number, LogWord::unpack(word));
  return word == 0 || first > 0 || first < -kFurthestBehind;
}

}  // namespace

std::atomic<std::uint64_t>& BoardLog::word_of(std::uint64_t number) const noexcept {
  return board_.header().log[number % kLogEntries];
}

BoardLog::State BoardLog::read(std::uint64_t number, Verdict* verdict) const {
  const std::uint64_t word = word_of(number).load();
  const LogWord entry = LogWord::unpack(word);
  if (is_open(word, number)) return State::open;
  if (ahead(number, entry) < 0 || entry.slot >= static_cast<std::uint32_t>(board_.slot_count()))
    return State::missed;
  const SlotIndex slot(static_cast<int>(entry.slot));
  const Proposal& place = entry.is_chosen
                              ? board_.relay_area(slot).chosen[entry.proposal % kChosen]
                              : board_.slot(slot).proposals[entry.proposal % kProposals];
  auto found = read_proposal(board_, place, entry.proposal);
  if (!found) return State::missed;
  *verdict = *std::move(found);
  return State::entered;
}

std::uint64_t BoardLog::after_missed(std::uint64_t number) const noexcept {
  // An entry is made when all before it have been: those kLogEntries behind it are gone. One word
  // alone may be garbage, and who believed it would miss what comes: the one before must agree.
  const std::int32_t behind = -ahead(number, LogWord::unpack(word_of(number).load()));
  if (behind <= static_cast<std::int32_t>(kLogEntries)) return number + 1;
  const std::uint64_t latest = number + static_cast<std::uint64_t>(behind);
  return is_open(word_of(latest - 1).load(), latest - 1) ? number + 1 : latest - kLogEntries + 1;
}

bool BoardLog::propose(std::uint64_t number, const Verdict& verdict) noexcept {
  std::atomic<std::uint64_t>& place = word_of(number);
  std::uint64_t seen = place.load();
  if (!is_open(seen, number)) return false;
  const LogWord entry = {.number = static_cast<std::uint32_t>(number),
                         .slot = static_cast<std::uint32_t>(own_.index().value),
                         .proposal = own_.write_proposal(verdict)};
  if (place.compare_exchange_strong(seen, entry.pack())) {
    own_.keep_proposal();
    return true;
  }
  own_.withdraw_proposal();
  return false;
}

bool BoardLog::enter_chosen(std::uint64_t number, const Verdict* verdict) noexcept {
  std::atomic<std::uint64_t>& place = word_of(number);
  std::uint64_t seen = place.load();
  if (!is_open(seen, number)) return false;
  LogWord entry = {
      .number = static_cast<std::uint32_t>(number), .is_chosen = true, .slot = LogWord::kNowhere};
  if (verdict != nullptr) {
    entry.slot = static_cast<std::uint32_t>(own_.index().value);
    entry.proposal = own_.write_chosen(*verdict);
  }
  return place.compare_exchange_strong(seen, entry.pack());
}

}  // namespace tutti::control
