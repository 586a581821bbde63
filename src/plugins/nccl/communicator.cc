#include "plugins/nccl/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/config.h"
#include "base/wait.h"
#include "plugins/nccl/meeting.h"

namespace tutti::nccl_backend {

namespace {

using Clock = Deadline::Clock;

double seconds(std::chrono::nanoseconds time) noexcept {
  return std::chrono::duration<double>(time).count();
}

/// Between two looks at what NCCL has begun: most of it is queued within microseconds.
class Pause {
 public:
  void take() {
    if (taken_++ < kShort) return pause_core();
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }

 private:
  static constexpr int kShort = 100;
  int taken_ = 0;
};

/// NCCL tells hosts apart by their name and their boot, or by this variable.
std::string host_text(const Environment& environment, int host) {
  const auto own = environment.find("NCCL_HOSTID");
  return own != environment.end() ? own->second : fmt::format("number {}", host);
}

bool may_share_devices(const Environment& environment, const Nccl& nccl) {
  const auto allowed = environment.find("NCCL_MULTI_RANK_GPU_ENABLE");
  return nccl.at_least(2, 30, 3) && allowed != environment.end() && allowed->second == "1";
}

/// How often ranks look who asks how far they have come: a store serves many of them.
std::chrono::nanoseconds progress_period(const GroupSpec& spec) {
  const auto stall = parse_duration("stall_timeout", spec.settings.at("stall_timeout"));
  return std::clamp<std::chrono::nanoseconds>(stall / 8, std::chrono::milliseconds(20),
                                              std::chrono::seconds(4));
}

/// Some buffers of an operation may be empty, and then are nowhere.
const Device& device_of(const Request& request) noexcept {
  return request.output.device.kind == Device::Kind::cuda ? request.output.device
                                                          : request.input.device;
}

}  // namespace

Communicator::Communicator(const GroupSpec& spec, std::shared_ptr<const Nccl> nccl,
                           std::shared_ptr<WatchList> list)
    : rank_(spec.rank),
      ranks_(static_cast<int>(spec.world_ranks.size())),
      host_(spec.hosts.empty() ? 0 : spec.hosts.at(static_cast<std::size_t>(spec.rank))),
      store_(spec.store),
      timeout_(spec.timeout),
      cuda_file_(spec.settings.at("cuda_library")),
      nccl_(std::move(nccl)),
      list_(std::move(list)),
      progress_(store_, rank_, ranks_),
      progress_period_(progress_period(spec)),
      fail_group_(spec.fail) {}

Communicator::~Communicator() {
  if (cuda_ == nullptr) return;
  try {
    const device::Current current(*cuda_, device_);
    if (scratch_) cuda_->free(scratch_->memory);
    scratch_.reset();
    under_way_.reset();
  } catch (const std::exception&) {  // the device has failed, and has taken everything with it
  }
}

// ---- how it is made

void Communicator::prepare(const Request& request, const std::shared_ptr<Communicator>& own) {
  if (failed_.load()) check();
  const Device& device = device_of(request);
  if (device_ == device.index && cuda_ != nullptr) return;
  if (device.kind != Device::Kind::cuda) {
    throw Error(ErrorCode::kInvalidArgument, "nccl moves device memory only");
  }
  if (device_ >= 0 && device_ != device.index) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the buffer is on cuda:{}, and NCCL serves this group on cuda:{}, "
                            "where its first operation was: a group has one device for each rank",
                            device.index, device_));
  }
  make(device.index, own);
}

void Communicator::make(int device, const std::shared_ptr<Communicator>& own) try {
  cuda_ = &device::Cuda::open(cuda_file_);
  device_ = device;
  const device::Current current(*cuda_, device);
  under_way_.emplace(*cuda_);
  Deadline deadline = Deadline::after(timeout_);
  const ncclUniqueId id = meet(deadline);
  ncclConfig_t config;
  config.blocking = 0;
  std::unique_lock lock(calls_);
  check();
  const ncclResult_t result = nccl_->init_rank(&comm_, ranks_, id, rank_, &config);
  lock.unlock();
  list_->add(own);
  settle("ncclCommInitRankConfig", result, deadline);
} catch (const Error& failure) {
  keep(failure);
  throw;
}

/// The ranks of a group of one need no others.
ncclUniqueId Communicator::meet(Deadline& deadline) {
  const Environment environment = read_environment();
  Meeting meeting(*store_, rank_, ranks_, deadline.end(Clock::now()), [this] { check(); });
  if (ranks_ > 1) {
    meeting.share_devices(cuda_->bus_id(device_), host_text(environment, host_),
                          nccl_->version_text(), may_share_devices(environment, *nccl_));
  }
  return meeting.exchange_id(*nccl_);
}

// ---- its calls

void Communicator::check() const {
  const std::lock_guard lock(mutex_);
  if (failure_) throw Error(*failure_);
}

ncclResult_t Communicator::state() {
  const std::lock_guard lock(calls_);
  check();
  ncclResult_t state = ncclInProgress;
  const ncclResult_t result = nccl_->async_error(comm_, &state);
  return result == ncclSuccess ? state : result;
}

void Communicator::settle(const char* function, ncclResult_t result, Deadline& deadline) {
  Pause pause;
  while (result == ncclInProgress) {
    pause.take();
    check();
    if (deadline.expired(Clock::now())) {
      fail_with(Error(ErrorCode::kTimeout,
                      fmt::format("NCCL {}: {} has not got done within {:g} s",
                                  nccl_->version_text(), function, seconds(deadline.budget()))));
    }
    result = state();
  }
  if (result == ncclSuccess) return;
  std::unique_lock lock(calls_);
  check();
  const Error error = nccl_->error(function, result, comm_);
  lock.unlock();
  fail_with(error);
}

void* Communicator::scratch(std::size_t byte_count, Stream stream) {
  if (!scratch_) scratch_.emplace(*cuda_);
  if (scratch_->byte_count < byte_count) {
    cuda_->free(std::exchange(scratch_->memory, nullptr));  // CUDA waits for its last use
    scratch_->byte_count = 0;
    scratch_->memory = cuda_->allocate(byte_count);
    scratch_->byte_count = byte_count;
  }
  scratch_->used.order(stream);
  return scratch_->memory;
}

void Communicator::free_scratch(Stream stream) { scratch_->used.record(stream); }

// ---- how it ends

/// The group first: what NCCL reports may come from a death, which then is why.
void Communicator::keep(const Error& failure) noexcept {
  {
    const std::lock_guard lock(group_mutex_);
    if (fail_group_) fail_group_({failure.code(), failure.what(), failure.context().culprits, {}});
    fail_group_ = nullptr;
  }
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = failure;
  }
  failed_.store(true);
  list_->wake();
}

void Communicator::forget_group() noexcept {
  const std::lock_guard lock(group_mutex_);
  fail_group_ = nullptr;
}

void Communicator::fail(const Cause& cause) noexcept {
  forget_group();  // which knows
  keep(Error(cause.code, cause.text, {.culprits = cause.culprits, .host = cause.host}));
}

void Communicator::fail_with(const Error& failure) {
  keep(failure);
  check();
  throw Error(failure);
}

void Communicator::close(Deadline deadline) {
  check();
  {
    const std::lock_guard lock(calls_);
    check();
    if (comm_ == nullptr) ended_ = true;
    if (ended_) return;
  }
  call("ncclCommFinalize", deadline, nccl_->finalize);
  const std::lock_guard lock(calls_);
  check();
  const ncclResult_t result = nccl_->destroy(std::exchange(comm_, nullptr));
  ended_ = true;
  if (result != ncclSuccess) throw nccl_->error("ncclCommDestroy", result, nullptr);
}

bool Communicator::look() noexcept {
  try {
    if (!failed_.load()) look_for_errors();
  } catch (const Error& failure) {
    keep(failure);
  } catch (const std::exception& failure) {
    keep(Error(ErrorCode::kSystem, failure.what()));
  }
  return !end_if_failed();
}

void Communicator::look_for_errors() {
  {
    const std::unique_lock lock(calls_, std::try_to_lock);
    if (!lock || ended_) return;
    ncclResult_t state = ncclSuccess;
    const ncclResult_t result = nccl_->async_error(comm_, &state);
    const ncclResult_t worse = result == ncclSuccess ? state : result;
    if (worse != ncclSuccess && worse != ncclInProgress) {
      throw nccl_->error("an operation that was queued", worse, comm_);
    }
  }
  look_for_stall();
}

void Communicator::look_for_stall() {
  const Clock::time_point now = Clock::now();
  const auto first = under_way_->first_reached();
  if (now >= next_progress_) {
    next_progress_ = now + progress_period_;
    progress_.answer(under_way_->reached());
    // One that was there at the last look already.
    const bool is_slow = first && !first->stalls_since && first->number == awaited_;
    if (is_slow && progress_.have_all_reached(first->number)) under_way_->begin_stall(now);
    awaited_ = first ? first->number : 0;
  }
  if (!first || !first->is_stuck(now)) return;
  throw Error(
      ErrorCode::kTimeout,
      fmt::format("{} #{} was not done {:g} s after the devices of all ranks had come to it: "
                  "NCCL does not go on (NCCL_DEBUG=INFO makes it say more)",
                  first->call, first->seq, seconds(first->stall)),
      {.op = first->call, .seq = first->seq, .rank = rank_});
}

bool Communicator::end_if_failed() noexcept {
  const std::unique_lock lock(calls_, std::try_to_lock);
  if (!lock) return false;
  if (ended_ || !failed_.load()) return ended_;
  if (comm_ != nullptr) (void)nccl_->abort(std::exchange(comm_, nullptr));
  ended_ = true;
  return true;
}

}  // namespace tutti::nccl_backend
