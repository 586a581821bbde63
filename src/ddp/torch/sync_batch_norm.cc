// BatchNorm over all ranks of a group.
//
// The *moments* of a channel are the number of its values, their mean and the sum of the squares of
// their distances from it. Every rank makes those of its own batch, gathers all ranks', and
// combines them in the order of ranks, as all others do: so all have the same bits. Backward needs
// two sums per channel over all ranks: one all_reduce.
//
// Source: Chan, Golub, LeVeque, Updating Formulae and a Pairwise Algorithm for Computing Sample
// Variances (1979).
#include "tutti/torch/sync_batch_norm.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <c10/util/StringUtil.h>
#include <torch/autograd.h>
#include <torch/nn/functional/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <optional>
#include <span>
#include <tuple>
#include <typeinfo>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "ddp/parameter_set.h"
#include "ddp/torch/tensor.h"
#include "tutti/torch/tensor.h"

namespace tutti {
namespace detail {

using c10::str;

class NormExchange {
 public:
  NormExchange(std::size_t dimensions, std::int64_t features, const ProcessGroup& group,
               const Where& where)
      : dimensions_(dimensions),
        features_(features),
        borrowed_(group, where, "SyncBatchNorm"),
        rank_(group.rank()),
        made_at_(where),
        for_moments_(purpose("the statistics")),
        for_gradients_(purpose("the gradients")) {}

  std::int64_t features() const { return features_; }

  [[noreturn]] void fail(ErrorCode code, const std::string& what) const {
    ErrorContext context;
    context.op = "SyncBatchNorm";
    context.rank = rank_;
    context.call_site = name_of(made_at_);
    throw Error(code, str(name(), ", rank ", rank_, ": ", what), std::move(context));
  }

  void check_dimensions(const at::Tensor& input) const {
    const std::int64_t most = static_cast<std::int64_t>(dimensions_) + 2;
    if (input.dim() == most || (dimensions_ == 1 && input.dim() == 2)) return;
    fail(ErrorCode::kInvalidArgument,
         str("expected ", dimensions_ == 1 ? "2D or 3D" : str(most, "D"), " input (got ",
             input.dim(), "D input)"));
  }

  void check(const at::Tensor& input, const BatchNormParts& parts) const;

  /// Every rank's `own`, one after the other.
  std::vector<double> gather(const std::vector<double>& own) const {
    ProcessGroup ranks = group();
    std::vector<double> all(own.size() * static_cast<std::size_t>(ranks.world_size()));
    ranks.all_gather(ConstBuffer(own), Buffer(all), {}, made_at_.with(for_moments_));
    return all;
  }
  void add_up(const at::Tensor& sums) const {
    group().all_reduce(sums, {}, made_at_.with(for_gradients_));
  }

 private:
  ProcessGroup group() const {
    ProcessGroup group = borrowed_.lock();
    if (!group.is_member()) {
      fail(ErrorCode::kClosed,
           "its group has been destroyed; keep the ProcessGroup for as long as the module trains");
    }
    return group;
  }
  std::string name() const {
    const std::string line = name_of(made_at_);
    const std::string name = str("SyncBatchNorm", dimensions_, "d ", borrowed_.number());
    return line.empty() ? name : str(name, " (", line, ")");
  }
  Purpose purpose(const std::string& what) const {
    const auto number = static_cast<std::uint64_t>(borrowed_.number());
    return {hash_combine(hash_text(what), hash_text("SyncBatchNorm"), number),
            str(what, " of ", name())};
  }

  const std::size_t dimensions_;
  const std::int64_t features_;
  const BorrowedGroup borrowed_;
  const int rank_;
  const Where made_at_;
  const Purpose for_moments_, for_gradients_;
};

void NormExchange::check(const at::Tensor& input, const BatchNormParts& parts) const {
  ddp::dtype_of_tensor(input, str("the input of ", name()));
  check_dimensions(input);
  if (input.size(1) != features_) {
    fail(ErrorCode::kInvalidArgument,
         str("expected input with ", features_, " features, got one of ", input.sizes()));
  }
  const at::ScalarType dtype = input.scalar_type();
  if (!at::isFloatingType(dtype)) {
    fail(ErrorCode::kInvalidArgument, str("the input is ", dtype, "; convert it to Float"));
  }
  for (const at::Tensor& part : {parts.weight, parts.running_mean}) {
    if (!part.defined() || part.scalar_type() == dtype) continue;
    if (part.scalar_type() == at::toOpMathType(dtype)) continue;
    fail(ErrorCode::kInvalidArgument, str("the input is ", dtype, ", the module ",
                                          part.scalar_type(), "; convert either one with to()"));
  }
}

namespace {

/// Of all ranks' values.
struct Statistics {
  double count = 0;
  at::Tensor mean, variance;  // by channel, f64; biased
};

/// {count, means, sums of squares} of this rank's batch.
std::vector<double> own_moments(const at::Tensor& input) {
  const auto channels = static_cast<std::size_t>(input.size(1));
  std::vector<double> own(1 + 2 * channels, 0.0);
  if (input.numel() == 0) return own;
  const double count = static_cast<double>(input.numel() / input.size(1));
  const auto [mean, variance] = at::batch_norm_update_stats(input.to(at::kDouble), {}, {}, 0);
  own[0] = count;
  const at::Tensor both = at::stack({mean, variance * count}).cpu();
  std::copy_n(both.const_data_ptr<double>(), 2 * channels, own.begin() + 1);
  return own;
}

/// Adds a rank's moments, of more than no values, to those of `count` values.
void combine(double count, std::span<double> moments, double more, std::span<const double> other) {
  const std::size_t channels = moments.size() / 2;
  const double part = more / (count + more);
  for (std::size_t c = 0; c < channels; ++c) {
    const double apart = other[c] - moments[c];
    moments[c] += apart * part;
    moments[channels + c] += other[channels + c] + apart * apart * count * part;
  }
}

Statistics statistics_of_all(const NormExchange& exchange, const at::Tensor& input) {
  const std::vector<double> own = own_moments(input);
  const std::vector<double> all = exchange.gather(own);
  const std::size_t channels = (own.size() - 1) / 2;
  Statistics statistics;
  std::vector<double> moments(2 * channels, 0.0);
  for (std::span<const double> rest = all; !rest.empty(); rest = rest.subspan(own.size())) {
    const double count = rest[0];
    if (count == 0) continue;
    combine(statistics.count, moments, count, rest.subspan(1, 2 * channels));
    statistics.count += count;
  }
  if (statistics.count <= 1) {
    exchange.fail(ErrorCode::kInvalidArgument,
                  str("Expected more than 1 value per channel when training, got input size ",
                      input.sizes(), " and ", statistics.count, " on all ranks together"));
  }
  const at::Tensor both = at::tensor(moments, at::kDouble).view({2, -1}).to(input.device());
  statistics.mean = both[0];
  statistics.variance = both[1] / statistics.count;
  return statistics;
}

void update_running(const BatchNormParts& parts, const Statistics& now) {
  if (!parts.running_mean.defined()) return;
  parts.num_batches_tracked.add_(1);
  const double factor =
      parts.options.momentum().value_or(1 / parts.num_batches_tracked.item<double>());
  const auto move = [factor](const at::Tensor& running, const at::Tensor& fresh) {
    running.copy_(running.to(at::kDouble) * (1 - factor) + fresh * factor);
  };
  move(parts.running_mean, now.mean);
  move(parts.running_var, now.variance * (now.count / (now.count - 1)));
}

using OptionalTensor = std::optional<at::Tensor>;

/// Keeps who exchanges alive with the graph.
struct Keeper : torch::CustomClassHolder {
  explicit Keeper(std::shared_ptr<const NormExchange> the_exchange)
      : exchange(std::move(the_exchange)) {}
  const std::shared_ptr<const NormExchange> exchange;
};

/// What libtorch's evaluation mode does with statistics that are given is what every rank has to do
/// with those of all, in forward; backward is that of evaluation and what the statistics add.
struct Normalize : torch::autograd::Function<Normalize> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const OptionalTensor& weight, const OptionalTensor& bias,
                            const Statistics& statistics, double eps,
                            const std::shared_ptr<const NormExchange>& exchange);
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               const torch::autograd::tensor_list& gradients);
};

OptionalTensor as(const OptionalTensor& tensor, at::ScalarType dtype) {
  if (!tensor || !tensor->defined()) return std::nullopt;
  return tensor->to(dtype);
}

/// Adds to the input's gradient what comes through mean and variance; `sums` over all ranks, of
/// gradient x normalized input and of the gradient.
void through_statistics(const at::Tensor& for_input, const at::Tensor& input,
                        const OptionalTensor& weight, const Statistics& statistics, double eps,
                        const at::Tensor& sums) {
  if (input.numel() == 0) return;
  const at::Tensor by_deviation = (statistics.variance + eps).rsqrt();
  const at::Tensor scale = weight ? by_deviation * *weight : by_deviation;
  const at::Tensor means = sums / statistics.count;
  const at::Tensor slope = scale * by_deviation * means[0];
  const at::Tensor at_zero = slope * statistics.mean - scale * means[1];
  const auto by_channel = [&](const at::Tensor& values) {
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(input.dim()), 1);
    sizes[1] = -1;
    return values.to(at::toOpMathType(input.scalar_type())).view(sizes);
  };
  for_input.add_(at::addcmul(by_channel(at_zero), input, by_channel(slope), -1));
}

at::Tensor Normalize::forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                              const OptionalTensor& weight, const OptionalTensor& bias,
                              const Statistics& statistics, double eps,
                              const std::shared_ptr<const NormExchange>& exchange) {
  const at::ScalarType dtype = at::toOpMathType(input.scalar_type());
  context->save_for_backward(
      {input, weight.value_or(at::Tensor()), statistics.mean, statistics.variance});
  context->saved_data["count"] = statistics.count;
  context->saved_data["eps"] = eps;
  context->saved_data["exchange"] = at::IValue::make_capsule(c10::make_intrusive<Keeper>(exchange));
  if (input.numel() == 0) return at::empty_like(input);
  return at::batch_norm(input, as(weight, dtype), as(bias, dtype), statistics.mean.to(dtype),
                        statistics.variance.to(dtype), /*training=*/false, 0, eps, false);
}

torch::autograd::tensor_list Normalize::backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::tensor_list& gradients) {
  const auto keeper =
      c10::static_intrusive_pointer_cast<Keeper>(context->saved_data["exchange"].toCapsule());
  if (at::GradMode::is_enabled()) {
    keeper->exchange->fail(ErrorCode::kUnsupported,
                           "backward with create_graph: its gradient has no graph of its own");
  }
  const auto saved = context->get_saved_variables();
  const at::Tensor &input = saved[0], &weight = saved[1];
  const Statistics statistics{context->saved_data["count"].toDouble(), saved[2], saved[3]};
  const double eps = context->saved_data["eps"].toDouble();
  const at::ScalarType dtype = at::toOpMathType(input.scalar_type());

  // The gradients of weight and bias are the sums over this rank's values of gradient x normalized
  // input and of the gradient.
  at::Tensor for_input = at::empty_like(input);
  at::Tensor for_weight = at::zeros({input.size(1)}, input.options().dtype(dtype)),
             for_bias = for_weight;
  if (input.numel() != 0) {
    std::tie(for_input, for_weight, for_bias) = at::native_batch_norm_backward(
        gradients[0], input, as(weight, dtype), statistics.mean.to(dtype),
        statistics.variance.to(dtype), {}, {}, /*train=*/false, eps, {true, true, true});
  }
  if (context->needs_input_grad(0)) {
    const at::Tensor sums = at::stack({for_weight, for_bias}).to(at::kDouble);
    keeper->exchange->add_up(sums);
    through_statistics(for_input, input, as(weight, at::kDouble), statistics, eps, sums);
  }
  if (!weight.defined()) return {for_input, {}, {}, {}, {}, {}};
  const at::ScalarType kept = weight.scalar_type();
  return {for_input, for_weight.to(kept), for_bias.to(kept), {}, {}, {}};
}

// ---- the public face ---------------------------------------------------------------------------

}  // namespace

std::shared_ptr<const NormExchange> make_norm_exchange(std::size_t dimensions,
                                                       std::int64_t features,
                                                       const ProcessGroup& group,
                                                       const Where& where) {
  return std::make_shared<const NormExchange>(dimensions, features, group, where);
}

void check_dimensions(const NormExchange& exchange, const at::Tensor& input) {
  exchange.check_dimensions(input);
}

at::Tensor sync_batch_norm(const std::shared_ptr<const NormExchange>& exchange,
                           const at::Tensor& input, const BatchNormParts& parts) {
  const torch::nn::BatchNormOptions& options = parts.options;
  if (!parts.training) {
    exchange->check_dimensions(input);
    return torch::nn::functional::detail::batch_norm(
        input, parts.running_mean, parts.running_var, parts.weight, parts.bias,
        !options.track_running_stats(), 0, options.eps());
  }
  exchange->check(input, parts);
  const Statistics statistics = [&] {
    const at::NoGradGuard no_grad;
    Statistics made = statistics_of_all(*exchange, input);
    update_running(parts, made);
    return made;
  }();
  return Normalize::apply(input, OptionalTensor(parts.weight), OptionalTensor(parts.bias),
                          statistics, options.eps(), exchange);
}

void print_sync_batch_norm(std::ostream& stream, std::size_t dimensions,
                           const torch::nn::BatchNormOptions& options) {
  stream << std::boolalpha << "tutti::SyncBatchNorm" << dimensions << "d(" << options.num_features()
         << ", eps=" << options.eps() << ", momentum=";
  if (options.momentum()) {
    stream << *options.momentum();
  } else {
    stream << "None";
  }
  stream << ", affine=" << options.affine()
         << ", track_running_stats=" << options.track_running_stats() << ')';
}

}  // namespace detail

// ---- conversion --------------------------------------------------------------------------------

namespace {

namespace nn = torch::nn;
using c10::str;

constexpr std::size_t kListBytes = 400;  // of names in an error

/// Of libtorch's types, or derived from one.
bool is_batch_norm(const nn::Module& module) {
  return module.as<nn::BatchNorm1d>() != nullptr || module.as<nn::BatchNorm2d>() != nullptr ||
         module.as<nn::BatchNorm3d>() != nullptr;
}

template <class Plain, class Synced>
nn::AnyModule counterpart_of(const nn::Module& plain, const ProcessGroup& group, Where where) {
  if (typeid(plain) != typeid(Plain)) return {};
  return nn::AnyModule(std::make_shared<Synced>(static_cast<const Plain&>(plain), group, where));
}

/// The counterpart of a BatchNorm; empty for a type derived from it, whose forward is its own.
nn::AnyModule counterpart(const nn::Module& plain, const ProcessGroup& group, Where where) {
  nn::AnyModule made =
      counterpart_of<nn::BatchNorm1dImpl, SyncBatchNorm1dImpl>(plain, group, where);
  if (made.is_empty()) {
    made = counterpart_of<nn::BatchNorm2dImpl, SyncBatchNorm2dImpl>(plain, group, where);
  }
  if (made.is_empty()) {
    made = counterpart_of<nn::BatchNorm3dImpl, SyncBatchNorm3dImpl>(plain, group, where);
  }
  return made;
}

/// All exchanges in a module, found before the first is made.
class Conversion {
 public:
  Conversion(const ProcessGroup& group, Where where) : group_(group), where_(where) {}

  void look_into(nn::Module& parent, const std::string& prefix = {}) {
    const bool calls_any =
        parent.as<nn::Sequential>() != nullptr || parent.as<nn::ModuleList>() != nullptr;
    const auto children = parent.named_children();
    for (const auto& child : children) {
      const std::string name = prefix + child.key();
      if (!is_batch_norm(*child.value())) {
        look_into(*child.value(), name + ".");
        continue;
      }
      // One that stands in several places has one counterpart.
      nn::AnyModule& synced = synced_[child.value().get()];
      if (calls_any && synced.is_empty()) synced = counterpart(*child.value(), group_, where_);
      if (!calls_any || synced.is_empty()) {
        members_.push_back(name);
      } else {
        places_.push_back({&parent, child.key(), child.value(), synced});
      }
    }
  }

  std::size_t make() const {
    if (!members_.empty()) {
      throw Error(
          ErrorCode::kInvalidArgument,
          str("convert_sync_batch_norm: cannot exchange ", ddp::listed(members_, kListBytes),
              " from outside: only a BatchNorm itself in a Sequential or ModuleList, since "
              "other code names the type; declare as tutti::SyncBatchNorm there"),
          {.op = "convert_sync_batch_norm", .call_site = name_of(where_)});
    }
    for (const Place& place : places_) exchange(place);
    return places_.size();
  }

 private:
  struct Place {
    nn::Module* parent;
    std::string key;
    std::shared_ptr<nn::Module> plain;
    nn::AnyModule synced;
  };

  static void exchange(const Place& place) {
    place.parent->replace_module(place.key, place.synced.ptr());
    if (auto* const sequential = place.parent->as<nn::Sequential>()) {
      for (nn::AnyModule& module : *sequential) {
        if (module.ptr() == place.plain) module = place.synced;
      }
    } else {
      for (std::shared_ptr<nn::Module>& module : *place.parent->as<nn::ModuleList>()) {
        if (module == place.plain) module = place.synced.ptr();
      }
    }
  }

  const ProcessGroup& group_;
  const Where where_;
  std::unordered_map<const nn::Module*, nn::AnyModule> synced_;
  std::vector<Place> places_;
  std::vector<std::string> members_;  // which only their own module can name
};

}  // namespace

std::size_t convert_sync_batch_norm(nn::Module& module, const ProcessGroup& group, Where where) {
  Conversion conversion(group, where);
  conversion.look_into(module);
  return conversion.make();
}

}  // namespace tutti
