// One round of a meeting, over any store: claims, the judge, the verdict.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "rendezvous/company.h"
#include "rendezvous/identity.h"
#include "tutti/store.h"
#include "tutti/types.h"

namespace tutti::rendezvous {

struct RoundOptions {
  Claim
      own;  ///< of this process; the same where it comes again to a round that it was cut off from
  std::string place;
  std::string name;
  /// Anybody of this user can come here, so that two jobs may meet by mistake.
  bool is_open = false;
  /// The place serves one round only: a finished one means that it is about to go away.
  bool is_once = false;
  std::chrono::nanoseconds first_line_after = std::chrono::seconds(10);
  std::string mark = "MASTER_PORT";  ///< what tells jobs apart there
  std::string advice = {};           ///< what to look at when ranks do not come; may be empty
  const Error* lack = nullptr;       ///< why this rank tells the others that it cannot join
  CompanyOptions company = {};
};

/// Claims the rank in the first round that is not over, and waits for the verdict. Returns who
/// meets there; null: this place is of a world that is complete, look for another.
std::shared_ptr<Company> join_round(const std::shared_ptr<Store>& store, const Identity& identity,
                                    const RoundOptions& options, Deadline& deadline);
/// Where the keys of that round begin.
std::string round_prefix(const std::string& name, int round);

/// "waiting 12 s: 3 of 16 ranks missing: 5, 7-8"; writes it when it is due: first after a time,
/// then whenever that has doubled.
class WaitingLines {
 public:
  WaitingLines(std::chrono::nanoseconds first_after, Deadline::Clock::time_point begin)
      : begin_(begin), next_(begin + first_after) {}
  Deadline::Clock::time_point next() const noexcept { return next_; }
  /// Writes "waiting N s: <what>" if it is due.
  template <class What>
  void look(Deadline::Clock::time_point now, What what) {
    if (now >= next_) write(now, what());
  }

 private:
  void write(Deadline::Clock::time_point now, const std::string& what);
  Deadline::Clock::time_point begin_;
  Deadline::Clock::time_point next_;
};

}  // namespace tutti::rendezvous
