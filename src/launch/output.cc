#include "launch/output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "launch/output_ends.h"

namespace tutti::launch {

Output::Output(int ranks, int out_fd, int err_fd)
    : ranks_(ranks),
      splitters_(static_cast<std::size_t>(2 * ranks)),
      tails_(static_cast<std::size_t>(ranks)) {
  ends_[0].fd = out_fd;
  ends_[1].fd = err_fd;
  for (End& end : ends_) end.is_terminal = ::isatty(end.fd) == 1;
}

LineSplitter& Output::splitter(int rank, Stream stream) {
  return splitters_[static_cast<std::size_t>(2 * rank) + index(stream)];
}

void Output::feed(int rank, Stream stream, std::string_view bytes) {
  if (ranks_ == 1) queue(stream, std::string(bytes));
  splitter(rank, stream).feed(bytes, [&](std::string_view line, bool is_draft) {
    print(rank, stream, line, is_draft);
  });
}

void Output::finish(int rank, Stream stream) {
  splitter(rank, stream).finish([&](std::string_view line, bool is_draft) {
    print(rank, stream, line, is_draft);
  });
}

void Output::print(int rank, Stream stream, std::string_view line, bool is_draft) {
  if (!is_draft) tails_[static_cast<std::size_t>(rank)].add(line);
  if (ranks_ == 1) return;
  const std::string text = fmt::format("[{}] {}", rank, line);
  if (is_draft) return print_draft(rank, stream, text);
  // The line that the draft was to become, or one that replaces it.
  if (draft_.rank == rank && draft_.stream == stream && !draft_.text.empty()) {
    draft_.text.clear();
    return queue(stream, fmt::format("\r\x1b[K{}\n", text));
  }
  queue_line(stream, text);
}

void Output::print_draft(int rank, Stream stream, const std::string& text) {
  const End& end = ends_[index(stream)];
  if (!end.is_terminal || is_long()) return;
  const int columns = terminal_columns(end.fd);
  draft_ = {columns > 1 ? std::string(first_columns(text, columns - 1)) : text, rank, stream};
  queue(stream, fmt::format("\r\x1b[K{}", draft_.text));
}

void Output::queue_line(Stream stream, const std::string& text) {
  if (draft_.text.empty() || !ends_[index(stream)].is_terminal) return queue(stream, text + '\n');
  queue(draft_.stream, "\r\x1b[K");
  queue(stream, text + '\n');
  queue(draft_.stream, draft_.text);
}

int Output::prefix_columns(int rank) const {
  return ranks_ == 1 ? 0 : static_cast<int>(fmt::formatted_size("[{}] ", rank));
}

void Output::say(std::string_view line) { queue_line(Stream::err, std::string(line)); }

void Output::queue(Stream stream, std::string bytes) {
  if (ends_[index(stream)].closed || bytes.empty()) return;
  queued_bytes_ += bytes.size();
  // Short pieces are written together.
  if (!queue_.empty() && queue_.back().stream == stream && queue_.back().bytes.size() < PIPE_BUF) {
    queue_.back().bytes += bytes;
  } else {
    queue_.push_back({stream, std::move(bytes)});
  }
}

int Output::awaited() const noexcept {
  return queue_.empty() ? -1 : ends_[index(queue_.front().stream)].fd;
}

void Output::write_some() {
  if (queue_.empty()) return;
  const Piece& head = queue_.front();
  End& end = ends_[index(head.stream)];
  // A pipe that has room takes PIPE_BUF bytes without blocking.
  const std::size_t length = std::min<std::size_t>(head.bytes.size() - written_, PIPE_BUF);
  const ssize_t wrote = ::write(end.fd, head.bytes.data() + written_, length);
  if (wrote < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (wrote < 0) {
    const int error = errno;
    end.closed = error == EPIPE;
    written_ = head.bytes.size();  // lost, as it would be for a program that writes there itself
    if (!end.closed && !std::exchange(end.complained, true)) {
      say(fmt::format("tutti: cannot write to {}: {}; its output is lost",
                      head.stream == Stream::out ? "stdout" : "stderr", std::strerror(error)));
    }
  } else {
    written_ += static_cast<std::size_t>(wrote);
  }
  if (written_ < queue_.front().bytes.size()) return;
  queued_bytes_ -= queue_.front().bytes.size();
  queue_.pop_front();
  written_ = 0;
}

}  // namespace tutti::launch
