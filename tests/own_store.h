// A store as a program writes one of its own: its seven functions, on top of another store.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "tutti/store.h"

namespace tutti::test {

class OwnStore : public Store {
 public:
  explicit OwnStore(std::shared_ptr<Store> base = make_memory_store()) : base_(std::move(base)) {}

  void set(std::string_view key, std::string_view value, Timeout timeout) override {
    base_->set(key, value, timeout);
  }
  std::string get(std::string_view key, Timeout timeout) override {
    return base_->get(key, timeout);
  }
  std::optional<std::string> try_get(std::string_view key, Timeout timeout) override {
    return base_->try_get(key, timeout);
  }
  std::int64_t add(std::string_view key, std::int64_t amount, Timeout timeout) override {
    return base_->add(key, amount, timeout);
  }
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                          Timeout timeout) override {
    return base_->compare_set(key, expected, desired, timeout);
  }
  void append(std::string_view key, std::string_view value, Timeout timeout) override {
    base_->append(key, value, timeout);
  }
  bool erase(std::string_view key, Timeout timeout) override { return base_->erase(key, timeout); }

 protected:
  const std::shared_ptr<Store> base_;
};

}  // namespace tutti::test
