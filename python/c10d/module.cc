// The extension: what tutti/torch/__init__.py registers.
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <set>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "c10d/backend.h"
#include "c10d/error.h"
#include "c10d/helpers.h"

namespace {

using tutti::python::Backend;

c10::intrusive_ptr<c10d::Backend> create(const c10d::DistributedBackendOptions& options,
                                         const py::object& /*pg_options*/) {
  const py::gil_scoped_release unlocked;
  return c10::make_intrusive<Backend>(options);
}

/// (code, text, operation, number, ranks in the group, ranks in torch's group of all), or None.
py::object failure(const c10::intrusive_ptr<c10d::Backend>& backend) {
  auto* ours = dynamic_cast<Backend*>(backend.get());
  TORCH_CHECK_TYPE(ours != nullptr, "tutti: a group of another backend, ",
                   backend->getBackendName());
  const auto error = ours->failure();
  if (!error) return py::none();
  const tutti::ErrorContext& context = error->context();
  std::vector<std::int64_t> global_ranks;
  for (const int rank : context.culprits) {
    global_ranks.push_back(ours->global_ranks().empty() ? rank : ours->global_ranks().at(rank));
  }
  return py::make_tuple(std::string(name_of(error->code())), tutti::python::words_of(*error),
                        context.op, context.seq, context.culprits, global_ranks);
}

void abort_groups(const std::string& exception) {
  const py::gil_scoped_release unlocked;
  tutti::python::abort_all(exception);
}

std::terminate_handler terminate_otherwise = nullptr;
std::thread::id ends_python;
/// All that ran its code just before: Python forgets who they are before it is over.
std::set<unsigned long>& threads_of_python = *new std::set<unsigned long>;

bool is_python_ending() noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

/// Whether the calling thread has run Python's code, and Python ends it. Any other one that comes
/// to std::terminate has a fault of its own.
bool is_ended_by_python() noexcept {
  if (!is_python_ending() || std::this_thread::get_id() == ends_python) return false;
  return PyGILState_GetThisThreadState() != nullptr ||
         threads_of_python.count(PyThread_get_thread_ident()) > 0;
}

/// Python 3.11 ends a thread that takes its lock once Python ends. Where that happens in a
/// destructor, as when a call of torch's returns, C++ would end the process with SIGABRT: the
/// thread stays there instead.
[[noreturn]] void stay_or_terminate() {
  if (is_ended_by_python() && std::current_exception() == nullptr)
    for (;;) ::pause();
  terminate_otherwise();
  std::abort();
}

void let_ended_threads_stay() {
  if (terminate_otherwise != nullptr) return;
  ends_python = std::this_thread::get_id();
  const py::dict frames = py::module_::import("sys").attr("_current_frames")();
  for (const auto& [thread, frame] : frames) threads_of_python.insert(thread.cast<unsigned long>());
  terminate_otherwise = std::get_terminate();
  std::set_terminate(&stay_or_terminate);
}

void end(const std::string& exception) {
  {
    const py::gil_scoped_release unlocked;
    tutti::python::leave_all(exception);
    tutti::python::stop_helpers(std::chrono::seconds(2));
  }
  let_ended_threads_stay();
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("create", &create);
  module.def("failure", &failure);
  module.def("abort", &abort_groups);
  module.def("end", &end);
}
