#include "c10d/group.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/debug.h>
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "c10d/error.h"
#include "c10d/store.h"

namespace tutti::python {
namespace {

using Clock = std::chrono::steady_clock;

/// Those that are alive, in the order in which they were made.
struct Registry {
  std::mutex mutex;
  std::vector<std::weak_ptr<Group>> groups;
  std::weak_ptr<Group> world;                 // of torch's group of all ranks
  std::mutex making;                          // a world makes one group at a time
  std::atomic<std::thread::id> ends_in = {};  // the thread in which Python ends; none: it goes on
};

Registry& registry() {
  static Registry& all = *new Registry;  // never destroyed: groups may outlive static objects
  return all;
}

/// Ending a group may wait for other ranks, and for helpers that want Python's lock.
void destroy(Group* group) {
  std::optional<py::gil_scoped_release> unlocked;
  if (Py_IsInitialized() && PyGILState_Check()) unlocked.emplace();
  delete group;
}

std::shared_ptr<Group> registered(Group* made, bool is_world) {
  std::shared_ptr<Group> group(made, destroy);
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.groups, [](const auto& each) { return each.expired(); });
  all.groups.push_back(group);
  if (is_world) all.world = group;
  return group;
}

std::shared_ptr<Group> world_of_all() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  return all.world.lock();
}

bool is_of_torch(std::string_view file) {
  return file.find("/torch/distributed/") != file.npos || file.find("/torch/nn/") != file.npos ||
         file.find("/torch/utils/") != file.npos;
}

/// The innermost line of Python outside torch; 0 in a thread that runs none.
Where line_of_python() {
  const py::gil_scoped_acquire locked;
  static std::set<std::string>& files = *new std::set<std::string>;  // a Where outlives its call
  py::object frame =
      py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (frame && !frame.is_none()) {
    const auto file = frame.attr("f_code").attr("co_filename").cast<std::string>();
    if (!is_of_torch(file)) {
      const std::string& kept = *files.insert(file).first;
      return {kept.c_str(), frame.attr("f_lineno").cast<int>()};
    }
    frame = frame.attr("f_back");
  }
  return {};
}

std::chrono::nanoseconds timeout_of(const c10d::DistributedBackendOptions& options) {
  const auto time = std::chrono::duration_cast<std::chrono::milliseconds>(options.timeout);
  TORCH_CHECK_VALUE(time.count() > 0, "tutti: a timeout of ", options.timeout.count(),
                    " s: it must be at least a millisecond");
  return *Timeout(time);
}

/// Python ends, in another thread than this.
bool ends_elsewhere() noexcept {
  const std::thread::id ends = registry().ends_in.load();
  return ends != std::thread::id() && ends != std::this_thread::get_id();
}

std::string reason_of(const std::string& exception) {
  return "its program ends by an exception: " + exception;
}

}  // namespace

Group::Inside::Inside(Group& group) : count_(group.inside_) {
  ++count_;  // and then looks: leave_all says that it has begun, and then counts
  if (!ends_elsewhere()) return;
  --count_;
  pause_at_end();
}

Group::Inside::~Inside() {
  pause_at_end();
  --count_;
}

void Group::Inside::pause_at_end() const noexcept {
  while (ends_elsewhere()) ::pause();
}

Group::Group(std::shared_ptr<Group> world, ProcessGroup group, std::string name,
             std::chrono::nanoseconds timeout)
    : world_(std::move(world)),
      purpose_{.text = "torch's group " + std::move(name)},
      group_(std::move(group)),
      timeout_(timeout) {}

std::shared_ptr<Group> Group::make(const c10d::DistributedBackendOptions& options) {
  const std::chrono::nanoseconds timeout = timeout_of(options);
  const bool is_of_all = options.global_ranks_in_group.empty();
  const Purpose purpose{.text = "making torch's group " + options.group_id};
  const Where where{"", 0, &purpose};
  try {
    if (auto world = is_of_all ? nullptr : world_of_all()) {
      const std::lock_guard lock(registry().making);
      ProcessGroup made = (*world)->new_group(options.global_ranks_in_group, where);
      const auto of_world = world->timeout();
      return registered(new Group(std::move(world), std::move(made), options.group_id, of_world),
                        false);
    }
    // Under `tutti run` all ranks meet at it: it is to know what they do, and who has failed first.
    const bool has_launcher = is_of_all && std::getenv("TUTTI_AGENT") != nullptr;
    ProcessGroup made = init_process_group({.backend = "native",
                                            .rank = options.group_rank,
                                            .world_size = options.group_size,
                                            .timeout = timeout,
                                            .name = "torch-" + options.group_id,
                                            .store = has_launcher ? nullptr : adapt(options.store)},
                                           where);
    return registered(new Group(nullptr, std::move(made), options.group_id, timeout), is_of_all);
  } catch (const Error& error) {
    std::rethrow_exception(as_torch_of_meeting(error));
  }
}

void Group::leave(std::chrono::nanoseconds deadline, const std::string& exception) {
  if (!exception.empty()) group_.abort(reason_of(exception));
  if (inside_ != 0) return;
  try {
    group_.close(deadline);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kCollectiveMismatch && note(error))
      TORCH_WARN("tutti: ", words_of(error));
    const ProcessGroup ended = std::move(group_);  // says goodbye whatever is under way
  }
}

void Group::retire() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  if (all.world.lock().get() == this) all.world.reset();
}

bool Group::note(const Error& error) {
  if (!group_.error()) return false;
  const std::lock_guard lock(mutex_);
  if (noted_) return false;
  noted_ = error;
  return true;
}

std::optional<Error> Group::failure() {
  const std::optional<Error> failure = group_.error();
  if (!failure) return std::nullopt;
  const std::lock_guard lock(mutex_);
  if (!noted_) noted_ = failure;
  return noted_;
}

Where Group::where() const {
  if (c10d::debug_level() == c10d::DebugLevel::Off) return Where{"", 0, &purpose_};
  return line_of_python().with(purpose_);
}

namespace {

/// A world last.
std::vector<std::shared_ptr<Group>> groups_that_live() {
  std::vector<std::shared_ptr<Group>> groups;
  const std::lock_guard lock(registry().mutex);
  for (const auto& each : registry().groups) {
    if (auto group = each.lock()) groups.push_back(std::move(group));
  }
  std::ranges::reverse(groups);
  return groups;
}

}  // namespace

void abort_all(const std::string& exception) {
  for (const auto& group : groups_that_live()) (*group)->abort(reason_of(exception));
}

void leave_all(const std::string& exception) {
  registry().ends_in = std::this_thread::get_id();
  const auto end = Clock::now() + std::chrono::seconds(2);
  for (const auto& group : groups_that_live()) {
    group->leave(std::max(end - Clock::now(), Clock::duration(0)), exception);
  }
}

}  // namespace tutti::python
