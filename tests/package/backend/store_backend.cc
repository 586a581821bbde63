// A backend of one file that uses nothing but Tutti's installed headers: every rank leaves what it
// contributes in the store and reads what the others have left. Slow, and a place to start from:
// docs/recipes/backend.md.
#include <tutti/backend.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <type_traits>
#include <utility>

namespace {

using namespace tutti;
using Clock = Deadline::Clock;
using Bytes = std::string;

constexpr std::size_t kMostBytes = std::size_t{15} << 20;  // of a value in the store, and some
constexpr std::chrono::milliseconds kLook{20};             // between two looks at the abort flag

// ---- reductions: in the order of the ranks, so the same on all of them --------------------------

template <class T>
void combine(ReduceOp::Kind kind, const char* from, std::byte* to, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    T left, right;
    std::memcpy(&left, to + i * sizeof(T), sizeof(T));
    std::memcpy(&right, from + i * sizeof(T), sizeof(T));
    if (kind == ReduceOp::Kind::min) {
      left = std::min(left, right);
    } else if (kind == ReduceOp::Kind::max) {
      left = std::max(left, right);
    } else if constexpr (std::is_integral_v<T>) {  // wrapping
      using Unsigned = std::make_unsigned_t<T>;
      left = static_cast<T>(static_cast<Unsigned>(left) + static_cast<Unsigned>(right));
    } else {
      left += right;
    }
    std::memcpy(to + i * sizeof(T), &left, sizeof(T));
  }
}

void combine(DType dtype, ReduceOp::Kind kind, const char* from, std::byte* to, std::size_t count) {
  if (dtype == DType::i32) return combine<std::int32_t>(kind, from, to, count);
  if (dtype == DType::i64) return combine<std::int64_t>(kind, from, to, count);
  return combine<double>(kind, from, to, count);
}

/// Operations whose input has a part for every rank.
bool splits(Op op) { return op == Op::scatter || op == Op::reduce_scatter || op == Op::all_to_all; }

// ---- what a rank leaves -------------------------------------------------------------------------

/// Of a split input: where the part of each rank begins and where the last one ends, in bytes; then
/// the input itself.
Bytes pack(const Request& request, std::size_t ranks) {
  const ConstBuffer& input = request.input;
  if (input.byte_count() > kMostBytes) {
    throw Error(ErrorCode::kUnsupported, "store: at most 15 MiB at a time");
  }
  Bytes bytes;
  if (splits(request.op) && input.count > 0) {
    std::uint64_t offset = 0;
    for (std::size_t rank = 0; rank <= ranks; ++rank) {
      bytes.append(reinterpret_cast<const char*>(&offset), sizeof offset);
      if (rank == ranks) break;
      offset +=
          (request.uneven ? request.send_counts[rank] : request.count) * size_of(request.dtype);
    }
  }
  if (input.count > 0) bytes.append(static_cast<const char*>(input.data), input.byte_count());
  return bytes;
}

/// What of it is for rank `to`.
std::string_view part_for(const Request& request, const Bytes& left, std::size_t ranks, int to) {
  if (!splits(request.op) || left.empty()) return left;
  std::uint64_t ends[2] = {0, 0};
  std::memcpy(ends, left.data() + static_cast<std::size_t>(to) * sizeof(std::uint64_t),
              sizeof ends);
  const std::size_t head = (ranks + 1) * sizeof(std::uint64_t);
  return std::string_view(left).substr(head + ends[0], ends[1] - ends[0]);
}

// ---- the backend --------------------------------------------------------------------------------

BackendInfo about() {
  return {.name = "store", .version = "1", .checks_itself = false, .threads = true};
}

class StoreBackend final : public Backend {
 public:
  explicit StoreBackend(const GroupSpec& spec)
      : store_(spec.store), rank_(spec.rank), ranks_(spec.world_ranks.size()) {}

  Support supports(const OpKey& key) const override {
    if (key.device != Device::Kind::cpu) return {false, "the sample moves CPU memory only"};
    if (key.op == Op::scan || key.op == Op::exclusive_scan)
      return {false, "the sample has no scans"};
    if (!reduces(key.op)) return {};
    const bool integer = key.dtype == DType::i32 || key.dtype == DType::i64;
    const bool ordered = key.reduce == ReduceOp::Kind::min || key.reduce == ReduceOp::Kind::max;
    if (integer && ordered) return {};
    if (key.reduce == ReduceOp::Kind::sum && (integer || key.dtype == DType::f64)) return {};
    return {false, "the sample reduces sum, min and max of i32 and i64, and sum of f64"};
  }

  /// All ranks are in this operation, so nobody reads what was left for the one before.
  void run(const Request& request) override {
    if (!last_.empty()) store_->erase(last_);
    last_ = key(request.seq, rank_);
    store_->set(last_, pack(request, ranks_));
    bool first = true;
    auto* to = static_cast<std::byte*>(request.output.data);
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      const std::optional<Bytes> left =
          take(key(request.seq, static_cast<int>(rank)), Clock::time_point::max());
      if (request.output.count == 0) continue;
      const std::string_view part = part_for(request, *left, ranks_, rank_);
      if (reduces(request.op) && !first) {
        combine(request.dtype, request.reduce.kind(), part.data(), to, request.output.count);
      } else if (reduces(request.op) || !part.empty()) {
        if (request.op == Op::broadcast && static_cast<int>(rank) != request.root) continue;
        std::memmove(to, part.data(), part.size());
        if (!reduces(request.op)) to += part.size();
      }
      first = false;
    }
  }

  /// Both ends have found each other: what is sent is left under the message's number.
  Work start(Request request) override {
    if (request.op == Op::send) {
      store_->set(key(rank_, request.message.peer, request.message.number), pack(request, ranks_));
      return {};
    }
    return Work(std::make_shared<Receive>(*this, std::move(request)));
  }

  std::unique_ptr<Backend> make_group(const GroupSpec& spec) override {
    return std::make_unique<StoreBackend>(spec);
  }
  Memory allocate(std::size_t byte_count) override {
    return {std::shared_ptr<void>(::operator new(byte_count),
                                  [](void* memory) { ::operator delete(memory); }),
            byte_count};
  }
  void abort(const Cause&) noexcept override { aborted_ = true; }
  void close(Deadline) override {}
  BackendInfo info() const override { return about(); }

 private:
  class Receive final : public WorkState {
   public:
    Receive(StoreBackend& backend, Request request)
        : WorkState(std::move(request)), backend_(backend) {}
    bool help(Clock::time_point until) override {
      if (done()) return true;
      try {
        const std::string key =
            backend_.key(request().message.peer, backend_.rank_, request().message.number);
        const std::optional<Bytes> bytes = backend_.take(key, until);
        if (!bytes) return false;
        if (!bytes->empty()) std::memcpy(request().output.data, bytes->data(), bytes->size());
        backend_.store_->erase(key);
        end();
      } catch (const Error& failure) {
        end(failure);
      }
      return true;
    }

   private:
    StoreBackend& backend_;
  };

  std::string key(std::uint64_t seq, int rank) const {
    return "op/" + std::to_string(seq) + "/" + std::to_string(rank);
  }
  std::string key(int from, int to, std::uint64_t number) const {
    return "message/" + std::to_string(from) + "/" + std::to_string(to) + "/" +
           std::to_string(number);
  }

  /// Waits for a key; empty if it has not come until then.
  std::optional<Bytes> take(const std::string& key, Clock::time_point until) {
    const std::vector<std::string> keys = {key};
    for (;;) {
      if (aborted_) throw Error(ErrorCode::kAborted, "store: aborted");
      if (std::optional<Bytes> bytes = store_->try_get(key)) return bytes;
      if (Clock::now() >= until) return std::nullopt;
      try {
        store_->wait(keys, kLook);
      } catch (const Error& failure) {
        if (failure.code() != ErrorCode::kTimeout) throw;
      }
    }
  }

  const std::shared_ptr<Store> store_;
  const int rank_;
  const std::size_t ranks_;
  std::string last_;
  std::atomic<bool> aborted_{false};
};

std::unique_ptr<Backend> make(const GroupSpec& spec) {
  return std::make_unique<StoreBackend>(spec);
}

}  // namespace

TUTTI_BACKEND_PLUGIN(make, about)
