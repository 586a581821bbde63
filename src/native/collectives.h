// Which code serves a collective: the engine or a schedule.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "native/arena.h"
#include "native/engine/engine.h"
#include "native/executor.h"
#include "native/schedule/plan.h"

namespace tutti::native {

/// The collectives of one rank in one group, one at a time.
class Collectives final : public EngineSignals {
 public:
  /// `arena`: of all members; null in a group of one, and where some are on another host. Then
  /// every operation is a schedule. `hosts`: by member; empty: all are on one. `table`: the same at
  /// all members.
  Collectives(Arena* arena, std::vector<int> hosts, const Table& table, Channels& channels,
              control::Membership& membership);
  ~Collectives();

  /// Takes up `request`, on behalf of `shown`, maybe the same; both stay where they are until the
  /// operation is done.
  Operation& begin(const Request& request, const Request& shown);

 private:
  class EngineOperation;

  bool is_in_place(const Request& request) const noexcept;
  const Request& apart(const Request& request);
  const Schedule& schedule_for(const Request& request, Algorithm algorithm, bool in_place);
  void notify_all() noexcept override;
  void progressed() noexcept override;
  void disagree(int peer) noexcept override;
  std::byte* open_ring() override;

  Arena* const arena_;
  const std::vector<int> hosts_;
  const Table table_;
  Channels& channels_;
  control::Membership& membership_;
  const Request* shown_ = nullptr;
  Request apart_;
  std::vector<std::byte> input_;  // of `apart_`
  Executor executor_;
  std::vector<const std::byte*> heads_, rings_;           // of all ranks, for the engine
  std::unique_ptr<EngineOperation> engine_;               // null without arenas of all
  using ByRoot = std::vector<std::unique_ptr<Schedule>>;  // or one
  /// By operation, algorithm, and in place or not.
  std::array<std::array<std::array<ByRoot, 2>, kAlgorithmCount>, kOpCount> schedules_;
};

}  // namespace tutti::native
