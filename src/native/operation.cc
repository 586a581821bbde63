#include "native/operation.h"

namespace tutti::native {

namespace {

/// Steps to the end. A wait that sees something move ends and the next one begins: a large message
/// is many short waits, and only a long one should sleep.
WaitResult step_to_end(Operation& operation, const Waiter& waiter, Patience& patience) {
  bool done = false;
  const auto look = [&] {
    done = operation.step();
    return done || operation.take_moved();
  };
  WaitResult result = WaitResult::ready;
  while (result == WaitResult::ready && !done) result = wait(waiter, patience, look);
  return result;
}

}  // namespace

void run_blocking(Operation& operation, const Request& request, const Request& moved,
                  control::Membership& membership, const Waiter& waiter) {
  StepPatience patience(membership, request, moved, operation);
  WaitResult result = WaitResult::aborted;
  try {
    result = step_to_end(operation, waiter, patience);
  } catch (const std::exception&) {  // the others must not wait for this rank
    membership.fail_with_thrown();
    membership.throw_cause(request);  // which may be another one by now
  }
  switch (result) {
    case WaitResult::ready:
      return;
    case WaitResult::aborted:
      membership.throw_cause(request);
    case WaitResult::gave_up:
      membership.throw_gave_up(request);
  }
}

}  // namespace tutti::native
