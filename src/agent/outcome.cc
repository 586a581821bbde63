#include "agent/outcome.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <utility>

namespace tutti::agent {
namespace {

constexpr int kRendezvousFailed = 3;

bool contains(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

bool is_victim(const RankExit& exit) {
  return !exit.culprits.empty() && !contains(exit.culprits, exit.rank);
}

/// By its own last words, where no board of ours knows whom it blames.
bool says_another_was_lost(const RankExit& exit) {
  return exit.error.starts_with(name_of(ErrorCode::kPeerLost));
}

}  // namespace

bool is_abnormal(int wait_status) noexcept {
  return !WIFEXITED(wait_status) || WEXITSTATUS(wait_status) != 0;
}

int code_of(int wait_status) noexcept {
  return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
}

std::string describe_signal(int signal_number) {
  const char* name = ::sigabbrev_np(signal_number);
  return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal_number);
}

void Outcome::add(RankExit exit) {
  if (exit.untold || (is_abnormal(exit.wait_status) && !exit.ours)) failed_ = true;
  exits_.push_back(std::move(exit));
}

const RankExit* Outcome::root_exit() const {
  for (const bool may_follow : {false, true}) {
    for (const RankExit& exit : exits_) {
      if (!is_abnormal(exit.wait_status) || exit.ours || is_victim(exit)) continue;
      if (may_follow || !says_another_was_lost(exit)) return &exit;
    }
  }
  // Only victims so far: whom they blamed, even if it exited with 0 (it left without a goodbye).
  for (const RankExit& victim : exits_) {
    if (!is_victim(victim) || !is_abnormal(victim.wait_status) || victim.ours) continue;
    if (const RankExit* blamed = blamed_by(victim)) return blamed;
  }
  // All ended well, but a loss went untold: whose?
  const RankExit* untold = untold_exit();
  if (untold == nullptr || untold->untold->code == ErrorCode::kCollectiveMismatch) return nullptr;
  for (const int culprit : untold->untold->culprits) {
    if (const RankExit* exit = exit_of(culprit)) return exit;
  }
  return nullptr;
}

const RankExit* Outcome::blamed_by(const RankExit& victim) const {
  std::vector<const RankExit*> chain{&victim};
  for (std::size_t at = 0; at < chain.size(); ++at) {
    for (const RankExit& exit : exits_) {
      const bool is_known = std::find(chain.begin(), chain.end(), &exit) != chain.end();
      if (is_known || !contains(chain[at]->culprits, exit.rank)) continue;
      if (!is_victim(exit)) return &exit;
      chain.push_back(&exit);
    }
  }
  // Victims that blame each other, or somebody who has not ended: nobody is known to be the first.
  return chain.size() > 1 ? chain[1] : nullptr;
}

const RankExit* Outcome::untold_exit() const noexcept {
  // One that does not follow from another.
  for (const bool is_first_choice : {true, false}) {
    for (const RankExit& exit : exits_) {
      if (!exit.untold) continue;
      if (exit.untold->code != ErrorCode::kPeerLost || !is_first_choice) return &exit;
    }
  }
  return nullptr;
}

std::string Outcome::why() const {
  const RankExit* root = root_exit();
  if (root != nullptr && !root->disagreement.empty()) return root->disagreement;
  if (root != nullptr && (is_abnormal(root->wait_status) || root->ours)) return {};
  const RankExit* untold = untold_exit();
  const bool is_loss = untold != nullptr && untold->untold->code == ErrorCode::kPeerLost;
  if (untold != nullptr && (root == nullptr || !is_loss)) return untold->untold->text;
  // The root ended with 0: others know what it left undone.
  for (const RankExit& exit : exits_) {
    if (root != nullptr && !exit.disagreement.empty()) return exit.disagreement;
  }
  return {};
}

const RankExit* Outcome::exit_of(int rank) const noexcept {
  for (const RankExit& exit : exits_) {
    if (exit.rank == rank) return &exit;
  }
  return nullptr;
}

std::optional<int> Outcome::root_cause() const {
  const RankExit* exit = root_exit();
  return exit == nullptr ? std::nullopt : std::optional<int>(exit->rank);
}

int Outcome::exit_code(const Ending& ending) const {
  const RankExit* root = root_exit();
  if (root != nullptr && is_abnormal(root->wait_status) && !root->ours) {
    return code_of(root->wait_status);
  }
  // The culprit left with 0, or was ended by us because it hung: its victims' code counts.
  for (const RankExit& exit : exits_) {
    if (root != nullptr && is_abnormal(exit.wait_status) && !exit.ours) {
      return ending.rendezvous_failed ? kRendezvousFailed : code_of(exit.wait_status);
    }
  }
  if (ending.timed_out) return kTimedOutCode;
  if (ending.rendezvous_failed) return kRendezvousFailed;
  for (const RankExit& exit : exits_) {
    if (!is_abnormal(exit.wait_status)) continue;
    return ending.signal_number != 0 ? 128 + ending.signal_number : code_of(exit.wait_status);
  }
  if (untold_exit() == nullptr) return 0;
  return ending.signal_number != 0 ? 128 + ending.signal_number : 1;
}

}  // namespace tutti::agent
