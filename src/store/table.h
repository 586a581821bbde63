// The contents of a store: what each command does, without threads, time or sockets.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "store/call.h"

namespace tutti::store {

inline constexpr std::size_t kMaxTableKeys = std::size_t{1} << 20;
inline constexpr std::size_t kMaxTableBytes = std::size_t{1} << 30;

class Table {
 public:
  /// Does what the call says. Empty: it waits for keys that do not exist. Throws kInvalidArgument
  /// for a malformed call and kSystem when the table is full.
  std::optional<Answer> apply(const Call& call);

  /// Index of the first key at or after `from` that does not exist; keys.size() if there is none.
  std::size_t first_missing(std::span<const std::string> keys, std::size_t from = 0) const;
  std::vector<std::string> missing(std::span<const std::string> keys) const;

 private:
  /// All of them; where they have no room none.
  void put(std::span<const std::string> keys, std::span<const std::string> values);
  std::int64_t add(const std::string& key, std::int64_t amount);
  Answer get(const Call& call) const;

  std::unordered_map<std::string, std::string> entries_;
  std::size_t byte_count_ = 0;  // of keys and values
};

}  // namespace tutti::store
