#include "launch/output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "base/of_rank.h"
#include "base/rank_list.h"
#include "launch/output_ends.h"

namespace tutti::launch {
namespace {

const char* name_of(Stream stream) noexcept { return stream == Stream::out ? "stdout" : "stderr"; }

}  // namespace

Output::Output(int ranks, int out_fd, int err_fd, OutputStyle style)
    : ranks_(ranks),
      style_(std::move(style)),
      is_raw_(ranks == 1 && !style_.names_streams && !style_.folds),
      splitters_(static_cast<std::size_t>(2 * ranks)),
      tails_(static_cast<std::size_t>(ranks)),
      folding_(ranks) {
  ends_[0].fd = out_fd;
  ends_[1].fd = err_fd;
  for (End& end : ends_) {
    end.is_terminal = ::isatty(end.fd) == 1;
    end.unblocking = open_unblocking(end.fd);
    end.on_screen = are_same_file(end.fd, err_fd);
  }
}

bool Output::is_shown(int rank, Stream stream) const noexcept {
  return style_.shown.empty() || has(of_rank(style_.shown, rank), stream);
}

std::string Output::prefix(std::string_view ranks, Stream stream) const {
  if (!style_.names_streams) return fmt::format("[{}] ", ranks);
  return fmt::format("[{}]<{}> ", ranks, name_of(stream));
}

LineSplitter& Output::splitter(int rank, Stream stream) {
  return splitters_[static_cast<std::size_t>(2 * rank) + index(stream)];
}

void Output::feed(int rank, Stream stream, std::string_view bytes) {
  if (is_raw_ && is_shown(rank, stream)) queue(stream, std::string(bytes));
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
  if (!is_shown(rank, stream)) {
    if (!is_draft) of_rank(tails_, rank).add(line, 0);
    return;
  }
  if (!is_draft) {
    const bool is_repeat = ranks_ > 1 && stream == Stream::err &&
                           repeats_.is_repeat(rank, line, Repeats::Clock::now());
    const bool on_screen = ends_[index(stream)].on_screen;
    if (on_screen && !is_repeat) ++lines_on_screen_;
    of_rank(tails_, rank).add(line, on_screen ? lines_on_screen_ : 0);
    if (is_repeat) return;
  }
  if (is_raw_) return;
  if (style_.folds) {
    const auto now = Repeats::Clock::now();
    if (!is_draft) folding_.add(rank, stream, line, now);
    return show_folded(now);
  }
  const std::string text = prefix(std::to_string(rank), stream).append(line);
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
  return is_raw_ ? 0 : static_cast<int>(prefix(std::to_string(rank), Stream::out).size());
}

void Output::say(std::string_view line) {
  ++lines_on_screen_;
  queue_line(Stream::err, std::string(line));
}

void Output::show_folded(Repeats::Clock::time_point now) {
  for (const Folding::Folded& each : folding_.take(now)) {
    queue_line(each.stream, prefix(format_ranks(each.ranks), each.stream) + each.line);
  }
}

void Output::say_due(Repeats::Clock::time_point now) {
  show_folded(now);
  for (const std::string& line : repeats_.close(now)) say(line);
}

std::vector<std::string> Output::last_lines(int rank) const {
  const std::uint64_t first = lines_on_screen_ < kScreen ? 1 : lines_on_screen_ - kScreen + 1;
  return of_rank(tails_, rank).lines(first);
}

void Output::forget_last_lines() noexcept {
  for (Tail& tail : tails_) tail = Tail();
}

Output::Queue& Output::queue_of(Stream stream) noexcept {
  return queues_[index(ends_[index(stream)].on_screen ? Stream::err : stream)];
}

void Output::queue(Stream stream, std::string bytes) {
  if (ends_[index(stream)].closed || bytes.empty()) return;
  queued_bytes_ += bytes.size();
  std::deque<Piece>& pieces = queue_of(stream).pieces;
  // Short pieces are written together.
  if (!pieces.empty() && pieces.back().stream == stream && pieces.back().bytes.size() < PIPE_BUF) {
    pieces.back().bytes += bytes;
  } else {
    pieces.push_back({stream, std::move(bytes)});
  }
}

int Output::awaited(Stream queue) const noexcept {
  const std::deque<Piece>& pieces = queues_[index(queue)].pieces;
  return pieces.empty() ? -1 : ends_[index(pieces.front().stream)].fd;
}

void Output::write_failed(Stream stream, int error) {
  End& end = ends_[index(stream)];
  end.closed = error == EPIPE;
  if (!end.closed && !std::exchange(end.complained, true)) {
    say(fmt::format("tutti: cannot write to {}: {}; its output is lost", name_of(stream),
                    std::strerror(error)));
  }
}

void Output::write_some(Stream which) {
  Queue& queue = queues_[index(which)];
  if (queue.pieces.empty()) return;
  const Piece& head = queue.pieces.front();
  const End& end = ends_[index(head.stream)];
  const std::size_t length = std::min<std::size_t>(head.bytes.size() - queue.written, PIPE_BUF);
  const char* bytes = head.bytes.data() + queue.written;
  const ssize_t wrote = end.unblocking ? ::write(end.unblocking.get(), bytes, length)
                                       : write_unblocking(end.fd, bytes, length);
  if (wrote < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (wrote < 0) {  // the piece is lost, as it would be for a program that writes there itself
    write_failed(head.stream, errno);
    return pop(queue);
  }
  queue.written += static_cast<std::size_t>(wrote);
  if (queue.written == queue.pieces.front().bytes.size()) pop(queue);
}

void Output::pop(Queue& queue) {
  queued_bytes_ -= queue.pieces.front().bytes.size();
  queue.pieces.pop_front();
  queue.written = 0;
}

void Output::drop_awaited(Stream which) {
  Queue& queue = queues_[index(which)];
  if (queue.pieces.empty()) return;
  const Stream stream = queue.pieces.front().stream;
  std::size_t bytes = 0;
  for (const Piece& piece : queue.pieces) bytes += piece.stream == stream ? piece.bytes.size() : 0;
  std::erase_if(queue.pieces, [&](const Piece& piece) { return piece.stream == stream; });
  queued_bytes_ -= bytes;
  ends_[index(stream)].closed = true;
  say(fmt::format("tutti: nobody reads {}: {} bytes of what was printed are dropped",
                  name_of(stream), bytes - std::exchange(queue.written, 0)));
}

}  // namespace tutti::launch
