#include "plugins/mpi/messages.h"

#include <new>
#include <thread>
#include <utility>

#include "kernels/kernels.h"

namespace tutti::mpi {

using Clock = Deadline::Clock;

Message::Message(Request request, Calls& calls, std::shared_ptr<Gate> gate,
                 std::unique_ptr<Process::Inside> inside)
    : WorkState(std::move(request)),
      calls_(calls),
      gate_(std::move(gate)),
      stall_(this->request().stall),
      inside_(std::move(inside)) {}

void Message::start(int tag, MPI_Comm comm) {
  const Request& message = request();
  const bool sends = message.op == Op::send;
  Transfer transfer{.peer = message.message.peer};
  transfer.byte_count = message.count * size_of(message.dtype);
  transfer.data =
      static_cast<std::byte*>(sends ? const_cast<void*>(message.input.data) : message.output.data);
  gate_->check();
  if (calls_.tested()) {
    copy_.reset(new (std::nothrow) std::byte[transfer.byte_count]);
    if (!copy_) throw Error(ErrorCode::kSystem, "backend \"mpi\": no memory to copy a message");
    if (sends) kernels::copy(copy_.get(), transfer.data, transfer.byte_count);
    transfer.data = copy_.get();
  } else {
    commitment_ = std::make_unique<Gate::Commitment>(*gate_, name_of(message.op).data());
  }
  begin();
  const std::span<const Transfer> one(&transfer, 1), none;
  pending_ = calls_.start(sends ? none : one, sends ? one : none, tag, comm);
  advance();
}

void Message::finish() {
  const Request& message = request();
  if (copy_ && message.op == Op::recv) {
    kernels::copy(message.output.data, copy_.get(), message.count * size_of(message.dtype));
  }
  copy_.reset();
  commitment_.reset();
  inside_.reset();
  end();
}

void Message::leave_to_mpi() noexcept {
  [[maybe_unused]] const std::byte* const abandoned = copy_.release();
}

void Message::advance() noexcept {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || done()) return;
  try {
    if (calls_.test(pending_)) return finish();
    if (!calls_.tested()) return;  // MPI has the buffer of the program: until it is done, or exits
    calls_.check_hope(request(), stall_);
  } catch (const Error& failure) {
    leave_to_mpi();
    inside_.reset();
    end(failure);
  }
}

bool Message::help(Clock::time_point until) {
  for (;;) {
    advance();
    if (done()) return true;
    if (Clock::now() >= until) return false;
    std::this_thread::yield();
  }
}

}  // namespace tutti::mpi
