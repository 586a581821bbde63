// The extension: what tutti/torch/__init__.py registers.
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <string>
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

bool end(const std::string& exception) {
  const py::gil_scoped_release unlocked;
  tutti::python::leave_all(exception);
  return tutti::python::stop_helpers(std::chrono::seconds(2));
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("create", &create);
  module.def("failure", &failure);
  module.def("abort", &abort_groups);
  module.def("end", &end);
}
