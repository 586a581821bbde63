// What a program of torch's asks to be called at.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace tutti::python {

/// Functions under the numbers by which they are taken away again. No lock is held where one is
/// called or freed: it may take a lock of its own, under which hooks are added and taken away.
///
/// Threads  Any. One that is taken away meanwhile may be called once more.
template <class... Arguments>
class Hooks {
 public:
  using Hook = std::function<void(Arguments...)>;

  void add(std::int64_t number, Hook hook) {
    change([&](All& all) { all[number] = std::make_shared<const Hook>(std::move(hook)); });
  }
  void remove(std::int64_t number) {
    change([&](All& all) { all.erase(number); });
  }
  void call(Arguments... arguments) const {
    if (is_empty_.load()) return;
    std::shared_ptr<const All> all;
    {
      const std::lock_guard lock(mutex_);
      all = all_;
    }
    for (const auto& [number, hook] : *all) (*hook)(arguments...);
  }

 private:
  using All = std::map<std::int64_t, std::shared_ptr<const Hook>>;

  template <class Change>
  void change(const Change& change) {
    std::shared_ptr<const All> before;  // freed last
    const std::lock_guard changing(changing_);
    auto all = std::make_shared<All>(*all_);
    change(*all);
    const std::lock_guard lock(mutex_);
    is_empty_.store(all->empty());
    before = std::exchange(all_, std::move(all));
  }

  std::mutex changing_;
  mutable std::mutex mutex_;  // all_
  std::shared_ptr<const All> all_ = std::make_shared<All>();
  std::atomic<bool> is_empty_ = true;
};

}  // namespace tutti::python
