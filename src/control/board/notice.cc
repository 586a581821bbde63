#include "control/board/notice.h"

#include "control/board/board.h"
#include "control/board/layout.h"

namespace tutti::control {

std::optional<UntoldFailure> read_untold(const Board& board, SlotIndex slot) {
  const UntoldNotice& notice = board.slot(slot).untold;
  const std::uint32_t failure = notice.failure.load();
  if (failure == 0) return std::nullopt;
  return UntoldFailure{failure_code(failure), read_set(notice.culprits, board.world_size()),
                       notice.text.read(), notice.is_told.load() != 0};
}

void write_untold(const Board& board, SlotIndex slot,
                  const std::optional<UntoldFailure>& failure) noexcept {
  UntoldNotice& notice = board.slot(slot).untold;
  notice.failure.store(0);
  if (!failure) return;
  write_set(notice.culprits, failure->culprits, board.world_size());
  notice.text.write(failure->text);
  notice.is_told.store(failure->is_told ? 1 : 0);
  notice.failure.store(failure_word(failure->code));
}

}  // namespace tutti::control
