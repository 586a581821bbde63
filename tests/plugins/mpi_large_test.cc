// Counts and displacements above 2^31, which MPI's own ints cannot hold: about 13 GiB of memory.
#include "mpi_job.h"

namespace tutti::mpi_test {
namespace {

INSTANTIATE_TEST_SUITE_P(Both, MpiBackend, testing::Values(&kOpenMpi, &kMpich),
                         [](const auto& each) { return std::string(each.param->name); });

TEST_P(MpiBackend, MoreElementsThanAnInt) {
  if (std::getenv("TUTTI_TEST_FULL") == nullptr) GTEST_SKIP() << "./dev test --full";
  expect_ok(run(2, "large"));
}

}  // namespace
}  // namespace tutti::mpi_test
