#include "ddp/attendance.h"

#include <algorithm>

namespace tutti::ddp {

namespace {

/// Two words of the exchange for each rank.
std::uint64_t pack(const Word& word) {
  return static_cast<std::uint64_t>(word.turn) | std::uint64_t{word.gave_up} << 8;
}
Word unpack(const std::uint64_t* words) {
  return {static_cast<Turn>(words[0] & 0xff), (words[0] >> 8 & 1) != 0, words[1]};
}

}  // namespace

Word Attendance::take(const Word& own, std::uint64_t agreed, ProcessGroup& group, Where where) {
  const std::uint64_t said[2] = {pack(own), own.digest};
  std::vector<std::uint64_t> all(2 * in_.size());
  group.all_gather(ConstBuffer(said), Buffer(all), {}, where);
  std::vector<std::uint8_t> now(in_.size());
  is_changed_ = false;
  for (std::size_t rank = 0; rank < now.size(); ++rank) {
    const Word word = unpack(&all[2 * rank]);
    now[rank] = word.turn != Turn::left;
    is_changed_ |= now[rank] != 0 && word.digest != agreed;
  }
  is_over_ = std::count(now.begin(), now.end(), 1) == 0;
  if (is_over_) return {};
  in_ = std::move(now);
  return unpack(&all[2 * static_cast<std::size_t>(lowest())]);
}

int Attendance::lowest() const {
  return static_cast<int>(std::find(in_.begin(), in_.end(), 1) - in_.begin());
}

int Attendance::count() const { return static_cast<int>(std::count(in_.begin(), in_.end(), 1)); }

}  // namespace tutti::ddp
