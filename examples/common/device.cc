#include "common/device.h"

#include <torch/cuda.h>
#include <tutti/tutti.h>

#include <stdexcept>

torch::Device device_named(const std::string& name) {
  if (name != "cuda") return torch::kCPU;
  if (!torch::cuda::is_available()) {
    throw std::runtime_error(
        "--device cuda: there is no device of CUDA that this libtorch can use: nvidia-smi shows "
        "those of the machine, and a libtorch for CUDA has a libtorch_cuda.so; leave --device out "
        "to train on the CPU");
  }
  return {torch::kCUDA, static_cast<torch::DeviceIndex>(tutti::local_device())};
}
