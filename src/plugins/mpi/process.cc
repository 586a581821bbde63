#include "plugins/mpi/process.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "base/inside_call.h"
#include "base/log.h"
#include "kernels/kernels.h"
#include "plugins/mpi/collectives.h"
#include "tutti/error.h"

namespace tutti::mpi {

namespace {

using namespace std::chrono_literals;

/// Open MPI loads its components with dlopen; those of some builds find libmpi's symbols only if
/// they are global, which they are not below a plugin that was loaded locally.
void make_symbols_global() {
#if defined(OPEN_MPI)
  Dl_info info = {};
  if (::dladdr(reinterpret_cast<const void*>(&MPI_Init_thread), &info) != 0) {
    ::dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
  }
#endif
}

/// Both MPIs copy large messages straight out of the other process, and abort when it dies
/// meanwhile (UCX: "process_vm_readv ... No such process"). Shared memory is slower and stays. What
/// the user has set rules.
void avoid_copies_from_the_dead() {
  ::setenv("UCX_TLS", "^cma", 0);
  ::setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
}

/// The element type that is reduced as `type`.
DType dtype_of(MPI_Datatype type) noexcept {
  for (std::size_t i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (dtype != DType::bool_ && reduced_as(dtype) == type) return dtype;
  }
  return DType::u8;
}

template <ReduceOp::Kind kind>
void combine(void* input, void* in_out, int* count, MPI_Datatype* type) {
  constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::product, ReduceOp::min, ReduceOp::max};
  const void* const both[] = {input, in_out};
  kernels::combine_partials(dtype_of(*type), kOps[static_cast<std::size_t>(kind)], both, 2, in_out,
                            static_cast<std::size_t>(*count));
}

/// What ends all calls.
constexpr const char* kExit = "the process began to exit";  // and MPI is ours
constexpr const char* kFinalize = "MPI_Finalize";

const char* name_of_level(int level) {
  return level == MPI_THREAD_FUNNELED ? "MPI_THREAD_FUNNELED" : "MPI_THREAD_SINGLE";
}

}  // namespace

std::string error_text(int code) {
  // MPICH 4.0 writes a stack of errors beyond MPI_MAX_ERROR_STRING, and over the stack of its
  // caller.
  std::vector<char> text(64 * MPI_MAX_ERROR_STRING);
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) {
    return fmt::format("code {}", code);
  }
  return text.data();
}

void check(int code, const char* function) {
  if (code == MPI_SUCCESS) return;
  throw Error(ErrorCode::kSystem,
              fmt::format("backend \"mpi\": {} failed: {}", function, error_text(code)));
}

std::string library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  std::string version(text, static_cast<std::size_t>(length));
  version.resize(std::min(version.find_first_of(",\n"), version.size()));
  for (char& letter : version) letter = letter == '\t' ? ' ' : letter;
  return version;
}

Process& Process::get(const ProcessOptions& options) {
  static Process* const process = new Process(options);  // lives until the process ends
  return *process;
}

Process::Process(const ProcessOptions& options) : ending_(options.grace), stall_(options.stall) {
  int is_initialized = 0;
  MPI_Initialized(&is_initialized);
  if (is_initialized != 0) {
    check(MPI_Query_thread(&level_), "MPI_Query_thread");
  } else {
    start(options.outlives);
  }
  check_thread("init_process_group");
  check(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, &world_size_), "MPI_Comm_size");
  int* last_tag = nullptr;
  int is_set = 0;
  check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &last_tag, &is_set), "MPI_Comm_get_attr");
  if (is_set != 0) last_tag_ = *last_tag;
  MPI_User_function* const functions[] = {
      combine<ReduceOp::Kind::sum>, combine<ReduceOp::Kind::product>, combine<ReduceOp::Kind::min>,
      combine<ReduceOp::Kind::max>};
  for (std::size_t kind = 0; kind < std::size(functions); ++kind) {
    check(MPI_Op_create(functions[kind], 1, &operations_[kind]), "MPI_Op_create");
  }
  // Last, as both keep `this`: nothing throws once they do.
  hear_of_finalize();
  if (!is_ours_) return;
  ::on_exit([](int exit_code, void* self) { static_cast<Process*>(self)->leave(exit_code); }, this);
}

void Process::start(bool outlives) {
  is_ours_ = true;
  make_symbols_global();
  if (outlives) avoid_copies_from_the_dead();
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level_), "MPI_Init_thread");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
}

bool Process::end_calls(const char* event, std::chrono::nanoseconds patience) noexcept {
  const char* nothing = nullptr;
  ended_by_.compare_exchange_strong(nothing, event);  // MPI_Finalize follows what ended them
  for (auto waited = 0ns; inside_.load() > 0 && !failed_.load(); waited += kTick) {
    if (waited >= patience) return false;
    ::poll(nullptr, 0, static_cast<int>(kTick.count()));
  }
  return true;
}

/// MPI_Finalize begins with the attributes of MPI_COMM_SELF, when all of MPI is still there for
/// what threads have under way. But by then MPICH, if several threads may call it, neither takes
/// nor gives back its lock: it ends the process if a thread has held it as MPI_Finalize began.
void Process::hear_of_finalize() {
  const auto finalize = [](MPI_Comm, int, void* self, void*) {
    Process& process = *static_cast<Process*>(self);
    if (process.inside_.load() > 0)
      log(LogLevel::warn,
          "backend \"mpi\": MPI_Finalize was called while operations are under way, and waits for "
          "them. MPI does not allow that, and MPICH with MPI_THREAD_MULTIPLE may end the process: "
          "wait for every Work before MPI_Finalize");
    process.end_calls(kFinalize, std::chrono::nanoseconds::max());
    return MPI_SUCCESS;
  };
  int key = MPI_KEYVAL_INVALID;
  check(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, finalize, &key, nullptr),
        "MPI_Comm_create_keyval");
  check(MPI_Comm_set_attr(MPI_COMM_SELF, key, this), "MPI_Comm_set_attr");
}

Process::Inside::Inside(Process& process, const char* what) : process_(process) {
  process.inside_.fetch_add(1);
  try {
    process.check_not_ended(what);
    process.check_thread(what);
  } catch (...) {
    process.inside_.fetch_sub(1);
    throw;
  }
  process.last_inside_.store(what, std::memory_order_relaxed);
}

void Process::leave(int exit_code) noexcept {
  const bool is_child = ::getpid() != ending_.own().pid;  // forked from us: MPI is not its
  if (ended_by_.load() != nullptr || is_child || failed_.load()) return;
  // This rank is lost to the others where it gives up, or what it has begun cannot end.
  const bool gives_up = exit_code != 0 || is_inside_call();
  if (gives_up && open_groups_.load() > 0) return;
  if (!ending_.await_peers(failed_)) return;  // others may still want what this one has begun
  if (!end_calls(kExit, stall_)) {
    log(LogLevel::warn,
        fmt::format("backend \"mpi\": all processes exit, but calls are under way in this one ({}, "
                    "the last to begin: {}) and have not ended in {:.3g} s (setting "
                    "stall_timeout), so it leaves MPI without MPI_Finalize: let every thread end "
                    "its calls, wait for every Work and close the world before main ends",
                    inside_.load(), last_inside_.load(),
                    std::chrono::duration<double>(stall_).count()));
    return;
  }
  if (!failed_.load()) ending_.finalize(exit_code);
}

void Process::check_not_ended(const char* what) const {
  const char* const event = ended_by_.load();
  if (event == nullptr) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("backend \"mpi\": {} is not possible after {}; close the world before {}",
                          what, event, event == kExit ? "main ends" : event));
}

void Process::check_thread(const char* what) const {
  if (level_ >= MPI_THREAD_SERIALIZED) return;
  int is_main = 0;
  MPI_Is_thread_main(&is_main);
  if (is_main != 0) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("backend \"mpi\": {} would call MPI from a second thread, but the "
                          "program has initialised MPI with {}, which allows it to the thread that "
                          "did so only; initialise it with MPI_THREAD_MULTIPLE, or leave that to "
                          "Tutti",
                          what, name_of_level(level_)));
}

}  // namespace tutti::mpi
