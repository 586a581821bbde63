// One rank of a conformance run of any backend, under any launcher: example
// `tutti run -n 2 conformance_rank --backend gloo --matrix matrix/gloo.json`. Rank 0 says how many
// cells it ran; every rank says what was wrong.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <optional>

#include "device/driver_memory.h"
#include "tutti/init.h"
#include "tutti/test_kit.h"

namespace {

struct Arguments {
  std::string backend = "native";
  std::string matrix;  ///< the committed file
  bool write = false;  ///< make it anew
  std::string device = "cpu";
  bool mixed = false;  ///< odd ranks have their buffers on the host all the same
  tutti::test_kit::ConformanceOptions options;
};

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Conformance of a backend");
  app.add_option("--backend", arguments.backend);
  app.add_option("--matrix", arguments.matrix);
  app.add_flag("--write", arguments.write);
  app.add_option("--counts", arguments.options.counts)->delimiter(',');
  app.add_option("--one-variant-in", arguments.options.one_variant_in);
  app.add_option("--device", arguments.device, "where buffers are")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_flag("--mixed", arguments.mixed, "on odd ranks they are on the host");
  std::string op;
  app.add_option("--op", op, "this operation only");
  app.add_flag("--canonical", arguments.options.canonical);
  app.add_option("--seed", arguments.options.seed);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  for (std::size_t i = 0; i < tutti::kOpCount; ++i) {
    const auto each = static_cast<tutti::Op>(i);
    if (tutti::name_of(each) == op) arguments.options.op = each;
  }
  return arguments;
}

/// Whether the committed matrix says what the backend says.
bool holds(const std::string& path, const std::string& matrix) {
  std::ifstream file(path);
  const std::string committed{std::istreambuf_iterator<char>(file), {}};
  if (committed == matrix) return true;
  std::fprintf(stderr,
               "%s disagrees with what the backend supports now; make it anew with --write\n",
               path.c_str());
  return false;
}

int run(const Arguments& arguments) {
  auto world = tutti::init_process_group({.backend = arguments.backend});
  tutti::test_kit::ConformanceOptions options = arguments.options;
  std::optional<tutti::standin::TestStream> stream;
  tutti::test_kit::DeviceMemory memory;
  if (arguments.device == "cuda" && !(arguments.mixed && world.rank() % 2 == 1)) {
    stream.emplace(0);
    memory = tutti::standin::memory_of(*stream);
    options.memory = &memory;
  }
  const tutti::test_kit::ConformanceReport report =
      tutti::test_kit::run_conformance(world, options);
  for (const std::string& failure : report.failures) std::fprintf(stderr, "%s\n", failure.c_str());
  bool good = report.failures.empty();
  if (world.rank() == 0) {
    const std::string matrix = tutti::test_kit::support_matrix(
        world, arguments.device == "cuda" ? tutti::Device::Kind::cuda : tutti::Device::Kind::cpu);
    if (arguments.write) std::ofstream(arguments.matrix) << matrix;
    if (!arguments.matrix.empty()) good = holds(arguments.matrix, matrix) && good;
    std::printf("%s on %s%s: %d cells on %d ranks, %zu wrong\n", arguments.backend.c_str(),
                arguments.device.c_str(), arguments.mixed ? " and cpu" : "", report.cells,
                world.world_size(), report.failures.size());
  }
  world.close();
  return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) try {
  return run(parse(argc, argv));
} catch (const std::exception& failure) {
  std::fprintf(stderr, "%s\n", failure.what());
  return 2;
}
