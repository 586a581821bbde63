#include "store/call_store.h"

namespace tutti::store {
namespace {

std::vector<std::string> copy(std::span<const std::string> list) {
  return {list.begin(), list.end()};
}

}  // namespace

Answer CallStore::checked(const Call& call, Timeout timeout, std::size_t values_wanted) {
  check_limits(call);
  if (timeout < Timeout::zero()) {
    throw Error(ErrorCode::kInvalidArgument,
                "store: a timeout of " + std::to_string(timeout.count()) + " ms");
  }
  Answer answer = perform(call, timeout);
  if (answer.values.size() != values_wanted && call.command != Command::try_get) {
    throw Error(ErrorCode::kInternal, "the store answered with another number of values");
  }
  return answer;
}

void CallStore::set(std::string_view key, std::string_view value, Timeout timeout) {
  checked({Command::set, {std::string(key)}, {std::string(value)}}, timeout, 0);
}

std::string CallStore::get(std::string_view key, Timeout timeout) {
  return std::move(checked({Command::get, {std::string(key)}}, timeout, 1).values[0]);
}

std::optional<std::string> CallStore::try_get(std::string_view key, Timeout timeout) {
  Answer answer = checked({Command::try_get, {std::string(key)}}, timeout, 1);
  if (answer.values.empty()) return std::nullopt;
  return std::move(answer.values[0]);
}

std::int64_t CallStore::add(std::string_view key, std::int64_t amount, Timeout timeout) {
  return checked({Command::add, {std::string(key)}, {}, amount}, timeout, 0).number;
}

std::string CallStore::compare_set(std::string_view key, std::string_view expected,
                                   std::string_view desired, Timeout timeout) {
  const Call call{
      Command::compare_set, {std::string(key)}, {std::string(expected), std::string(desired)}};
  return std::move(checked(call, timeout, 1).values[0]);
}

void CallStore::wait(std::span<const std::string> keys, Timeout timeout) {
  checked({Command::wait, copy(keys)}, timeout, 0);
}

bool CallStore::check(std::span<const std::string> keys, Timeout timeout) {
  return checked({Command::check, copy(keys)}, timeout, 0).number != 0;
}

bool CallStore::erase(std::string_view key, Timeout timeout) {
  return checked({Command::erase, {std::string(key)}}, timeout, 0).number != 0;
}

std::int64_t CallStore::num_keys(Timeout timeout) {
  return checked({Command::num_keys}, timeout, 0).number;
}

void CallStore::append(std::string_view key, std::string_view value, Timeout timeout) {
  checked({Command::append, {std::string(key)}, {std::string(value)}}, timeout, 0);
}

std::vector<std::string> CallStore::multi_get(std::span<const std::string> keys, Timeout timeout) {
  return checked({Command::get, copy(keys)}, timeout, keys.size()).values;
}

void CallStore::multi_set(std::span<const std::string> keys, std::span<const std::string> values,
                          Timeout timeout) {
  checked({Command::set, copy(keys), copy(values)}, timeout, 0);
}

}  // namespace tutti::store
