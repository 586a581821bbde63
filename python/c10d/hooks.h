// What torch asks to be called at: its flight recorder tells by it what hangs.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace tutti::python {

/// Called with a Work's key when its operation has ended well, by the thread that ends it, under
/// the numbers by which they are taken away again. No lock is held where one is called or freed: it
/// may take a lock of its own, under which hooks are added and taken away.
///
/// Threads  Any. One that is taken away meanwhile may be called once more.
class CompletionHooks {
 public:
  using Hook = std::function<void(std::uint64_t key)>;

  void add(std::int64_t number, Hook hook) {
    const auto added = std::make_shared<const Hook>(std::move(hook));
    change([&](All& all) { all[number] = added; });
  }
  void remove(std::int64_t number) {
    change([&](All& all) { all.erase(number); });
  }
  void call(std::uint64_t key) const {
    if (is_empty_.load()) return;
    std::shared_ptr<const All> all;
    {
      const std::lock_guard lock(mutex_);
      all = all_;
    }
    for (const auto& [number, hook] : *all) (*hook)(key);
  }

 private:
  using All = std::map<std::int64_t, std::shared_ptr<const Hook>>;

  template <class Change>
  void change(const Change& change) {
    std::shared_ptr<const All> before;  // freed after the lock
    const std::lock_guard lock(mutex_);
    auto all = std::make_shared<All>(*all_);
    change(*all);
    is_empty_.store(all->empty());
    before = std::exchange(all_, std::move(all));
  }

  mutable std::mutex mutex_;
  std::shared_ptr<const All> all_ = std::make_shared<All>();
  std::atomic<bool> is_empty_ = true;
};

}  // namespace tutti::python
