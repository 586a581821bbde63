#include "launch/lines.h"

#include <fmt/format.h>

#include <algorithm>

namespace tutti::launch {

void LineSplitter::feed(std::string_view bytes, const Emit& emit) {
  while (!bytes.empty()) {
    if (after_return_) {
      after_return_ = false;
      if (bytes.front() == '\n') {  // \r\n
        emit(draft_, false);
        bytes.remove_prefix(1);
        continue;
      }
    }
    const std::size_t end = std::min(bytes.find_first_of("\r\n"), bytes.size());
    const std::size_t room = kLongestLine - partial_.size();
    if (end > room) {
      partial_ += bytes.substr(0, room);
      emit(partial_, false);
      partial_.clear();
      bytes.remove_prefix(room);
      continue;
    }
    partial_ += bytes.substr(0, end);
    if (end == bytes.size()) return;
    if (bytes[end] == '\n') {
      emit(partial_, false);
    } else {
      draft_ = partial_;
      after_return_ = true;
      if (!draft_.empty()) emit(draft_, true);
    }
    partial_.clear();
    bytes.remove_prefix(end + 1);
  }
}

void LineSplitter::finish(const Emit& emit) {
  if (after_return_) partial_ = draft_;
  after_return_ = false;
  if (!partial_.empty()) emit(partial_, false);
  partial_.clear();
}

void Tail::add(std::string_view line) {
  constexpr std::size_t kMostBytes = 500;
  lines_.emplace_back(line.substr(0, kMostBytes));
  if (lines_.size() > most_lines_) lines_.pop_front();
}

std::string without_control_characters(std::string_view text) {
  std::string clean;
  for (const char letter : text) {
    const auto code = static_cast<unsigned char>(letter);
    if ((code < 0x20 && letter != '\t') || code == 0x7f) {
      clean += fmt::format("\\x{:02x}", code);
    } else {
      clean += letter;
    }
  }
  return clean;
}

std::string_view first_columns(std::string_view text, int columns) {
  bool in_escape = false;
  int used = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto code = static_cast<unsigned char>(text[i]);
    if (in_escape) {
      in_escape = code == '[' || !(code >= 0x40 && code <= 0x7e);
    } else if (code == 0x1b) {
      in_escape = true;
    } else if ((code & 0xc0) != 0x80 && ++used > columns) {
      return text.substr(0, i);
    }
  }
  return text;
}

}  // namespace tutti::launch
