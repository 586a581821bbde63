#include "progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

namespace {

constexpr std::size_t kBarWidth = 24;
constexpr auto kRedraw = std::chrono::milliseconds(200);
constexpr auto kLine = std::chrono::seconds(10);

}  // namespace

Progress::Progress(bool shown, std::size_t epochs, std::size_t steps_per_epoch)
    : shown_(shown),
      terminal_(isatty(STDERR_FILENO) == 1),
      epochs_(epochs),
      steps_per_epoch_(steps_per_epoch),
      last_shown_(Clock::now()) {}

void Progress::finish() {
  if (line_open_) std::fputc('\n', stderr);
  line_open_ = false;
}

bool Progress::due() const {
  if (!shown_) return false;
  const auto elapsed = Clock::now() - last_shown_;
  return terminal_ ? elapsed >= kRedraw : elapsed >= kLine;
}

void Progress::show(std::size_t step, double loss, double samples_per_second,
                    double communicating) {
  if (!shown_) return;
  last_shown_ = Clock::now();
  const std::size_t filled = std::min(kBarWidth, kBarWidth * step / (epochs_ * steps_per_epoch_));
  const std::string bar = std::string(filled, '#') + std::string(kBarWidth - filled, '.');
  const std::size_t epoch = (step - 1) / steps_per_epoch_;
  char line[200];
  std::snprintf(line, sizeof(line),
                "[%s] epoch %zu/%zu step %zu/%zu  loss %.3f  %.0f samples/s  communicating %.1f %%",
                bar.c_str(), epoch + 1, epochs_, step - epoch * steps_per_epoch_, steps_per_epoch_,
                loss, samples_per_second, 100 * communicating);
  if (terminal_) {
    std::fprintf(stderr, "\r\033[K%s", line);
    line_open_ = true;
  } else {
    std::fprintf(stderr, "%s\n", line);
  }
  std::fflush(stderr);
}
