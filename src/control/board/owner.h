// The side of a slot's owner: the only one that writes there.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string_view>

#include "base/cores.h"
#include "control/board/layout.h"
#include "tutti/error.h"

namespace tutti::control {

/// Those of the owner, which writes them before it is running.
void write_cores(Slot& slot, const Cores& cores) noexcept;
void write_set(std::array<std::atomic<std::uint64_t>, 4>& words, const RankSet& set) noexcept;
/// For the owner, which makes a group or a world: no failure so far is why it will end.
void outlive_failures(Slot& slot) noexcept;

/// What a process keeps beside a slot it owns: several of its threads write there.
class SlotOwner {
 public:
  explicit SlotOwner(Slot& slot) noexcept : slot_(slot) {}
  Slot& slot() const noexcept { return slot_; }

  /// Index of a call site in the slot's table; the first call copies the text. A few nanoseconds.
  std::uint8_t site(const Where& where) noexcept;
  /// A line for `group` in state meeting, or null if all are in use.
  Line* open_line(GroupId group, GroupId asked_of, const RankSet& members) noexcept;
  void free_line(Line& line) noexcept;
  /// Writes the failure of `line` where peers find it; `text` may be empty.
  void publish_failure(Line& line, ErrorCode code, const RankSet& culprits,
                       std::string_view text) noexcept;
  void publish_verdict(const RankSet& lost) noexcept;
  /// Writes what the operation with this chain is for; the last kPurposes of them can be read.
  void publish_purpose(std::uint64_t chain, std::string_view text) noexcept;

 private:
  struct Known {
    std::atomic<const char*> file{nullptr};
    std::atomic<int> line{0};
    std::atomic<std::uint8_t> index{0};  ///< written last
  };
  static std::size_t bucket_of(const Where& where) noexcept {
    return (reinterpret_cast<std::uintptr_t>(where.file) * 31 + static_cast<unsigned>(where.line)) *
               0x9e3779b97f4a7c15u >>
           56;
  }
  std::uint8_t add_site(const Where& where) noexcept;

  Slot& slot_;
  std::mutex mutex_;
  std::array<Known, 256> known_;
  int sites_used_ = 0;
  std::uint32_t notices_used_ = 0;
  std::uint32_t purposes_used_ = 0;
};

inline std::uint8_t SlotOwner::site(const Where& where) noexcept {
  const Known& known = known_[bucket_of(where)];
  const std::uint8_t index = known.index.load(std::memory_order_acquire);
  if (index != 0 && known.file.load(std::memory_order_relaxed) == where.file &&
      known.line.load(std::memory_order_relaxed) == where.line)
    return index;
  return add_site(where);
}

}  // namespace tutti::control
