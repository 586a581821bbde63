// The store inside one process: a table behind a mutex.
#include <algorithm>

#include "net/poller.h"
#include "store/call_store.h"
#include "store/table.h"

namespace tutti {
namespace {

class MemoryStore final : public store::CallStore {
 private:
  store::Answer perform(const store::Call& call, Timeout timeout) override {
    Deadline deadline = Deadline::after(std::min(timeout, store::kLongest));
    deadline.start(Deadline::Clock::now());
    std::unique_lock lock(mutex_);
    for (;;) {
      if (auto answer = table_.apply(call)) {
        lock.unlock();
        if (!is_waiting(call.command)) changed_.notify_all();
        return std::move(*answer);
      }
      if (!changed_.wait(lock, deadline)) {
        throw store::missing_error(call.command, table_.missing(call.keys),
                                   std::chrono::duration<double>(timeout).count(),
                                   "store inside this process");
      }
    }
  }

  std::mutex mutex_;
  net::Condition changed_;
  store::Table table_;
};

}  // namespace

std::shared_ptr<Store> make_memory_store() { return std::make_shared<MemoryStore>(); }

}  // namespace tutti
