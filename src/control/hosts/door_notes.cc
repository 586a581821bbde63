#include "control/hosts/door_notes.h"

#include <cerrno>
#include <utility>

#include "base/log.h"
#include "tutti/error.h"

namespace tutti::control {

namespace {

constexpr std::chrono::milliseconds kBetweenCalls{100};

}  // namespace

void DoorNotes::leave(const std::vector<WorldRank>& to, std::vector<net::Frame> words) {
  words_ = std::move(words);
  places_.reserve(to.size());
  for (const WorldRank rank : to) places_.push_back({.to = rank});
}

bool DoorNotes::sweep(Clock::time_point now) {
  bool are_over = true;
  for (Place& place : places_) {
    if (place.connection && place.connection->has_delivered()) place.is_over = true;
    are_over = are_over && place.is_over;
    const bool is_open = place.is_over || place.call || place.connection;
    if (!is_open && now >= place.next_call) call(place, now);
  }
  return are_over;
}

void DoorNotes::call(Place& place, Clock::time_point now) try {
  place.next_call = now + kBetweenCalls;
  place.call = begin_(
      place.to, [this, &place](Call::Outcome outcome) { on_outcome(place, std::move(outcome)); });
} catch (const Error&) {  // a shortage; it is tried again
}

void DoorNotes::on_outcome(Place& place, Call::Outcome outcome) {
  events_.discard(std::move(place.call));
  if (outcome.error_number == ECONNREFUSED) place.is_over = true;
  if (!outcome.socket) return;
  place.connection = std::make_unique<Connection>(
      events_, std::move(outcome.socket), most_frame_bytes_, [](const net::Frame&) {},
      [this, &place](int error_number) {
        // Who has read all of it closes. Who has not resets, or closes before all has come.
        place.is_over = error_number == 0 && place.connection->has_delivered();
        place.connection->give_up();
        events_.discard(std::move(place.connection));
      });
  for (const net::Frame& frame : words_) place.connection->send(frame);
  place.connection->finish();
}

}  // namespace tutti::control
