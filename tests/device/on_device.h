// What tests of groups with device memory begin with: on the stand-in of CUDA's driver, or with
// TUTTI_TEST_CUDA=real on a device.
#pragma once

#include <gtest/gtest.h>

#include <chrono>

#include "device/driver_memory.h"
#include "ranks.h"
#include "tutti/test_kit.h"
#include "tutti/tutti.h"

namespace tutti {

/// There are two of the stand-in, and at least one real one.
inline int device_of_rank(int rank) { return standin::is_real() ? 0 : rank % 2; }

inline test_kit::RunOptions on_device() {
  test_kit::RunOptions options;
  options.deadline = std::chrono::seconds(600);
  options.init.timeout = std::chrono::seconds(60);
  options.init.settings["cuda_library"] = standin::driver_file();
  return options;
}

/// Leaves the stand-in as it was.
class DeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    control = standin::Driver::get().control;
    if (control != nullptr) control->reset();
  }
  void TearDown() override {
    if (control != nullptr) control->reset();
  }
  const standin::Control* control = nullptr;  // null: CUDA itself
};

/// Of what CUDA itself does not do when it is asked to.
class StandinTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (control == nullptr) GTEST_SKIP() << "CUDA does not fail when asked to";
  }
};

}  // namespace tutti
