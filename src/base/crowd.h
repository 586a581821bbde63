// Many threads of a rank that wait for what one of them can move for all.
//
// If all slept on the rank's doorbell, each message would wake them all, to put all but one to
// sleep again. So one of them, the *lookout*, sleeps there and moves what can be moved whenever the
// bell rings; the others *stand by*, each on a bell of its own. Whoever ends something calls
// `wake_done`, which wakes those whose part is done; a lookout that leaves makes another one. So a
// message wakes the lookout and whom it is for, however many stand by.
//
// No wake is lost: who stands by is in the list before it looks for the last time, and whoever ends
// something has stored that before it looks at the list. A place that is left has a lookout as long
// as anybody stands by, and a new lookout looks before it sleeps.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "base/wait.h"

namespace tutti {

/// Threads  Any.
class Crowd {
 public:
  /// Wakes those who stand by and are done. Call after a seq_cst store of what they wait for.
  void wake_done() noexcept {
    if (standing_.load() != 0) wake_done_slow();
  }
  /// How many stand by.
  std::uint32_t standing() const noexcept { return standing_.load(); }

  /// One thread among them, while it sleeps now and then.
  class Place {
   public:
    /// `done` is called by others, until this place is gone.
    Place(Crowd& crowd, detail::Look done) noexcept;
    ~Place();
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    /// Where to sleep: the lookout at `of_rank`.
    Doorbell& bell(Doorbell& of_rank) noexcept { return is_lookout_.load() ? of_rank : own_; }
    /// Before the last look: whoever ends something from now on rings again.
    void listen() noexcept { is_called_.store(false); }

   private:
    friend class Crowd;
    Crowd& crowd_;
    const detail::Look done_;
    Doorbell own_;
    std::atomic<bool> is_lookout_{false};
    std::atomic<bool> is_called_{false};  // rung because it is done, and has not run since
    Place* previous_ = nullptr;           // among those who stand by; the crowd's mutex
    Place* next_ = nullptr;
  };

 private:
  void wake_done_slow() noexcept;
  void name_lookout() noexcept;
  void append(Place& place) noexcept;
  void remove(Place& place) noexcept;

  std::atomic<std::uint32_t> standing_{0};
  std::mutex mutex_;
  bool has_lookout_ = false;
  Place* first_ = nullptr;
  Place* last_ = nullptr;
};

}  // namespace tutti
