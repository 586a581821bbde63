// A Store that turns every operation into a Call; the kinds of store differ in how they perform
// one.
#pragma once

#include "store/call.h"
#include "tutti/store.h"

namespace tutti::store {

/// A longer timeout is cut to this one: no clock overflows.
inline constexpr Store::Timeout kLongest = std::chrono::hours(24 * 365);

class CallStore : public Store {
 public:
  void set(std::string_view key, std::string_view value, Timeout timeout) final;
  std::string get(std::string_view key, Timeout timeout) final;
  std::optional<std::string> try_get(std::string_view key, Timeout timeout) final;
  std::int64_t add(std::string_view key, std::int64_t amount, Timeout timeout) final;
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                          Timeout timeout) final;
  void wait(std::span<const std::string> keys, Timeout timeout) final;
  bool check(std::span<const std::string> keys, Timeout timeout) final;
  bool erase(std::string_view key, Timeout timeout) final;
  std::int64_t num_keys(Timeout timeout) final;
  void append(std::string_view key, std::string_view value, Timeout timeout) final;
  std::vector<std::string> multi_get(std::span<const std::string> keys, Timeout timeout) final;
  void multi_set(std::span<const std::string> keys, std::span<const std::string> values,
                 Timeout timeout) final;

 protected:
  /// Does the call, waiting at most `timeout`. Thread-safe. Limits have been checked.
  virtual Answer perform(const Call& call, Timeout timeout) = 0;

 private:
  Answer checked(const Call& call, Timeout timeout, std::size_t values_wanted);
};

}  // namespace tutti::store
