// The functions of NCCL, and the control of the stand-in. Its version is TUTTI_STANDIN_NCCL, a code
// of ncclGetVersion; before 2.28.3 some functions are not there.
//
// The communicators of one id are a *clique*. What a rank queues at once is a list of *pieces*:
// collectives, those of one number on all ranks belong together, and messages, which have numbers
// of their own for each pair of ranks. In their stream pieces first *deposit* what they send, and
// then wait for what they *take*.
#include "standin/nccl.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/half.h"
#include "base/wait.h"
#include "plugins/nccl/api.h"

#define TUTTI_NCCL __attribute__((visibility("default"))) ncclResult_t

namespace tutti::nccl_backend {

/// The one of the declarations.
struct ncclComm {
  int rank = 0;
  std::string id;
};

namespace {

using standin::NcclControl;
using standin::NcclCounts;

using HostFunction = void(void*);
using LaunchHostFunction = int(void* stream, HostFunction* function, void* data);
using View = void*(void* device_pointer);

/// Of the stand-in of CUDA, which the program has opened by now.
template <class Function>
Function* of_cuda(const char* symbol) {
  static void* const library = ::dlopen(TUTTI_STANDIN_CUDA, RTLD_NOW | RTLD_LOCAL);
  return library == nullptr ? nullptr : reinterpret_cast<Function*>(::dlsym(library, symbol));
}

std::byte* view(const void* device_pointer) {
  static View* const see = of_cuda<View>("tutti_standin_view");
  void* const seen = see(const_cast<void*>(device_pointer));
  if (seen == nullptr) {
    std::fputs("the stand-in of NCCL: memory was freed that a stream has work left with\n", stderr);
    std::abort();
  }
  return static_cast<std::byte*>(seen);
}

constexpr std::size_t kTypeBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
constexpr int kFirstOwnOperator = 100;

enum class What { broadcast, all_reduce, reduce, reduce_scatter, all_gather, send, recv };

struct Piece {
  What what = What::send;
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;  // as the function was told
  ncclDataType_t type = ncclInt8;
  ncclRedOp_t op = ncclSum;
  double factor = 1;  // of an operator of premul_sum
  int peer = -1;      // or root
  std::uint64_t number = 0;
};

using Bytes = std::vector<std::byte>;

/// The inputs of one collective, by rank.
struct Launch {
  std::vector<Bytes> inputs;
  int arrived = 0;
  int left = 0;
};

struct Mail {
  int from, to;
  std::uint64_t number;
  auto operator<=>(const Mail&) const = default;
};

/// What is the same for all ranks of a group.
struct Clique {
  int ranks = 0;
  int joined = 0;
  std::map<std::uint64_t, std::shared_ptr<Launch>> launches = {};
  std::map<Mail, Bytes> messages = {};
};

struct Comm {
  ncclComm handle;
  std::shared_ptr<Clique> clique;
  std::uint64_t collectives = 0;
  std::map<int, std::uint64_t> sent, received;  // messages, by peer
  int under_way = 0;                            // tasks that have not ended
  int polls_left = 0;
  bool hangs = false;
  bool is_aborted = false;
  ncclResult_t error = ncclSuccess;
  std::map<int, double> operators;  // of premul_sum
  int next_operator = kFirstOwnOperator;
  std::atomic<int> inside{0};
};

struct Injection {
  std::string function;
  int calls_left = 0;
  bool hangs = false;
  ncclResult_t result = ncclSuccess;
};

/// Everything, under one mutex.
class World {
 public:
  static World& get() {
    static World& world = *new World;  // streams use it until the process ends
    return world;
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::shared_ptr<Clique>> cliques;
  std::map<ncclComm*, std::shared_ptr<Comm>> comms;
  std::map<std::string, std::uint64_t> calls;
  std::vector<Injection> injections;
  int polls = 0;
  int aborted = 0;
  int overlaps = 0;
  std::uint64_t ids = 0;
};

std::shared_ptr<Comm> find(ncclComm_t comm) {
  World& world = World::get();
  const auto found = world.comms.find(comm);
  return found == world.comms.end() ? nullptr : found->second;
}

/// One call: counts it, notices another thread inside the communicator, and injects.
class Call {
 public:
  explicit Call(const char* function, ncclComm_t comm = nullptr) : lock_(World::get().mutex) {
    World& world = World::get();
    ++world.calls[function];
    comm_ = find(comm);
    if (comm_ != nullptr) {
      if (comm_->inside.fetch_add(1) > 0) ++world.overlaps;
      lock_.unlock();
      for (int i = 0; i < 200; ++i) pause_core();  // for another thread to be noticed
      lock_.lock();
    }
    for (auto each = world.injections.begin(); each != world.injections.end(); ++each) {
      if (each->function != function || --each->calls_left > 0) continue;
      injected_ = *each;
      world.injections.erase(each);
      break;
    }
  }
  ~Call() {
    if (comm_ != nullptr) comm_->inside.fetch_sub(1);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  bool fails() const { return injected_.result != ncclSuccess; }
  ncclResult_t result() const { return injected_.result; }
  const std::shared_ptr<Comm>& comm() const { return comm_; }
  std::unique_lock<std::mutex>& lock() { return lock_; }
  /// What was begun; known about when it was asked for often enough.
  ncclResult_t begun(Comm& comm) const {
    comm.hangs |= injected_.hangs;
    comm.polls_left = World::get().polls;
    return comm.hangs || comm.polls_left > 0 ? ncclInProgress : ncclSuccess;
  }

 private:
  std::unique_lock<std::mutex> lock_;
  std::shared_ptr<Comm> comm_;
  Injection injected_;
};

// ---- arithmetic

template <class T>
T combined(ncclRedOp_t op, T left, T right) {
  if constexpr (std::is_floating_point_v<T>) {  // a number wins over NaN, as with NCCL
    if (op == ncclProd) return left * right;
    if (op == ncclMax) return std::fmax(left, right);
    if (op == ncclMin) return std::fmin(left, right);
    return left + right;
  } else {  // wraps around
    const auto a = static_cast<std::uint64_t>(left), b = static_cast<std::uint64_t>(right);
    if (op == ncclProd) return static_cast<T>(a * b);
    if (op == ncclMax) return std::max(left, right);
    if (op == ncclMin) return std::min(left, right);
    return static_cast<T>(a + b);
  }
}

template <class T>
T element(const Bytes& bytes, std::size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

/// `T`: how an element lies in memory; `load` and `store`: to and from what is computed in.
template <class T, class Load, class Store>
void reduce_as(const Piece& piece, const std::vector<const Bytes*>& inputs, std::size_t first,
               std::size_t count, Load load, Store store) {
  using Sum = decltype(load(T{}));
  for (std::size_t i = 0; i < count; ++i) {
    Sum sum{};
    for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
      Sum value = load(element<T>(*inputs[rank], first + i));
      if (piece.op >= kFirstOwnOperator) value = static_cast<Sum>(value * piece.factor);
      sum = rank == 0 ? value : combined<Sum>(piece.op, sum, value);
    }
    if (piece.op == ncclAvg) sum = static_cast<Sum>(sum / static_cast<Sum>(inputs.size()));
    const T result = store(sum);
    std::memcpy(view(piece.output) + i * sizeof(T), &result, sizeof(T));
  }
}

template <class T>
void reduce_plain(const Piece& piece, const std::vector<const Bytes*>& inputs, std::size_t first,
                  std::size_t count) {
  const auto same = [](T value) { return value; };
  reduce_as<T>(piece, inputs, first, count, same, same);
}

/// Combines elements [first, first + count) of the inputs.
void reduce(const Piece& piece, const std::vector<const Bytes*>& inputs, std::size_t first,
            std::size_t count) {
  switch (piece.type) {
    case ncclInt8:
      return reduce_plain<std::int8_t>(piece, inputs, first, count);
    case ncclUint8:
      return reduce_plain<std::uint8_t>(piece, inputs, first, count);
    case ncclInt32:
      return reduce_plain<std::int32_t>(piece, inputs, first, count);
    case ncclUint32:
      return reduce_plain<std::uint32_t>(piece, inputs, first, count);
    case ncclInt64:
      return reduce_plain<std::int64_t>(piece, inputs, first, count);
    case ncclUint64:
      return reduce_plain<std::uint64_t>(piece, inputs, first, count);
    case ncclFloat32:
      return reduce_plain<float>(piece, inputs, first, count);
    case ncclFloat64:
      return reduce_plain<double>(piece, inputs, first, count);
    case ncclFloat16:
      return reduce_as<std::uint16_t>(piece, inputs, first, count, half_value, half_bits);
    case ncclBfloat16:
      return reduce_as<std::uint16_t>(piece, inputs, first, count, bfloat_value, bfloat_bits);
  }
}

// ---- what runs in a stream

struct Task {
  std::shared_ptr<Comm> comm;
  std::vector<Piece> pieces;
};

bool has_input(const Piece& piece, int rank) {
  return piece.what != What::recv && (piece.what != What::broadcast || piece.peer == rank);
}

Bytes input_of(const Piece& piece, int rank, int ranks) {
  if (!has_input(piece, rank) || piece.count == 0) return {};
  const std::size_t parts =
      piece.what == What::reduce_scatter ? static_cast<std::size_t>(ranks) : 1;
  const std::size_t bytes = piece.count * parts * kTypeBytes[piece.type];
  Bytes copy(bytes);
  std::memcpy(copy.data(), view(piece.input), bytes);
  return copy;
}

void put(void* output, std::size_t offset, const Bytes& bytes) {
  if (!bytes.empty()) std::memcpy(view(output) + offset, bytes.data(), bytes.size());
}

bool is_message(const Piece& piece) { return piece.what == What::send || piece.what == What::recv; }

void deposit(Comm& comm, const Piece& piece) {
  const int ranks = comm.clique->ranks, rank = comm.handle.rank;
  Bytes input = input_of(piece, rank, ranks);
  World& world = World::get();
  const std::lock_guard lock(world.mutex);
  if (piece.what == What::send) {
    comm.clique->messages[{rank, piece.peer, piece.number}] = std::move(input);
  } else if (piece.what != What::recv) {
    auto& launch = comm.clique->launches[piece.number];
    if (launch == nullptr) launch = std::make_shared<Launch>();
    launch->inputs.resize(static_cast<std::size_t>(ranks));
    launch->inputs[static_cast<std::size_t>(rank)] = std::move(input);
    ++launch->arrived;
  }
  world.changed.notify_all();
}

/// Takes what has been sent; false: aborted.
bool receive(Comm& comm, const Piece& piece) {
  World& world = World::get();
  std::unique_lock lock(world.mutex);
  const Mail mail{piece.peer, comm.handle.rank, piece.number};
  auto& messages = comm.clique->messages;
  world.changed.wait(lock, [&] { return comm.is_aborted || messages.contains(mail); });
  if (comm.is_aborted) return false;
  const Bytes bytes = std::move(messages[mail]);
  messages.erase(mail);
  lock.unlock();
  put(piece.output, 0, bytes);
  return true;
}

/// Waits for the inputs of all ranks; null: aborted.
std::shared_ptr<Launch> meet(Comm& comm, const Piece& piece) {
  World& world = World::get();
  std::unique_lock lock(world.mutex);
  const std::shared_ptr<Launch> launch = comm.clique->launches[piece.number];
  world.changed.wait(lock,
                     [&] { return comm.is_aborted || launch->arrived == comm.clique->ranks; });
  if (comm.is_aborted) return nullptr;
  if (++launch->left == comm.clique->ranks) comm.clique->launches.erase(piece.number);
  return launch;
}

/// What `piece` makes of the inputs of all ranks.
void take(const Piece& piece, int rank, const Launch& launch) {
  std::vector<const Bytes*> inputs;
  for (const Bytes& input : launch.inputs) inputs.push_back(&input);
  const std::size_t bytes = piece.count * kTypeBytes[piece.type];
  if (piece.count == 0) return;
  switch (piece.what) {
    case What::broadcast:
      return put(piece.output, 0, *inputs[static_cast<std::size_t>(piece.peer)]);
    case What::all_gather:
      for (std::size_t from = 0; from < inputs.size(); ++from) {
        put(piece.output, from * bytes, *inputs[from]);
      }
      return;
    case What::all_reduce:
      return reduce(piece, inputs, 0, piece.count);
    case What::reduce:
      if (piece.peer == rank) reduce(piece, inputs, 0, piece.count);
      return;
    case What::reduce_scatter:
      return reduce(piece, inputs, static_cast<std::size_t>(rank) * piece.count, piece.count);
    case What::send:
    case What::recv:
      return;
  }
}

void leave(const Task& task) {
  World& world = World::get();
  const std::lock_guard lock(world.mutex);
  --task.comm->under_way;
  world.changed.notify_all();
}

void work(void* data) {
  const std::unique_ptr<Task> task(static_cast<Task*>(data));
  Comm& comm = *task->comm;
  for (const Piece& piece : task->pieces) deposit(comm, piece);
  for (const Piece& piece : task->pieces) {
    if (piece.what == What::recv) {
      if (!receive(comm, piece)) break;
    } else if (piece.what != What::send) {
      const std::shared_ptr<Launch> launch = meet(comm, piece);
      if (launch == nullptr) break;
      take(piece, comm.handle.rank, *launch);
    }
  }
  leave(*task);
}

// ---- what is queued

struct Batch {
  int depth = 0;
  ncclComm_t comm = nullptr;
  void* stream = nullptr;
  std::vector<Piece> pieces;
};
thread_local Batch batch;

ncclResult_t launch(Comm& comm, const std::shared_ptr<Comm>& owner, std::vector<Piece> pieces,
                    void* stream) {
  static auto* const queue = of_cuda<LaunchHostFunction>("cuLaunchHostFunc");
  for (Piece& piece : pieces) {
    piece.number = piece.what == What::send   ? comm.sent[piece.peer]++
                   : piece.what == What::recv ? comm.received[piece.peer]++
                                              : comm.collectives++;
  }
  auto task = std::make_unique<Task>(Task{owner, std::move(pieces)});
  if (queue(stream, work, task.get()) != 0) return ncclUnhandledCudaError;
  (void)task.release();
  ++comm.under_way;
  return ncclSuccess;
}

ncclResult_t queue(const char* function, ncclComm_t handle, void* stream, Piece piece) {
  Call call(function, handle);
  if (call.fails()) return call.result();
  if (call.comm() == nullptr) return ncclInvalidArgument;
  Comm& comm = *call.comm();
  if (comm.error != ncclSuccess) return comm.error;
  if (piece.op >= kFirstOwnOperator) {
    const auto own = comm.operators.find(piece.op);
    if (own == comm.operators.end()) return ncclInvalidArgument;
    piece.factor = own->second;
  }
  if (batch.depth > 0) {
    batch.comm = handle;
    batch.stream = stream;
    batch.pieces.push_back(piece);
    return ncclSuccess;
  }
  if (is_message(piece) && piece.peer == comm.handle.rank)
    return ncclInvalidUsage;  // not in a batch
  const ncclResult_t result = launch(comm, call.comm(), {piece}, stream);
  return result == ncclSuccess ? call.begun(comm) : result;
}

double scalar(const void* data, ncclDataType_t type) {
  std::uint16_t bits = 0;
  float in_f32 = 0;
  double in_f64 = 0;
  if (type == ncclFloat64) {
    std::memcpy(&in_f64, data, sizeof in_f64);
    return in_f64;
  }
  if (type == ncclFloat32) {
    std::memcpy(&in_f32, data, sizeof in_f32);
    return in_f32;
  }
  std::memcpy(&bits, data, sizeof bits);
  return type == ncclFloat16 ? half_value(bits) : bfloat_value(bits);
}

/// Of one that goes.
void remove(World& world, ncclComm_t handle) { world.comms.erase(handle); }

void reset() {
  World& world = World::get();
  const std::lock_guard lock(world.mutex);
  world.injections.clear();
  world.calls.clear();
  world.polls = world.aborted = world.overlaps = 0;
}

NcclCounts counts() {
  World& world = World::get();
  const std::lock_guard lock(world.mutex);
  int operators = 0;
  for (const auto& [handle, comm] : world.comms)
    operators += static_cast<int>(comm->operators.size());
  return {static_cast<int>(world.comms.size()), world.aborted, world.overlaps, operators};
}

void inject(Injection injection) {
  World& world = World::get();
  const std::lock_guard lock(world.mutex);
  world.injections.push_back(std::move(injection));
}

constexpr NcclControl kControl = {
    .reset = reset,
    .set_polls =
        [](int polls) {
          const std::lock_guard lock(World::get().mutex);
          World::get().polls = polls;
        },
    .fail =
        [](const char* function, int nth, int result) {
          inject({function, nth, false, static_cast<ncclResult_t>(result)});
        },
    .hang =
        [](const char* function, int nth) {
          inject({function, nth, true, ncclSuccess});
        },
    .fail_all =
        [](int result) {
          World& world = World::get();
          const std::lock_guard lock(world.mutex);
          for (const auto& [handle, comm] : world.comms) {
            comm->error = static_cast<ncclResult_t>(result);
          }
        },
    .counts = counts,
    .calls = [](const char* function) -> std::uint64_t {
      const std::lock_guard lock(World::get().mutex);
      return World::get().calls[function];
    },
};

}  // namespace

extern "C" {

__attribute__((visibility("default"))) const NcclControl* tutti_standin_nccl() { return &kControl; }

TUTTI_NCCL ncclGetVersion(int* version) {
  *version = TUTTI_STANDIN_NCCL;
  return ncclSuccess;
}

TUTTI_NCCL ncclGetUniqueId(ncclUniqueId* id) {
  const Call call("ncclGetUniqueId");
  if (call.fails()) return call.result();
  const std::string text = "tutti's stand-in " + std::to_string(++World::get().ids);
  *id = {};
  std::memcpy(id->internal, text.data(), text.size());
  return ncclSuccess;
}

TUTTI_NCCL ncclCommInitRankConfig(ncclComm_t* handle, int ranks, ncclUniqueId id, int rank,
                                  ncclConfig_t* config) {
  const Call call("ncclCommInitRankConfig");
  if (call.fails()) return call.result();
  if (config->magic != 0xcafebeef || config->blocking != 0) return ncclInvalidArgument;
  World& world = World::get();
  auto comm = std::make_shared<Comm>();
  comm->handle = {rank, id.internal};
  auto& clique = world.cliques[comm->handle.id];
  if (clique == nullptr) clique = std::make_shared<Clique>(Clique{ranks});
  if (++clique->joined > ranks || clique->ranks != ranks) return ncclInvalidUsage;
  comm->clique = clique;
  *handle = &comm->handle;
  world.comms[*handle] = comm;
  return call.begun(*comm) == ncclSuccess && clique->joined == ranks ? ncclSuccess : ncclInProgress;
}

TUTTI_NCCL ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* error) {
  const Call call("ncclCommGetAsyncError", handle);
  if (call.fails()) return call.result();
  if (call.comm() == nullptr) return ncclInvalidArgument;
  Comm& comm = *call.comm();
  if (comm.polls_left > 0) --comm.polls_left;
  const bool is_busy =
      comm.hangs || comm.polls_left > 0 || comm.clique->joined < comm.clique->ranks;
  *error = comm.error != ncclSuccess ? comm.error : is_busy ? ncclInProgress : ncclSuccess;
  return ncclSuccess;
}

TUTTI_NCCL ncclCommFinalize(ncclComm_t handle) {
  Call call("ncclCommFinalize", handle);
  if (call.fails()) return call.result();
  if (call.comm() == nullptr) return ncclInvalidArgument;
  return call.begun(*call.comm());
}

/// Waits for what is under way, as NCCL does.
TUTTI_NCCL ncclCommDestroy(ncclComm_t handle) {
  Call call("ncclCommDestroy", handle);
  if (call.fails()) return call.result();
  if (call.comm() == nullptr) return ncclInvalidArgument;
  World& world = World::get();
  world.changed.wait(call.lock(), [&] { return call.comm()->under_way == 0; });
  remove(world, handle);
  return ncclSuccess;
}

TUTTI_NCCL ncclCommAbort(ncclComm_t handle) {
  const Call call("ncclCommAbort", handle);
  if (call.fails()) return call.result();
  if (call.comm() == nullptr) return ncclInvalidArgument;
  World& world = World::get();
  call.comm()->is_aborted = true;
  ++world.aborted;
  remove(world, handle);
  world.changed.notify_all();
  return ncclSuccess;
}

__attribute__((visibility("default"))) const char* ncclGetErrorString(ncclResult_t result) {
  static constexpr const char* kTexts[] = {"no error",
                                           "unhandled cuda error",
                                           "unhandled system error",
                                           "internal error",
                                           "invalid argument",
                                           "invalid usage",
                                           "remote process exited or there was a network error",
                                           "NCCL operation in progress"};
  return kTexts[result];
}

__attribute__((visibility("default"))) const char* ncclGetLastError(ncclComm_t) {
  return "the stand-in was told to fail";
}

TUTTI_NCCL ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* factor, ncclDataType_t type,
                                    ncclScalarResidence_t residence, ncclComm_t handle) {
  const Call call("ncclRedOpCreatePreMulSum", handle);
  if (call.fails()) return call.result();
  if (call.comm() == nullptr || residence != ncclScalarHostImmediate) return ncclInvalidArgument;
  Comm& comm = *call.comm();
  *op = static_cast<ncclRedOp_t>(comm.next_operator);
  comm.operators[comm.next_operator++] = scalar(factor, type);
  return ncclSuccess;
}

TUTTI_NCCL ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t handle) {
  const Call call("ncclRedOpDestroy", handle);
  if (call.fails()) return call.result();
  if (call.comm() == nullptr) return ncclInvalidArgument;
  return call.comm()->operators.erase(op) == 1 ? ncclSuccess : ncclInvalidArgument;
}

TUTTI_NCCL ncclReduce(const void* input, void* output, std::size_t count, ncclDataType_t type,
                      ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return queue("ncclReduce", comm, stream, {What::reduce, input, output, count, type, op, 1, root});
}

TUTTI_NCCL ncclBroadcast(const void* input, void* output, std::size_t count, ncclDataType_t type,
                         int root, ncclComm_t comm, cudaStream_t stream) {
  return queue("ncclBroadcast", comm, stream,
               {What::broadcast, input, output, count, type, ncclSum, 1, root});
}

TUTTI_NCCL ncclAllReduce(const void* input, void* output, std::size_t count, ncclDataType_t type,
                         ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return queue("ncclAllReduce", comm, stream,
               {What::all_reduce, input, output, count, type, op, 1, -1});
}

TUTTI_NCCL ncclReduceScatter(const void* input, void* output, std::size_t part, ncclDataType_t type,
                             ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return queue("ncclReduceScatter", comm, stream,
               {What::reduce_scatter, input, output, part, type, op, 1, -1});
}

TUTTI_NCCL ncclAllGather(const void* input, void* output, std::size_t part, ncclDataType_t type,
                         ncclComm_t comm, cudaStream_t stream) {
  return queue("ncclAllGather", comm, stream,
               {What::all_gather, input, output, part, type, ncclSum, 1, -1});
}

TUTTI_NCCL ncclSend(const void* input, std::size_t count, ncclDataType_t type, int peer,
                    ncclComm_t comm, cudaStream_t stream) {
  return queue("ncclSend", comm, stream,
               {What::send, input, nullptr, count, type, ncclSum, 1, peer});
}

TUTTI_NCCL ncclRecv(void* output, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                    cudaStream_t stream) {
  return queue("ncclRecv", comm, stream,
               {What::recv, nullptr, output, count, type, ncclSum, 1, peer});
}

TUTTI_NCCL ncclGroupStart() {
  const Call call("ncclGroupStart");
  if (call.fails()) return call.result();
  ++batch.depth;
  return ncclSuccess;
}

TUTTI_NCCL ncclGroupEnd() {
  if (--batch.depth > 0) return ncclSuccess;
  const Batch ended = std::exchange(batch, {});
  const Call call("ncclGroupEnd", ended.comm);
  if (call.fails()) return call.result();
  if (ended.pieces.empty()) return ncclSuccess;
  if (call.comm() == nullptr) return ncclInvalidArgument;
  const ncclResult_t result = launch(*call.comm(), call.comm(), ended.pieces, ended.stream);
  return result == ncclSuccess ? call.begun(*call.comm()) : result;
}

}  // extern "C"

#if TUTTI_STANDIN_NCCL >= 22803

namespace {

std::byte* part(void* data, std::size_t index, std::size_t count, ncclDataType_t type) {
  return static_cast<std::byte*>(data) + index * count * kTypeBytes[type];
}
const std::byte* part(const void* data, std::size_t index, std::size_t count, ncclDataType_t type) {
  return static_cast<const std::byte*>(data) + index * count * kTypeBytes[type];
}

/// As a batch of messages, the own one included.
ncclResult_t exchange(const char* function, ncclComm_t handle, cudaStream_t stream,
                      const std::vector<Piece>& pieces) {
  const Call call(function, handle);
  if (call.fails()) return call.result();
  if (call.comm() == nullptr) return ncclInvalidArgument;
  if (call.comm()->error != ncclSuccess) return call.comm()->error;
  const ncclResult_t result = launch(*call.comm(), call.comm(), pieces, stream);
  return result == ncclSuccess ? call.begun(*call.comm()) : result;
}

int ranks_of(ncclComm_t handle) {
  const std::lock_guard lock(World::get().mutex);
  const auto comm = find(handle);
  return comm == nullptr ? 0 : comm->clique->ranks;
}

void add_sends(std::vector<Piece>& pieces, const void* input, std::size_t count,
               ncclDataType_t type, int ranks) {
  for (int to = 0; to < ranks; ++to) {
    pieces.push_back({What::send, part(input, static_cast<std::size_t>(to), count, type), nullptr,
                      count, type, ncclSum, 1, to});
  }
}
void add_recvs(std::vector<Piece>& pieces, void* output, std::size_t count, ncclDataType_t type,
               int ranks) {
  for (int from = 0; from < ranks; ++from) {
    pieces.push_back({What::recv, nullptr,
                      part(output, static_cast<std::size_t>(from), count, type), count, type,
                      ncclSum, 1, from});
  }
}

}  // namespace

extern "C" {

TUTTI_NCCL ncclAlltoAll(const void* input, void* output, std::size_t count, ncclDataType_t type,
                        ncclComm_t comm, cudaStream_t stream) {
  if (input == output && count > 0) return ncclInvalidArgument;
  std::vector<Piece> pieces;
  add_sends(pieces, input, count, type, ranks_of(comm));
  add_recvs(pieces, output, count, type, ranks_of(comm));
  return exchange("ncclAlltoAll", comm, stream, pieces);
}

TUTTI_NCCL ncclGather(const void* input, void* output, std::size_t count, ncclDataType_t type,
                      int root, ncclComm_t comm, cudaStream_t stream) {
  std::vector<Piece> pieces;
  pieces.push_back({What::send, input, nullptr, count, type, ncclSum, 1, root});
  if (comm->rank == root) add_recvs(pieces, output, count, type, ranks_of(comm));
  return exchange("ncclGather", comm, stream, pieces);
}

TUTTI_NCCL ncclScatter(const void* input, void* output, std::size_t count, ncclDataType_t type,
                       int root, ncclComm_t comm, cudaStream_t stream) {
  std::vector<Piece> pieces;
  if (comm->rank == root) add_sends(pieces, input, count, type, ranks_of(comm));
  pieces.push_back({What::recv, nullptr, output, count, type, ncclSum, 1, root});
  return exchange("ncclScatter", comm, stream, pieces);
}

}  // extern "C"

#endif

// The declarations of the plugin are those of these.
static_assert(std::is_same_v<decltype(ncclCommInitRankConfig), ncclCommInitRankConfig_t>);
static_assert(std::is_same_v<decltype(ncclAllReduce), ncclAllReduce_t>);
static_assert(std::is_same_v<decltype(ncclReduce), ncclReduce_t>);
static_assert(std::is_same_v<decltype(ncclSend), ncclSend_t>);

}  // namespace tutti::nccl_backend
