#include "control/board/layout.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "control/board/words.h"

namespace tutti::control {

template <std::size_t Bytes>
void Text<Bytes>::write(std::string_view text) noexcept {
  const std::size_t used = std::min(text.size(), Bytes - 1);
  // What stood behind the zero may stay there.
  for (std::size_t i = 0; i <= used / 8; ++i) {
    std::uint64_t word = 0;
    if (i * 8 < used)
      std::memcpy(&word, text.data() + i * 8, std::min<std::size_t>(8, used - i * 8));
    words_[i].store(word, std::memory_order_release);
  }
}

template <std::size_t Bytes>
std::string Text<Bytes>::read() const {
  std::string text;
  for (std::size_t i = 0; i < Bytes / 8 && text.size() == i * 8; ++i) {
    const std::uint64_t word = words_[i].load(std::memory_order_acquire);
    std::array<char, 8> bytes;
    std::memcpy(bytes.data(), &word, 8);
    text.append(bytes.data(), strnlen(bytes.data(), 8));
  }
  make_printable(text);  // another process wrote it
  return text;
}

template class Text<kSiteBytes>;
template class Text<kNoticeBytes>;
template class Text<kVerdictBytes>;
template class Text<kPurposeBytes>;

Mark::State Mark::look() noexcept {
  if (owner_died.load() != 0) return State::owner_died;
  const int error = pthread_mutex_trylock(&mutex);
  if (error == EBUSY) return State::held;
  if (error == EOWNERDEAD) {
    // The word is what lasts. Leaving the mutex inconsistent, which POSIX says is final, is not:
    // glibc's trylock keeps an irrecoverable mutex locked, and the third to look would find it
    // held.
    owner_died.store(1);
    pthread_mutex_consistent(&mutex);
  }
  if (error == 0 || error == EOWNERDEAD) pthread_mutex_unlock(&mutex);
  return owner_died.load() != 0 ? State::owner_died : State::free;
}

bool Mark::take() noexcept { return look() == State::free && pthread_mutex_trylock(&mutex) == 0; }

}  // namespace tutti::control
