#include "store/table.h"

#include <fmt/format.h>

#include <charconv>

namespace tutti::store {
namespace {

std::int64_t parse_number(const std::string& key, const std::string& value) {
  std::int64_t number = 0;
  const char* end = value.data() + value.size();
  const auto [stop, problem] = std::from_chars(value.data(), end, number);
  if (problem != std::errc() || stop != end) {
    const std::string keys[] = {key};
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("store add: the value of key {} is no decimal integer: '{}'",
                            format_keys(keys), value.substr(0, 80)));
  }
  return number;
}

void check_shape(const Call& call) {
  std::size_t keys = 1;
  std::size_t values = 0;
  switch (call.command) {
    case Command::set:
      keys = values = call.keys.size();
      break;
    case Command::get:
    case Command::wait:
    case Command::check:
    case Command::will:
      keys = call.keys.size();
      break;
    case Command::num_keys:
      keys = 0;
      break;
    case Command::compare_set:
      values = 2;
      break;
    case Command::append:
      values = 1;
      break;
    case Command::try_get:
    case Command::add:
    case Command::erase:
      break;
  }
  if (call.keys.size() != keys || call.values.size() != values) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("store {}: {} keys and {} values", name_of(call.command),
                            call.keys.size(), call.values.size()));
  }
}

}  // namespace

std::size_t Table::first_missing(std::span<const std::string> keys, std::size_t from) const {
  while (from < keys.size() && entries_.contains(keys[from])) ++from;
  return from;
}

std::vector<std::string> Table::missing(std::span<const std::string> keys) const {
  std::vector<std::string> result;
  for (std::size_t i = first_missing(keys); i < keys.size(); i = first_missing(keys, i + 1)) {
    result.push_back(keys[i]);
  }
  return result;
}

void Table::put(std::span<const std::string> keys, std::span<const std::string> values) {
  std::unordered_map<std::string, std::string> fresh;  // of a key that is there twice, the last
  for (std::size_t i = 0; i < keys.size(); ++i) fresh[keys[i]] = values[i];
  std::size_t key_count = entries_.size();
  std::size_t byte_count = byte_count_;
  for (const auto& [key, value] : fresh) {
    const auto found = entries_.find(key);
    byte_count += value.size();
    if (found == entries_.end()) {
      ++key_count;
      byte_count += key.size();
    } else {
      byte_count -= found->second.size();
    }
  }
  if (byte_count > kMaxTableBytes || key_count > kMaxTableKeys) {
    throw Error(ErrorCode::kSystem,
                fmt::format("the store is full: {} keys of {} bytes in all (limits {} and {}); "
                            "erase what is not needed any more",
                            entries_.size(), byte_count_, kMaxTableKeys, kMaxTableBytes));
  }
  const std::size_t at_most = entries_.size() + fresh.size();  // so many merge makes room for
  if (at_most >= entries_.bucket_count()) entries_.reserve(2 * at_most);
  // From here on nothing can be refused.
  for (auto& [key, value] : fresh) {
    const auto found = entries_.find(key);
    if (found != entries_.end()) found->second.swap(value);
  }
  entries_.merge(fresh);
  byte_count_ = byte_count;
}

std::int64_t Table::add(const std::string& key, std::int64_t amount) {
  const auto found = entries_.find(key);
  const std::int64_t old = found == entries_.end() ? 0 : parse_number(key, found->second);
  std::int64_t sum = 0;
  if (__builtin_add_overflow(old, amount, &sum)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("store add: {} + {} does not fit in 64 bits", old, amount));
  }
  const std::string text = std::to_string(sum);
  put(std::span(&key, 1), std::span(&text, 1));
  return sum;
}

Answer Table::get(const Call& call) const {
  Answer answer;
  std::size_t total = 0;
  for (const std::string& key : call.keys) {
    const std::string& value = entries_.find(key)->second;
    total += value.size() + 4;
    if (total > kMaxCallBytes - 64) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("store get: the values of {} keys are more than {} bytes: get fewer "
                              "at a time",
                              call.keys.size(), kMaxCallBytes - 64));
    }
    answer.values.push_back(value);
  }
  return answer;
}

std::optional<Answer> Table::apply(const Call& call) {
  check_limits(call);
  check_shape(call);
  const auto find = [&] { return entries_.find(call.keys[0]); };
  switch (call.command) {
    case Command::set:
      put(call.keys, call.values);
      return Answer{};
    case Command::get:
    case Command::wait:
      if (first_missing(call.keys) != call.keys.size()) return std::nullopt;
      return call.command == Command::get ? get(call) : Answer{};
    case Command::try_get:
      return find() == entries_.end() ? Answer{} : get(call);
    case Command::add:
      return Answer{{}, add(call.keys[0], call.number)};
    case Command::compare_set: {
      const auto found = find();
      const bool matches =
          found == entries_.end() ? call.values[0].empty() : found->second == call.values[0];
      // Whole before anything is set.
      Answer answer{{matches                   ? call.values[1]
                     : found == entries_.end() ? std::string()
                                               : found->second},
                    matches ? 1 : 0};
      if (matches) put(call.keys, std::span(&call.values[1], 1));
      return answer;
    }
    case Command::check:
      return Answer{{}, first_missing(call.keys) == call.keys.size() ? 1 : 0};
    case Command::erase: {
      const auto found = find();
      if (found == entries_.end()) return Answer{};
      byte_count_ -= found->first.size() + found->second.size();
      entries_.erase(found);
      return Answer{{}, 1};
    }
    case Command::will:
      throw Error(ErrorCode::kInternal, "a will is kept by the server, not by a table");
    case Command::num_keys:
      return Answer{{}, static_cast<std::int64_t>(entries_.size())};
    case Command::append: {
      const auto found = find();
      const std::string value =
          found == entries_.end() ? call.values[0] : found->second + call.values[0];
      if (value.size() > kMaxValueBytes) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("store append: key {} would grow to {} bytes, at most {} are taken",
                                format_keys(call.keys), value.size(), kMaxValueBytes));
      }
      put(call.keys, std::span(&value, 1));
      return Answer{};
    }
  }
  return Answer{};
}

}  // namespace tutti::store
