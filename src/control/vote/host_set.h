// Sets of hosts, of any number.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

namespace tutti::control {

class HostSet {
 public:
  HostSet() = default;
  HostSet(std::initializer_list<int> hosts) {
    for (const int host : hosts) insert(host);
  }
  /// Hosts 0 to `count` - 1.
  static HostSet first(int count) {
    HostSet set;
    for (int host = 0; host < count; ++host) set.insert(host);
    return set;
  }

  bool empty() const noexcept { return words_.empty(); }
  int size() const noexcept {
    int count = 0;
    for (const std::uint64_t word : words_) count += std::popcount(word);
    return count;
  }
  bool contains(int host) const noexcept {
    const std::size_t index = index_of(host);
    return index < words_.size() && (words_[index] & bit_of(host)) != 0;
  }
  /// The lowest one; -1: there is none.
  int lowest() const noexcept {
    for (std::size_t i = 0; i < words_.size(); ++i)
      if (words_[i] != 0) return static_cast<int>(i * 64) + std::countr_zero(words_[i]);
    return -1;
  }
  bool is_within(const HostSet& other) const noexcept {
    for (std::size_t i = 0; i < words_.size(); ++i)
      if ((words_[i] & ~(i < other.words_.size() ? other.words_[i] : 0)) != 0) return false;
    return true;
  }
  std::vector<int> members() const {
    std::vector<int> hosts;
    for (std::size_t i = 0; i < words_.size(); ++i) {
      for (std::uint64_t word = words_[i]; word != 0; word &= word - 1)
        hosts.push_back(static_cast<int>(i * 64) + std::countr_zero(word));
    }
    return hosts;
  }

  void insert(int host) {
    if (index_of(host) >= words_.size()) words_.resize(index_of(host) + 1);
    words_[index_of(host)] |= bit_of(host);
  }
  HostSet& operator|=(const HostSet& other) {
    if (other.words_.size() > words_.size()) words_.resize(other.words_.size());
    for (std::size_t i = 0; i < other.words_.size(); ++i) words_[i] |= other.words_[i];
    return *this;
  }
  HostSet& operator-=(const HostSet& other) noexcept {
    for (std::size_t i = 0; i < words_.size() && i < other.words_.size(); ++i)
      words_[i] &= ~other.words_[i];
    while (!words_.empty() && words_.back() == 0) words_.pop_back();
    return *this;
  }
  friend HostSet operator-(HostSet left, const HostSet& right) noexcept { return left -= right; }
  friend HostSet operator|(HostSet left, const HostSet& right) { return left |= right; }
  bool operator==(const HostSet&) const = default;

 private:
  static std::size_t index_of(int host) noexcept { return static_cast<std::size_t>(host) / 64; }
  static std::uint64_t bit_of(int host) noexcept {
    return std::uint64_t{1} << (static_cast<unsigned>(host) % 64);
  }

  std::vector<std::uint64_t> words_;  // the last one is not zero
};

}  // namespace tutti::control
