// One rank of a conformance run: `tutti run -n 3 ./check BACKEND`.
#include <tutti/test_kit.h>

#include <cstdio>

int main(int argc, char** argv) try {
  auto world = tutti::init_process_group({.backend = argc > 1 ? argv[1] : ""});
  const auto report = tutti::test_kit::run_conformance(world);
  for (const auto& failure : report.failures) std::fprintf(stderr, "%s\n", failure.c_str());
  if (world.rank() == 0) {
    std::printf("%s: %d cells, %zu wrong\n", world.backend().name.c_str(), report.cells,
                report.failures.size());
  }
  world.close();
  return report.failures.empty() ? 0 : 1;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "%s\n", failure.what());
  return 2;
}
