#include "plugins/nccl/progress.h"

#include <charconv>
#include <chrono>
#include <optional>
#include <string>

namespace tutti::nccl_backend {

namespace {

constexpr const char* kAsked = "nccl/asked";
/// Of each call of the store: other communicators wait meanwhile.
constexpr std::chrono::milliseconds kTimeout{500};

std::string reached_key(int rank) { return "nccl/reached/" + std::to_string(rank); }

std::uint64_t number_at(Store& store, const std::string& key) {
  const std::optional<std::string> text = store.try_get(key, kTimeout);
  std::uint64_t number = 0;
  if (text) std::from_chars(text->data(), text->data() + text->size(), number);
  return number;
}

}  // namespace

void Progress::answer(std::uint64_t reached) noexcept try {
  if (ranks_ == 1 || reached <= told_ || number_at(*store_, kAsked) <= told_) return;
  store_->set(reached_key(rank_), std::to_string(reached), kTimeout);
  told_ = reached;
} catch (const std::exception&) {  // those who ask ask again
}

bool Progress::have_all_reached(std::uint64_t number) noexcept try {
  if (ranks_ == 1) return true;
  if (number_at(*store_, kAsked) < number) {
    store_->set(kAsked, std::to_string(number), kTimeout);
  }
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank != rank_ && number_at(*store_, reached_key(rank)) < number) return false;
  }
  return true;
} catch (const std::exception&) {
  return false;
}

}  // namespace tutti::nccl_backend
