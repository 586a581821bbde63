#include "control/board/log.h"

namespace tutti::control {

namespace {

/// A word of the log: which entry it is, and where the verdict stands.
struct LogWord {
  std::uint64_t number = 0;  // its lower 32 bits; 0: none yet
  std::uint32_t slot = 0;
  std::uint32_t proposal = 0;  // of that slot: 20 bits

  static LogWord unpack(std::uint64_t word) noexcept {
    return {word >> 32, static_cast<std::uint32_t>(word >> 20 & 0xfff),
            static_cast<std::uint32_t>(word & kProposalMask)};
  }
  std::uint64_t pack() const noexcept {
    return number << 32 | std::uint64_t{slot} << 20 | std::uint64_t{proposal};
  }
};

/// How far entry `number` lies ahead of the one in `word`; negative: behind.
std::int32_t ahead(std::uint64_t number, const LogWord& word) noexcept {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(number) -
                                   static_cast<std::uint32_t>(word.number));
}

}  // namespace

std::atomic<std::uint64_t>& BoardLog::word_of(std::uint64_t number) const noexcept {
  return board_.header().log[number % kLogEntries];
}

BoardLog::State BoardLog::read(std::uint64_t number, Verdict* verdict) const {
  const std::uint64_t word = word_of(number).load();
  const LogWord entry = LogWord::unpack(word);
  if (word == 0 || ahead(number, entry) > 0) return State::open;
  if (ahead(number, entry) < 0 || entry.slot >= static_cast<std::uint32_t>(board_.slot_count()))
    return State::missed;
  auto found = read_proposal(board_, SlotIndex(static_cast<int>(entry.slot)), entry.proposal);
  if (!found) return State::missed;
  *verdict = *std::move(found);
  return State::entered;
}

bool BoardLog::propose(std::uint64_t number, const Verdict& verdict) noexcept {
  std::atomic<std::uint64_t>& place = word_of(number);
  std::uint64_t seen = place.load();
  const auto is_open = [&] { return seen == 0 || ahead(number, LogWord::unpack(seen)) > 0; };
  if (!is_open()) return false;
  const LogWord entry = {static_cast<std::uint32_t>(number),
                         static_cast<std::uint32_t>(own_.index().value),
                         own_.write_proposal(verdict)};
  if (place.compare_exchange_strong(seen, entry.pack())) {
    own_.keep_proposal();
    return true;
  }
  own_.withdraw_proposal();
  return false;
}

}  // namespace tutti::control
