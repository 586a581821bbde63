#include "c10d/operands.h"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>

#include "tutti/torch/dtype.h"

namespace tutti::python {
namespace {

DType checked_dtype(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.defined(), "tutti: undefined tensor");
  TORCH_CHECK_VALUE(tensor.is_cpu(), "tutti: tensor on ", tensor.device(),
                    "; the backend tutti moves tensors on the CPU: use another backend for ",
                    tensor.device().type(), ", as in init_process_group(\"cpu:tutti,cuda:nccl\")");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "tutti: ", tensor.layout(),
                    " tensor; only all_reduce takes it, others want to_dense()");
  const auto dtype = dtype_of_scalar(tensor.scalar_type());
  TORCH_CHECK_TYPE(dtype && !tensor.is_quantized(), "tutti: tensor of ", tensor.scalar_type(),
                   "; convert it");
  return *dtype;
}

/// `tensor` itself where its memory holds what it shows, side by side.
at::Tensor side_by_side(const at::Tensor& tensor) {
  if (tensor.is_conj() || tensor.is_neg()) return tensor.resolve_conj().resolve_neg().contiguous();
  return tensor.contiguous();
}

}  // namespace

ReduceOp reduce_op_of(const c10d::ReduceOp& op, const at::Tensor& tensor) {
  using Op = c10d::ReduceOp;
  const bool is_bool = tensor.scalar_type() == at::kBool;
  switch (op.op_) {
    case Op::SUM:
      return is_bool ? ReduceOp::max : ReduceOp::sum;
    case Op::AVG:
      return ReduceOp::avg;
    case Op::PRODUCT:
      return is_bool ? ReduceOp::min : ReduceOp::product;
    case Op::MIN:
      return ReduceOp::min;
    case Op::MAX:
      return ReduceOp::max;
    case Op::BAND:
      return ReduceOp::band;
    case Op::BOR:
      return ReduceOp::bor;
    case Op::BXOR:
      return ReduceOp::bxor;
    case Op::PREMUL_SUM: {
      const auto& factor = *static_cast<const c10d::NCCLPreMulSumSupplement*>(
          op.supplement_.get());  // any backend's
      return ReduceOp::premul_sum(factor.tensor_factor.defined()
                                      ? factor.tensor_factor.item<double>()
                                      : factor.double_factor);
    }
    case Op::UNUSED:
      break;
  }
  TORCH_CHECK_TYPE(false, "tutti: unknown reduce operation ", static_cast<int>(op.op_));
}

ConstBuffer Operands::in(const at::Tensor& tensor) {
  const DType dtype = checked_dtype(tensor);
  const at::Tensor& whole = kept_.emplace_back(side_by_side(tensor));
  return {whole.const_data_ptr(), static_cast<std::size_t>(whole.numel()), dtype};
}

Buffer Operands::out(const at::Tensor& tensor) {
  const DType dtype = checked_dtype(tensor);
  TORCH_CHECK_VALUE(
      at::has_internal_overlap(tensor) != at::MemOverlap::Yes,
      "tutti: elements of a tensor that is written share their memory, as expand() makes "
      "it (sizes ",
      tensor.sizes(), ", strides ", tensor.strides(), "): pass its clone()");
  const at::Tensor& whole = kept_.emplace_back(side_by_side(tensor));
  if (whole.const_data_ptr() != tensor.const_data_ptr()) back_.emplace_back(whole, tensor);
  return {whole.mutable_data_ptr(), static_cast<std::size_t>(whole.numel()), dtype};
}

std::vector<ConstBuffer> Operands::in(const Tensors& list) {
  std::vector<ConstBuffer> buffers;
  buffers.reserve(list.size());
  for (const at::Tensor& tensor : list) buffers.push_back(in(tensor));
  return buffers;
}

std::vector<Buffer> Operands::out(const Tensors& list) {
  std::vector<Buffer> buffers;
  buffers.reserve(list.size());
  for (const at::Tensor& tensor : list) buffers.push_back(out(tensor));
  return buffers;
}

void Operands::copy_back() {
  if (back_.empty()) return;
  // As a collective writes into what lies side by side: unseen by autograd, and by modes of Python.
  const at::AutoDispatchBelowADInplaceOrView unseen;
  const c10::impl::ExcludeDispatchKeyGuard no_modes(
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
  for (auto& [from, to] : back_) to.copy_(from);
}

}  // namespace tutti::python
