// A view of another store below a prefix.
#include <utility>

#include "tutti/store.h"

namespace tutti {
namespace {

class PrefixStore final : public Store {
 public:
  PrefixStore(std::shared_ptr<Store> base, std::string prefix)
      : base_(std::move(base)), prefix_(std::move(prefix) + '/') {}

  void set(std::string_view key, std::string_view value, Timeout timeout) override {
    base_->set(below(key), value, timeout);
  }
  std::string get(std::string_view key, Timeout timeout) override {
    return base_->get(below(key), timeout);
  }
  std::optional<std::string> try_get(std::string_view key, Timeout timeout) override {
    return base_->try_get(below(key), timeout);
  }
  std::int64_t add(std::string_view key, std::int64_t amount, Timeout timeout) override {
    return base_->add(below(key), amount, timeout);
  }
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                          Timeout timeout) override {
    return base_->compare_set(below(key), expected, desired, timeout);
  }
  void wait(std::span<const std::string> keys, Timeout timeout) override {
    base_->wait(below(keys), timeout);
  }
  bool check(std::span<const std::string> keys, Timeout timeout) override {
    return base_->check(below(keys), timeout);
  }
  bool erase(std::string_view key, Timeout timeout) override {
    return base_->erase(below(key), timeout);
  }
  std::int64_t num_keys(Timeout timeout) override { return base_->num_keys(timeout); }
  void append(std::string_view key, std::string_view value, Timeout timeout) override {
    base_->append(below(key), value, timeout);
  }
  std::vector<std::string> multi_get(std::span<const std::string> keys, Timeout timeout) override {
    return base_->multi_get(below(keys), timeout);
  }
  void multi_set(std::span<const std::string> keys, std::span<const std::string> values,
                 Timeout timeout) override {
    base_->multi_set(below(keys), values, timeout);
  }
  void barrier(std::string_view name, int world_size, Timeout timeout) override {
    base_->barrier(below(name), world_size, timeout);
  }

 private:
  std::string below(std::string_view key) const {
    // Without this an empty key would be accepted here and nowhere else.
    if (key.empty()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "prefix store: an empty key: give one of at least one byte");
    }
    return prefix_ + std::string(key);
  }
  std::vector<std::string> below(std::span<const std::string> keys) const {
    std::vector<std::string> result;
    result.reserve(keys.size());
    for (const std::string& key : keys) result.push_back(below(key));
    return result;
  }

  std::shared_ptr<Store> base_;
  std::string prefix_;
};

}  // namespace

std::shared_ptr<Store> make_prefix_store(std::shared_ptr<Store> base, std::string prefix) {
  if (base == nullptr) throw Error(ErrorCode::kInvalidArgument, "make_prefix_store: no base store");
  return std::make_shared<PrefixStore>(std::move(base), std::move(prefix));
}

}  // namespace tutti
