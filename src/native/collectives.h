// Which code serves a collective: the engine or a schedule.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "native/arena.h"
#include "native/engine/engine.h"
#include "native/executor.h"

namespace tutti::native {

/// The collectives of one rank in one group, one at a time.
class Collectives final : public EngineSignals {
 public:
  /// `arena`: of all members; null in a group of one, and where some are on another host. Then
  /// every operation is a schedule.
  Collectives(Arena* arena, Channels& channels, control::Membership& membership);
  ~Collectives();

  /// Takes up `request`, on behalf of `shown`, maybe the same; both stay where they are until the
  /// operation is done.
  Operation& begin(const Request& request, const Request& shown);

 private:
  class EngineOperation;

  const Schedule& schedule_for(const Request& request);
  void notify_all() noexcept override;
  void progressed() noexcept override;
  void disagree(int peer) noexcept override;
  std::byte* open_ring() override;

  Arena* const arena_;
  control::Membership& membership_;
  const Request* shown_ = nullptr;
  Executor executor_;
  std::vector<const std::byte*> heads_, rings_;  // of all ranks, for the engine
  std::unique_ptr<EngineOperation> engine_;      // null without arenas of all
  /// By operation and in place or not; then by root, or one.
  std::array<std::array<std::vector<std::unique_ptr<Schedule>>, 2>, kOpCount> schedules_;
};

}  // namespace tutti::native
