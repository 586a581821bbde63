// Hearing that the job is to end, in time to save.
#pragma once

#include <functional>

#include "tutti/types.h"

namespace tutti {

/// Calls `callback` each time the process is asked to end: by SIGTERM, or by SIGINT (Ctrl-C).
/// `tutti run` hands both on to every rank, and they reach the ranks at different steps: to save
/// after the same one the ranks agree on it.
///
///     std::atomic<bool> asked = false;
///     tutti::on_terminate([&] { asked = true; });
///     for (;;) {
///       train_step();
///       const std::uint8_t mine = asked;
///       if (world.all_reduce_value(mine, {.op = tutti::ReduceOp::max}) == 0) continue;
///       save_checkpoint();
///       break;
///     }
///
/// Takes the place of the callback of an earlier call, and of what the program did on the two
/// signals; an empty callback gives both back to the system, which ends the process. A second
/// SIGINT ends it in any case.
///
/// Threads   May be called at any time. The callback runs in a thread of the library, not in a
///           signal handler, and may lock and allocate; one runs at a time. What it throws is
///           logged.
/// Lifetime  What the callback refers to must last until another one has taken its place: the call
///           that does so returns once an earlier callback that was running has ended, unless it
///           is made by that callback.
///           A forked child is ended by both signals, unless it calls this itself.
/// Errors    kSystem: the system gives no thread.
TUTTI_API void on_terminate(std::function<void()> callback);

}  // namespace tutti
