// The support matrices that the conformance suite has shown to be true, compiled in.
#pragma once

#include <span>
#include <string_view>

namespace tutti::cli {

/// The file tests/conformance/matrix/NAME.json.
struct Matrix {
  std::string_view name;  ///< of the plugin: "mpi_openmpi"
  std::string_view json;
};

/// By name.
std::span<const Matrix> matrices() noexcept;

}  // namespace tutti::cli
