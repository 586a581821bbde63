// What a rank that leaves, the last of its host or one for whom no relay speaks, leaves at the
// doors of all ranks of the others: who has left, and their goodbyes. Nobody could say it later.
//
// A process that is stopped answers no handshake, but its kernel takes a note without one. Whoever
// finds the doors of a host closed reads the notes at its own before it takes that host for dead.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/roster.h"
#include "control/hosts/connection.h"
#include "control/hosts/door.h"
#include "control/judge/clock.h"
#include "net/events.h"
#include "net/frame.h"

namespace tutti::control {

/// Used by the thread that runs `events`, and by no other.
class DoorNotes {
 public:
  using Begin = std::function<std::unique_ptr<Call>(WorldRank to, Call::OnOutcome)>;
  DoorNotes(net::Events& events, Begin begin, std::size_t most_frame_bytes)
      : events_(events), begin_(std::move(begin)), most_frame_bytes_(most_frame_bytes) {}

  void leave(const std::vector<WorldRank>& to, std::vector<net::Frame> words);
  /// Calls again where a call has failed. Call it now and then. True: the kernels of all have all
  /// of it, or nobody is there any more.
  bool sweep(Clock::time_point now);

 private:
  struct Place {
    WorldRank to;
    std::unique_ptr<Call> call = {};
    std::unique_ptr<Connection> connection = {};
    Clock::time_point next_call = {};
    bool is_over = false;
  };
  void call(Place& place, Clock::time_point now);
  void on_outcome(Place& place, Call::Outcome outcome);

  net::Events& events_;
  const Begin begin_;
  const std::size_t most_frame_bytes_;
  std::vector<net::Frame> words_;
  std::vector<Place> places_;
};

}  // namespace tutti::control
