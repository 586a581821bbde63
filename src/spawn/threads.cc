// Ranks as threads of this process.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/of_rank.h"
#include "base/rank_list.h"
#include "base/rank_thread.h"
#include "net/poller.h"
#include "net/system_error.h"
#include "spawn/ranks.h"

namespace tutti::spawning {
namespace {

/// What the threads use; it stays as long as one of them does.
struct Shared {
  explicit Shared(const RanksOptions& options)
      : function(options.function), reports(options.reports) {}

  const Function function;
  const std::shared_ptr<const Reports> reports;
  std::vector<RankThread> ranks;
  net::Wakeup news;
  std::mutex mutex;
  std::vector<Event> events;  // mutex
};

/// Tells that a rank has ended, also where pthread_exit unwinds its thread.
struct Ending {
  const std::shared_ptr<Shared> shared;
  const int rank;
  int code = 1;
  ~Ending() {
    const std::lock_guard lock(shared->mutex);
    shared->events.push_back({Event::Kind::ended, rank, W_EXITCODE(code, 0)});
    shared->news.signal();
  }
};

void be_rank(const std::shared_ptr<Shared>& shared, int rank) {
  Ending ending{shared, rank};
  const RankThreadScope scope(of_rank(shared->ranks, rank));
  ending.code = run_and_report(shared->function, rank, shared->reports->of(rank));
}

class Threads : public Ranks {
 public:
  explicit Threads(const RanksOptions& options);
  ~Threads() override { leave_behind(); }
  std::array<int, 2> fds() const noexcept override { return {shared_->news.fd(), -1}; }
  std::vector<Event> read() override;
  void ask(const std::string& reason) override;
  void force() override {}
  bool finish() override;
  std::string leave_behind() override;

 private:
  std::shared_ptr<Shared> shared_;
  std::vector<std::thread> threads_;
  std::vector<bool> has_ended_;
};

Threads::Threads(const RanksOptions& options)
    : shared_(std::make_shared<Shared>(options)),
      has_ended_(static_cast<std::size_t>(options.world_size)) {
  for (int rank = 0; rank < options.world_size; ++rank) {
    shared_->ranks.push_back({rank, options.world_size, options.agent, std::make_shared<Recall>()});
    shared_->events.push_back({Event::Kind::started, rank, ::getpid()});
  }
  try {
    for (int rank = 0; rank < options.world_size; ++rank) {
      threads_.emplace_back([shared = shared_, rank] { be_rank(shared, rank); });
    }
  } catch (const std::system_error& failure) {
    ask("not all its ranks could be started");
    leave_behind();
    throw net::no_thread_error(fmt::format("cannot start rank {}", threads_.size()),
                               failure.code().value());
  }
  shared_->news.signal();
}

std::vector<Event> Threads::read() {
  shared_->news.drain();
  const std::lock_guard lock(shared_->mutex);
  for (const Event& event : shared_->events) {
    if (event.kind == Event::Kind::ended) has_ended_[std::size_t(event.rank)] = true;
  }
  return std::exchange(shared_->events, {});
}

void Threads::ask(const std::string& reason) {
  for (const RankThread& rank : shared_->ranks) rank.recall->recall(reason);
}

bool Threads::finish() {
  for (std::thread& thread : threads_) thread.join();  // they have told us that they end
  threads_.clear();
  return true;
}

std::string Threads::leave_behind() {
  std::vector<int> left;
  for (std::size_t rank = 0; rank < threads_.size(); ++rank) {
    if (!has_ended_[rank]) left.push_back(static_cast<int>(rank));
    threads_[rank].detach();
  }
  threads_.clear();
  return fmt::format("the threads of {}", ranks_text(left));
}

}  // namespace

std::unique_ptr<Ranks> start_threads(const RanksOptions& options) {
  return std::make_unique<Threads>(options);
}

}  // namespace tutti::spawning
