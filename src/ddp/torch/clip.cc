#include "tutti/torch/clip.h"

#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>

#include <cmath>
#include <unordered_set>

#include "ddp/norm.h"
#include "ddp/torch/tensor.h"
#include "tutti/error.h"
#include "tutti/torch/tensor.h"

namespace tutti {
namespace {

using c10::str;

[[noreturn]] void refuse_clip(ErrorCode code, const std::string& what) {
  throw Error(code, "clip_grad_norm_: " + what, {.op = "clip_grad_norm_"});
}

void check_arguments(double max_norm, const ClipOptions& options) {
  if (std::isnan(max_norm) || max_norm < 0) {
    refuse_clip(ErrorCode::kInvalidArgument, str("max_norm is ", max_norm, "; give 0 or more"));
  }
  if (std::isnan(options.norm_type) || options.norm_type == 0) {
    refuse_clip(ErrorCode::kInvalidArgument,
                str("norm_type is ", options.norm_type, "; give 1, 2, infinity or another power"));
  }
}

/// Of each parameter once.
std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  std::unordered_set<const void*> seen;
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.defined() || !parameter.grad().defined()) continue;
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    const at::Tensor& gradient = parameter.grad();
    if (gradient.layout() != at::kStrided || !gradient.is_floating_point()) {
      refuse_clip(ErrorCode::kUnsupported,
                  str("a gradient is ", gradient.layout(), " ", gradient.scalar_type(),
                      "; it takes dense ones of f16, bf16, f32 or f64"));
    }
    ddp::dtype_of_tensor(gradient, "clip_grad_norm_");
    gradients.push_back(gradient);
  }
  return gradients;
}

double norm_of(const std::vector<at::Tensor>& gradients, double norm_type) {
  ddp::Norm norm(norm_type);
  for (const at::Tensor& gradient : gradients) {
    const bool is_dense = gradient.is_non_overlapping_and_dense();
    // One on a device is copied: the norm has the same bits wherever gradients are.
    const at::Tensor values = (is_dense ? gradient : gradient.contiguous()).cpu();
    norm.add(in_memory_order(values));
  }
  return gradients.empty() ? 0 : norm.result();
}

}  // namespace

double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                       const ClipOptions& options) {
  const at::NoGradGuard no_grad;
  check_arguments(max_norm, options);
  std::vector<at::Tensor> gradients = gradients_of(parameters);
  const double norm = norm_of(gradients, options.norm_type);
  if (!std::isfinite(norm)) {
    if (options.if_not_finite == NotFinite::error) {
      refuse_clip(ErrorCode::kInvalidArgument,
                  str("the norm of the gradients is ", norm, "; it cannot be clipped to ", max_norm,
                      ". Look for what made it so, or skip the step (if_not_finite)"));
    }
    if (options.if_not_finite == NotFinite::skip) return norm;
  }
  const double scale = max_norm / (norm + 1e-6);
  if (scale >= 1) return norm;
  for (at::Tensor& gradient : gradients) gradient.mul_(scale);
  return norm;
}

}  // namespace tutti
