#include "ddp/torch/tensor.h"

#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "ddp/model_check.h"
#include "ddp/torch/registered.h"
#include "ddp/torch/stream.h"
#include "tutti/torch/dtype.h"
#include "tutti/torch/tensor.h"

namespace tutti {
namespace ddp {
namespace {

using c10::str;

constexpr std::size_t kBroadcastBytes = std::size_t{16} << 20;

static_assert(std::size(kTorchDTypes) == kDTypeCount);

[[noreturn]] void refuse(ErrorCode code, std::string_view what, const std::string& why) {
  throw Error(code, str(what, ": ", why));
}

/// Nothing has to be said to CUDA's caching allocator (record_stream). It gives memory out again in
/// the order of the stream on which that was allocated, and an operation is over on the device
/// before what the current stream is given after the call, or after Work::wait; until then its Work
/// holds the tensor. Memory that was allocated on another stream than the current one is as with
/// any other use of it there: for the program to order.
std::shared_ptr<const void> retain_tensor(const void* source) {
  return std::make_shared<const at::Tensor>(*static_cast<const at::Tensor*>(source));
}

/// Refusals of `body` get to know the line that gave the tensor; what is taken costs nothing more.
/// `op` is the call, if it is known.
template <class Body>
Buffer given_at(const Where& where, const char* op, const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    const std::string line = name_of(where);
    throw Error(error.code(), line.empty() ? error.what() : str(line, ": ", error.what()),
                {.op = op, .call_site = line});
  }
}

Buffer whole_memory(const at::Tensor& tensor, DType dtype) {
  Buffer buffer(tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()), dtype,
                device_of_tensor(tensor), &tensor, retain_tensor);
  if (const auto stream = current_stream(tensor)) buffer.stream = handle_of(*stream);
  return buffer;
}

}  // namespace

DType dtype_of_tensor(const at::Tensor& tensor, std::string_view what) {
  if (!tensor.defined()) refuse(ErrorCode::kInvalidArgument, what, "undefined tensor");
  if (tensor.layout() != at::kStrided) {
    refuse(ErrorCode::kInvalidArgument, what,
           "sparse tensor; call to_dense(), or send indices() and values()");
  }
  if (!tensor.is_cpu() && !tensor.is_cuda()) {
    refuse(ErrorCode::kUnsupported, what,
           str("tensor on ", tensor.device(), "; only memory of the CPU and of CUDA is moved: ",
               tensor.is_meta() ? "it has none" : "call cpu()"));
  }
  const std::optional<DType> dtype = dtype_of_scalar(tensor.scalar_type());
  if (!dtype || tensor.is_quantized()) {
    refuse(ErrorCode::kUnsupported, what, str("tensor of ", tensor.scalar_type(), "; convert it"));
  }
  if (tensor.is_conj() || tensor.is_neg()) {  // its memory holds other values than it shows
    refuse(ErrorCode::kInvalidArgument, what,
           "lazily conjugated tensor; pass resolve_conj().resolve_neg()");
  }
  return *dtype;
}

at::ScalarType scalar_of_dtype(DType dtype) {
  return std::ranges::find(kTorchDTypes, dtype, &std::pair<at::ScalarType, DType>::second)->first;
}

std::string describe(const at::Tensor& tensor) {
  return str(tensor.sizes(), " strides ", tensor.strides(), " ", tensor.scalar_type());
}

void broadcast_tensors(ProcessGroup& group, std::span<const at::Tensor> tensors, int root,
                       Where where) {
  const at::NoGradGuard no_grad;
  for (std::size_t begin = 0, end = 0; begin < tensors.size(); begin = end) {
    std::vector<at::Tensor> flattened;
    std::size_t byte_count = 0;
    while (end < tensors.size() && tensors[end].scalar_type() == tensors[begin].scalar_type() &&
           tensors[end].device() == tensors[begin].device() &&
           (flattened.empty() || byte_count < kBroadcastBytes)) {
      flattened.push_back(tensors[end].detach().reshape({-1}));
      byte_count += tensors[end].nbytes();
      ++end;
    }
    const at::Tensor flat = at::cat(flattened);
    group.broadcast(flat, {.root = root}, where);
    if (group.rank() == root) continue;
    std::int64_t offset = 0;
    for (std::size_t i = begin; i < end; ++i) {
      const std::int64_t count = tensors[i].numel();
      tensors[i].detach().copy_(flat.narrow(0, offset, count).view(tensors[i].sizes()));
      offset += count;
    }
  }
}

}  // namespace ddp

Buffer BufferTraits<torch::Tensor>::buffer(const torch::Tensor& tensor, const Where& where) {
  constexpr const char* kWhat = "tensor as buffer";
  return ddp::given_at(where, "", [&] {
    const DType dtype = ddp::dtype_of_tensor(tensor, kWhat);
    if (!tensor.is_contiguous()) {
      ddp::refuse(
          ErrorCode::kInvalidArgument, kWhat,
          c10::str("not contiguous: ", ddp::describe(tensor),
                   "; pass contiguous() and copy the result back, or, if every rank's tensor has "
                   "these strides and order does not matter, tutti::in_memory_order(tensor)"));
    }
    return ddp::whole_memory(tensor, dtype);
  });
}

ConstBuffer BufferTraits<torch::Tensor>::const_buffer(const torch::Tensor& tensor,
                                                      const Where& where) {
  return buffer(tensor, where);
}

Buffer in_memory_order(const torch::Tensor& tensor, const Where& where) {
  constexpr const char* kWhat = "in_memory_order";
  return ddp::given_at(where, kWhat, [&] {
    const DType dtype = ddp::dtype_of_tensor(tensor, kWhat);
    if (!tensor.is_non_overlapping_and_dense()) {
      ddp::refuse(ErrorCode::kInvalidArgument, kWhat,
                  c10::str("elements overlap or leave holes: ", ddp::describe(tensor),
                           "; pass contiguous() and copy the result back"));
    }
    return ddp::whole_memory(tensor, dtype);
  });
}

std::uint64_t parameter_hash(const torch::nn::Module& module) {
  std::uint64_t hash = 0;
  const auto parameters = ddp::unwrapped(module).named_parameters();
  for (const auto& item : parameters) {
    const std::string text = c10::str(item.key(), " ", ddp::describe(item.value()));
    hash = ddp::hash_bytes(std::as_bytes(std::span(text)), hash);
    const at::Tensor values = item.value().detach().cpu().contiguous();
    hash =
        ddp::hash_bytes({static_cast<const std::byte*>(values.data_ptr()), values.nbytes()}, hash);
  }
  return hash;
}

}  // namespace tutti
