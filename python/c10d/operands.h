// The tensors of one call as buffers of Tutti's.
#pragma once

#include <ATen/core/Tensor.h>

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <utility>
#include <vector>

#include "tutti/buffer.h"
#include "tutti/types.h"

namespace tutti::python {

using Tensors = std::vector<at::Tensor>;

/// What reduces `tensor`: a sum of bools says whether any is true, a product whether all are, as
/// torch's + and * do.
///
/// Errors  TypeError: an operation that Tutti has not.
ReduceOp reduce_op_of(const c10d::ReduceOp& op, const at::Tensor& tensor);

/// What a call reads and writes. A tensor that is not contiguous is copied before, and where it is
/// written after.
///
/// Errors  ValueError: not on the CPU, sparse. TypeError: a dtype that Tutti has not.
class Operands {
 public:
  ConstBuffer in(const at::Tensor& tensor);
  Buffer out(const at::Tensor& tensor);
  std::vector<ConstBuffer> in(const Tensors& list);
  std::vector<Buffer> out(const Tensors& list);
  /// Once the operation has written: to be called once, before anybody looks.
  void copy_back();

 private:
  Tensors kept_;
  std::vector<std::pair<at::Tensor, at::Tensor>> back_;  // from, to
};

}  // namespace tutti::python
