#include "common/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

namespace {

constexpr std::size_t kBarWidth = 24;
constexpr auto kRedraw = std::chrono::milliseconds(200);
constexpr auto kLine = std::chrono::seconds(10);

}  // namespace

Progress::Progress(const tutti::ProcessGroup& world, std::size_t epochs,
                   std::size_t steps_per_epoch)
    : shown_(world.rank() == 0),
      terminal_(isatty(STDERR_FILENO) == 1),
      ranks_(world.world_size()),
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

void Progress::show(std::size_t step, double loss, const Speed& own) {
  if (!shown_) return;
  last_shown_ = Clock::now();
  const std::size_t all_steps = std::max(epochs_, std::size_t{1}) * steps_per_epoch_;
  const std::size_t filled = std::min(kBarWidth, kBarWidth * step / all_steps);
  const std::string bar = std::string(filled, '#') + std::string(kBarWidth - filled, '.');
  const std::size_t epoch = (step - 1) / steps_per_epoch_;
  const std::string in_epoch =
      epochs_ == 0 ? ""
                   : "epoch " + std::to_string(epoch + 1) + "/" + std::to_string(epochs_) + " ";
  char line[200];
  std::snprintf(line, sizeof(line),
                "[%s] %sstep %zu/%zu  loss %.3f  %.0f samples/s  communicating %.1f %%",
                bar.c_str(), in_epoch.c_str(), step - epoch * steps_per_epoch_, steps_per_epoch_,
                loss, own.samples_per_second * ranks_, 100 * own.communicating);
  if (terminal_) {
    std::fprintf(stderr, "\r\033[K%s", line);
    line_open_ = true;
  } else {
    std::fprintf(stderr, "%s\n", line);
  }
  std::fflush(stderr);
}
