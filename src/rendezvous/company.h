// Who meets in one round, and how all of them learn that it has failed.
//
// Nobody waits for a rank that is gone. A process writes itself on the *roster* before it claims
// its rank; while it waits it looks from time to time whether one of those who have claimed has
// died, or whether the round has a *failure*. The first failure counts: who finds a death writes it
// down unless there is one already, and throws what stands there, so that all name the same ranks.
// A rank that holds a claim and cannot go on writes that down, too. What was dead before one's own
// arrival is no failure: somebody else may still take its place. Who dies on another host cannot be
// looked at: whoever comes to the store over TCP leaves its death there as a *will*, which the
// server writes down when the connection has ended.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "rendezvous/claim.h"
#include "store/client.h"
#include "tutti/store.h"
#include "tutti/types.h"

namespace tutti::rendezvous {

/// A rank whose end somebody else has seen.
struct Ended {
  int rank = 0;
  std::string how;  ///< "killed by SIGKILL"
};

struct CompanyOptions {
  int rank = 0;
  int world_size = 1;
  std::string place = {};  ///< for people
  /// Of all of init. What is asked beside it, or once it has passed, has one more second in all.
  Deadline deadline = {};
  /// The process of rank 0 if that serves the store and is not ours; 0: it does not.
  int server_pid = 0;
  /// Where rank 0 serves the store, if this rank has come there over TCP; then its pid is not
  /// known.
  std::string server = {};
  /// The connection to that store; lives as long as the company's.
  store::RemoteStore* remote = nullptr;
  /// This rank was cut off from the store, and its old connection may still have its will.
  bool has_come_before = false;
  bool is_spread = false;  ///< over hosts: what is written for others names the host
  /// Called as often as this rank looks: throws if the others cannot find us any more; may be
  /// empty.
  std::function<void()> tend = {};
  /// Asks the launcher; may be empty.
  std::function<std::vector<Ended>()> ended = {};
  /// Keeps the store alive for a moment, so that all can read why we go: those who are here, or
  /// those, too, who are on their way; may be empty.
  std::function<void(bool are_more_to_come)> linger = {};
};

class Company {
 public:
  Company(std::shared_ptr<Store> store, std::string prefix, int round, Claim own,
          CompanyOptions options);
  /// From now on the board shows who dies: a will is taken back.
  ~Company();
  Company(const Company&) = delete;
  Company& operator=(const Company&) = delete;

  int round() const noexcept { return round_; }
  int rank() const noexcept { return options_.rank; }
  const Claim& own() const noexcept { return own_; }
  /// This process, as the others are to read of it.
  std::string own_name() const;
  /// Another one, for messages of this rank.
  std::string name_of(const Claim& claim) const { return describe_for(own_, claim); }

  /// Writes this rank on the roster. To be called before it claims its number.
  void enlist(Deadline& deadline);
  /// From now on the others wait for this rank: they are told if it gives up.
  void has_claimed() noexcept { has_claim_ = true; }
  /// All have met: the world is being made.
  void has_met() noexcept { has_met_ = true; }
  /// It had died before this rank came.
  bool is_past(const Claim& claim) const { return past_.contains(claim.nonce); }

  /// Throws what the round has failed with, or who has died. Cheap: looks every 100 ms or so.
  void look();
  /// Writes down that the round has failed, unless it has already; returns the failure that counts.
  Error fail(const Error& failure);
  /// What an error of this rank is to be thrown as: an own error waits for a death under way. Tells
  /// the others.
  Error blame(const Error& error);

  /// What a call to the store has failed with once the round is complete: over TCP that is of this
  /// rank's connection, as far as nobody is known to have died.
  Error of_connection(const Error& error) const;

  /// For a question beside the deadline. Throws kTimeout if there is no time for one any more.
  std::chrono::milliseconds aside() const;
  /// Until the store can be asked nothing more, with the time to tell it something.
  std::chrono::nanoseconds most_patience() const;
  /// "the store does not answer (at MASTER_PORT 29500): ...".
  std::string describe_silence() const;
  /// The rank whose process serves the store; none if it is not of the world.
  std::vector<int> servers() const;

 private:
  using Clock = Deadline::Clock;
  struct Known {
    int rank = 0;
    std::string text;
    Claim claim;
  };
  std::string key(std::string_view what) const;
  void read_roster(std::chrono::milliseconds timeout);
  void leave_will(Deadline& deadline);
  std::optional<Error> find_failure();
  std::optional<Error> find_death();
  std::optional<Error> find_end_of_store(const Error& error);
  bool holds_its_rank(const Known& known);
  bool are_all_here();
  /// `by_connection`: how that is known where the rank itself is not seen.
  Error lost(int rank, const std::string& who, std::string_view by_connection = {}) const;
  Error changed() const;
  Error out_of_reach(std::vector<int> culprits) const;
  Error in_words_of_init(const Error& error) const;
  std::string name_of_rank(int rank, const std::string& how) const;

  const std::shared_ptr<Store> store_;
  const std::string prefix_;
  const int round_;
  const Claim own_;
  const CompanyOptions options_;
  const std::string server_;  // for people, while it can still be asked
  const std::chrono::milliseconds period_;
  bool has_claim_ = false;
  bool has_met_ = false;
  bool has_will_ = false;
  std::size_t roster_read_ = 0;  // bytes
  std::vector<Known> known_;     // the others
  std::size_t next_known_;       // to be looked at; each begins with others
  std::set<std::string> past_;   // nonces
  Clock::time_point next_look_ = {};
};

/// A failure in the store: "<code> <culprits or -> <text>".
std::string encode_failure(const Error& failure);
/// As rank `rank` is told it.
Error decode_failure(const std::string& text, int rank);

}  // namespace tutti::rendezvous
