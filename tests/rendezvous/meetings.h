// Meetings that tests hold, and what they look at from outside.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "net/poller.h"
#include "net/unix_socket.h"
#include "rendezvous/identity.h"
#include "rendezvous/meeting.h"
#include "store/client.h"

namespace tutti::test {

using namespace std::chrono_literals;
using rendezvous::Identity;
using rendezvous::Launcher;
using rendezvous::Meeting;
using rendezvous::MeetingOptions;

/// A port of this test's own: names in the abstract name space are not ports of the network.
inline int fresh_port() {
  static int next = 100'000 + static_cast<int>(::getpid()) * 20;
  return next++;
}

inline Identity by_hand(int rank, int world_size, int port, std::string job = {}) {
  Identity identity;
  identity.launcher = Launcher::by_hand;
  identity.rank = rank;
  identity.world_size = world_size;
  identity.master_addr = "127.0.0.1";
  identity.master_port = port;
  identity.job = std::move(job);
  return identity;
}

inline std::string address_of(int port) {
  return "@tutti-" + std::to_string(::geteuid()) + "-" + std::to_string(port);
}

/// The last act of each. Whoever serves the store goes last; the others need no answer any more.
inline void leave(const Meeting& meeting, int world_size) {
  const std::string gone = "gone/";
  if (meeting.rank != 0) {
    try {
      meeting.store->set(gone + std::to_string(meeting.rank), "", 20s);
    } catch (const Error&) {
    }
  }
  for (int r = 1; meeting.rank == 0 && r < world_size; ++r) {
    meeting.store->get(gone + std::to_string(r), 20s);
  }
}

/// Makes sure that everybody sees everybody: "met in round 1".
inline std::string greet(const Meeting& meeting, int world_size) {
  meeting.store->set("here/" + std::to_string(meeting.rank), "", 20s);
  std::vector<std::string> all;
  for (int r = 0; r < world_size; ++r) all.push_back("here/" + std::to_string(r));
  meeting.store->wait(all, 20s);
  leave(meeting, world_size);
  return "met in round " + std::to_string(meeting.round);
}

inline std::string meet_and_greet(const Identity& identity, const MeetingOptions& options = {}) {
  return greet(meet(identity, options), identity.world_size);
}

/// Returns once somebody listens there.
inline void await_listener(int port) {
  Deadline deadline = Deadline::after(20s);
  while (!net::try_connect(address_of(port), deadline)) net::pause(1ms, deadline);
}

/// Returns once that rank has claimed its number.
inline void await_claim(int port, int rank) {
  Deadline deadline = Deadline::after(20s);
  await_listener(port);
  const auto store = store::connect_store(address_of(port), {}, deadline).store;
  store->get("world//1/rank/" + std::to_string(rank), 20s);
}

inline void expect_has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "expected '" << part << "' in: " << text;
}

}  // namespace tutti::test
