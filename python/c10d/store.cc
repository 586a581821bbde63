#include "c10d/store.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace tutti::python {
namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes bytes_of(std::string_view text) { return {text.begin(), text.end()}; }
std::string text_of(const Bytes& bytes) { return {bytes.begin(), bytes.end()}; }

/// Its calls have the store's own timeout; only the wait for a key has ours.
class StoreAdapter final : public Store {
 public:
  explicit StoreAdapter(c10::intrusive_ptr<c10d::Store> base) : base_(std::move(base)) {
    try {
      base_ = base_->clone();
    } catch (const std::exception&) {  // one of the user's own, in Python
    }
  }

  void set(std::string_view key, std::string_view value, Timeout) override {
    asked([&] { base_->set(std::string(key), bytes_of(value)); });
  }
  std::string get(std::string_view key, Timeout timeout) override {
    wait(std::vector{std::string(key)}, timeout);
    return asked([&] { return text_of(base_->get(std::string(key))); });
  }
  std::optional<std::string> try_get(std::string_view key, Timeout) override {
    return asked([&]() -> std::optional<std::string> {
      if (!base_->check({std::string(key)})) return std::nullopt;
      return text_of(base_->get(std::string(key)));
    });
  }
  std::int64_t add(std::string_view key, std::int64_t amount, Timeout) override {
    return asked([&] { return base_->add(std::string(key), amount); });
  }
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                          Timeout) override {
    return asked([&]() -> std::string {
      const std::string name(key);
      const std::string now =
          text_of(base_->compareSet(name, bytes_of(expected), bytes_of(desired)));
      // It answers `expected` for a key that is absent, too.
      const bool is_absent = !expected.empty() && now == expected && !base_->check({name});
      return is_absent ? std::string() : now;
    });
  }
  void append(std::string_view key, std::string_view value, Timeout) override {
    asked([&] { base_->append(std::string(key), bytes_of(value)); });
  }
  bool erase(std::string_view key, Timeout) override {
    return asked([&] { return base_->deleteKey(std::string(key)); });
  }
  /// By looking again and again: a wait of torch's own that ends with its time prints warnings,
  /// and whoever meets waits for a little while many times.
  void wait(std::span<const std::string> keys, Timeout timeout) override {
    constexpr std::int64_t kLongest = 50;
    const auto began = Clock::now();
    while (!check(keys, timeout)) {
      const auto left = timeout - std::chrono::duration_cast<Timeout>(Clock::now() - began);
      if (left.count() <= 0)
        throw Error(ErrorCode::kTimeout, "not in torch's store after " +
                                             std::to_string(timeout.count()) + " ms: " + keys[0]);
      const std::int64_t pause = pause_ms_.load();
      pause_ms_ = std::min(2 * pause, kLongest);
      std::this_thread::sleep_for(std::min(left, Timeout(pause)));
    }
    pause_ms_ = 1;
  }
  bool check(std::span<const std::string> keys, Timeout) override {
    return asked([&] { return base_->check({keys.begin(), keys.end()}); });
  }

 private:
  using Clock = std::chrono::steady_clock;

  [[noreturn]] static void refuse(const std::exception& error) {
    const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
    const std::string what =
        of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
    if (what.find("Not implemented") != what.npos) {  // one of Python's says so by an assertion
      throw Error(ErrorCode::kSystem,
                  "torch's store lacks a call that ranks need to meet (compare_set, append, "
                  "delete_key): give init_process_group a TCPStore, a FileStore or a HashStore");
    }
    throw Error(ErrorCode::kSystem, "torch's store failed: " + what);
  }
  template <class Call>
  static auto asked(Call call) -> decltype(call()) {
    try {
      return call();
    } catch (const std::exception& error) {
      refuse(error);
    }
  }
  c10::intrusive_ptr<c10d::Store> base_;
  std::atomic<std::int64_t> pause_ms_ = 1;  ///< before the next look: longer while nothing comes
};

}  // namespace

std::shared_ptr<Store> adapt(const c10::intrusive_ptr<c10d::Store>& base) {
  return std::make_shared<StoreAdapter>(base);
}

}  // namespace tutti::python
