// A rank that is a thread of its spawner's process: who it is, and how its groups are ended from
// outside.
//
// A *recall* knows the groups of one rank, each by the function that fails it. The spawner
// *recalls* the rank: all its groups fail, and each that it makes later fails at once.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace tutti {

/// Threads   All calls may be made from any thread.
class Recall {
 public:
  using Fail = std::function<void(const std::string& reason)>;

  /// One group that is known. It must end before what its function uses.
  class Entry {
   public:
    Entry() = default;
    Entry(std::shared_ptr<Recall> recall, std::uint64_t number) noexcept
        : recall_(std::move(recall)), number_(number) {}
    Entry(Entry&& other) noexcept = default;
    Entry& operator=(Entry&& other) noexcept;
    ~Entry() { leave(); }

   private:
    void leave() noexcept;

    std::shared_ptr<Recall> recall_;
    std::uint64_t number_ = 0;
  };

  /// `fail` is called by any thread, perhaps at once; it must not block or throw. An empty recall
  /// gives an empty entry.
  static Entry add(const std::shared_ptr<Recall>& recall, Fail fail);
  void recall(const std::string& reason);

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, Fail> groups_;  // mutex_
  std::optional<std::string> reason_;     // mutex_; it has been recalled
  std::uint64_t added_ = 0;               // mutex_
};

struct RankThread {
  int rank = 0;
  int world_size = 1;
  std::string agent;  ///< where its world meets, as TUTTI_AGENT
  std::shared_ptr<Recall> recall;
};

/// Of the calling thread; null: it is none.
const RankThread* this_rank_thread() noexcept;

/// The calling thread is a rank in its scope.
class RankThreadScope {
 public:
  explicit RankThreadScope(const RankThread& rank) noexcept;
  ~RankThreadScope();
  RankThreadScope(const RankThreadScope&) = delete;
  RankThreadScope& operator=(const RankThreadScope&) = delete;
};

}  // namespace tutti
