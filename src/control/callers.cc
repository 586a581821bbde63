#include "control/callers.h"

namespace tutti::control {

void Callers::note_another() noexcept {
  if (Process::forked()) return;
  std::uintptr_t nobody = 0;
  if (are_several_.load() || process_.on_control_thread()) return;  // that one runs callbacks only
  if (first_.compare_exchange_strong(nobody, self()) || nobody == self()) return;
  // On the board before this thread does anything there.
  own_.say_several_threads();
  are_several_.store(true);
}

}  // namespace tutti::control
