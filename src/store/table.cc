#include "store/table.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>

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

void Table::put(const std::string& key, std::string value) {
  const auto found = entries_.find(key);
  const std::size_t old_bytes =
      found == entries_.end() ? 0 : found->first.size() + found->second.size();
  const std::size_t bytes = byte_count_ - old_bytes + key.size() + value.size();
  if (bytes > kMaxTableBytes || (found == entries_.end() && entries_.size() == kMaxTableKeys)) {
    throw Error(ErrorCode::kSystem,
                fmt::format("the store is full: {} keys of {} bytes in all (limits {} and {}); "
                            "erase what is not needed any more",
                            entries_.size(), byte_count_, kMaxTableKeys, kMaxTableBytes));
  }
  entries_[key] = std::move(value);
  byte_count_ = bytes;
}

std::int64_t Table::add(const std::string& key, std::int64_t amount) {
  const auto found = entries_.find(key);
  const std::int64_t old = found == entries_.end() ? 0 : parse_number(key, found->second);
  std::int64_t sum = 0;
  if (__builtin_add_overflow(old, amount, &sum)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("store add: {} + {} does not fit in 64 bits", old, amount));
  }
  put(key, std::to_string(sum));
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
      for (std::size_t i = 0; i < call.keys.size(); ++i) put(call.keys[i], call.values[i]);
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
      if (matches) put(call.keys[0], call.values[1]);
      const auto now = find();
      return Answer{{now == entries_.end() ? std::string() : now->second}, matches ? 1 : 0};
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
      std::string value = found == entries_.end() ? call.values[0] : found->second + call.values[0];
      if (value.size() > kMaxValueBytes) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("store append: key {} would grow to {} bytes, at most {} are taken",
                                format_keys(call.keys), value.size(), kMaxValueBytes));
      }
      put(call.keys[0], std::move(value));
      return Answer{};
    }
  }
  return Answer{};
}

}  // namespace tutti::store
