#include "launch/lines.h"

#include <fmt/format.h>

#include <algorithm>

namespace tutti::launch {

void LineSplitter::feed(std::string_view bytes, const Emit& emit) {
  while (!bytes.empty()) {
    const std::size_t end = std::min(bytes.find_first_of("\r\n"), bytes.size());
    const std::size_t room = kLongestLine - partial_.size();
    if (end > room) {
      partial_ += bytes.substr(0, room);
      emit(partial_, false);
      partial_.clear();
      draft_.clear();
      bytes.remove_prefix(room);
      continue;
    }
    partial_ += bytes.substr(0, end);
    if (end == bytes.size()) return;
    if (bytes[end] == '\n') {
      emit(partial_.empty() ? draft_ : partial_, false);
      draft_.clear();
    } else if (!partial_.empty()) {
      draft_ = partial_;
      emit(draft_, true);
    }
    partial_.clear();
    bytes.remove_prefix(end + 1);
  }
}

void LineSplitter::finish(const Emit& emit) {
  if (partial_.empty()) partial_ = draft_;
  if (!partial_.empty()) emit(partial_, false);
  partial_.clear();
  draft_.clear();
}

namespace {

/// Of a line that terminate() or libtorch prints, not of the backtrace behind it.
bool is_cry(std::string_view line) {
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  return line.starts_with("terminate called") || line.starts_with("what():");
}

}  // namespace

void Tail::add(std::string_view line, std::uint64_t shown) {
  constexpr std::size_t kMostBytes = 500, kMostCries = 4;
  lines_.push_back({std::string(line.substr(0, kMostBytes)), shown});
  if (lines_.size() <= most_lines_) return;
  if (is_cry(lines_.front().text)) {
    cries_.push_back(std::move(lines_.front()));
    if (cries_.size() > kMostCries) cries_.pop_front();
  }
  lines_.pop_front();
}

std::vector<std::string> Tail::lines(std::uint64_t screen) const {
  std::vector<std::string> texts;
  bool is_shown = true;
  for (const auto* part : {&cries_, &lines_}) {
    for (const Line& line : *part) {
      texts.push_back(line.text);
      is_shown = is_shown && line.shown >= screen;
    }
  }
  return is_shown ? std::vector<std::string>() : texts;
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

std::string excerpt(std::string_view text, std::size_t most) {
  if (text.size() <= most) return without_control_characters(text);
  // Not in the middle of a letter.
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xc0) == 0x80) --most;
  return without_control_characters(text.substr(0, most)) + "...";
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
