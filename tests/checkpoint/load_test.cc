// State_dicts and C++ models: what fits, what does not, and wrappers.
#include "../ddp/torch_ranks.h"
#include "net.h"
#include "stored.h"

namespace tutti {
namespace {

using checkpoint::bytes_of;
using checkpoint::expect_says;
using checkpoint::Folder;
using checkpoint::Net;
using checkpoint::refusal;
using Tensors = torch::OrderedDict<std::string, torch::Tensor>;

constexpr auto kInvalid = ErrorCode::kInvalidArgument;

std::string golden(const std::string& name) { return TUTTI_GOLDEN_FOLDER "/" + name; }

bool are_equal(const torch::nn::Module& a, const torch::nn::Module& b) {
  const auto buffers = b.named_buffers();
  for (const auto& buffer : a.named_buffers()) {
    if (!buffer.value().equal(buffers[buffer.key()])) return false;
  }
  return parameter_hash(a) == parameter_hash(b);
}

Tensors one(const std::string& name, const torch::Tensor& tensor) {
  Tensors tensors;
  tensors.insert(name, tensor);
  return tensors;
}

TEST(LoadStateDict, OfPython) {
  Net net;
  const auto before = net->fc->weight;
  const LoadedStateDict loaded = load_state_dict(*net, golden("run.pt"));
  EXPECT_TRUE(loaded.missing_keys.empty() && loaded.unexpected_keys.empty());
  EXPECT_EQ(std::get<std::int64_t>(loaded.values.at("epoch")), 3);
  EXPECT_EQ(net->bn->num_batches_tracked.item<std::int64_t>(), 3);
  EXPECT_TRUE(net->fc->weight.is_same(before));  // an optimizer that holds it goes on
  EXPECT_TRUE(net->fc->weight.requires_grad());
  EXPECT_TRUE(net->fc->weight.equal(read_state_dict(golden("run.pt"))["fc.weight"]));
  Net by_key;
  load_state_dict(*by_key, golden("run.pt"), {.key = "model"});
  EXPECT_TRUE(are_equal(*net, *by_key));
}

TEST(LoadStateDict, OddTensorsHaveTheirValues) {
  const Tensors odd = read_state_dict(golden("odd.pt"));
  const torch::Tensor grid = torch::arange(24.f).reshape({4, 6});
  EXPECT_TRUE(odd["transposed"].equal(grid.t()));
  EXPECT_TRUE(odd["sliced"].equal(grid.slice(0, 1, 3).slice(1, 2, 5)));
  EXPECT_TRUE(odd["expanded"].equal(torch::full({3, 2}, 7.f)));
  EXPECT_TRUE(odd["tail_of_shared"].equal(odd["shared"].slice(0, 3)));
  EXPECT_TRUE(odd["channels_last"].is_contiguous(torch::MemoryFormat::ChannelsLast));
  EXPECT_EQ(odd["empty_too"].sizes(), (std::vector<std::int64_t>{2, 0}));
  EXPECT_TRUE(odd["conjugated"].is_conj());
  EXPECT_FALSE(odd["parameter"].requires_grad());
}

TEST(LoadStateDict, TensorsOfOneStorageShareItAndNothingIsMultiplied) {
  Tensors odd = read_state_dict(golden("odd.pt"));
  EXPECT_EQ(odd["shared"].storage().data_ptr(), odd["tail_of_shared"].storage().data_ptr());
  odd["shared"].fill_(5);
  EXPECT_TRUE(odd["tail_of_shared"].eq(5).all().item<bool>()) << "as in Python";
  EXPECT_EQ(odd["expanded"].storage().nbytes(), 4u);
}

TEST(LoadStateDict, PrefixOfDistributedDataParallel) {
  Net plain, of_ddp;
  load_state_dict(*plain, golden("run.pt"));
  load_state_dict(*of_ddp, golden("net_of_ddp.pt"));
  EXPECT_TRUE(are_equal(*plain, *of_ddp));

  // A model that has a module of that name keeps it, on either side.
  struct Outer : torch::nn::Module {
    Outer() { register_module("module", net); }
    Net net;
  };
  Outer outer;
  load_state_dict(outer, golden("net_of_ddp.pt"));
  EXPECT_TRUE(are_equal(*plain, *outer.net));
  const Folder folder;
  save_state_dict(outer, folder / "outer.pt");
  EXPECT_TRUE(read_state_dict(folder / "outer.pt").contains("module.fc.weight"));
}

TEST(LoadStateDict, AllThatDoesNotFitIsNamedAtOnce) {
  const Folder folder;
  Net net, before;
  load_state_dict(*before, golden("run.pt"));
  load_state_dict(*net, golden("run.pt"));
  Tensors tensors = one("conv.weight", torch::ones({4, 1, 5, 5}));
  tensors.insert("conv.bias", torch::ones(4, torch::kDouble));
  tensors.insert("fc.weight", torch::ones({3, 16}));
  tensors.insert("head.weight", torch::ones(2));
  save_state_dict(tensors, folder / "wrong.pt");
  for (const bool is_strict : {true, false}) {
    const std::string message = refusal(
        kInvalid, [&] { load_state_dict(*net, folder / "wrong.pt", {.strict = is_strict}); });
    expect_says(message, {"load_state_dict: ", "wrong.pt does not fit the model",
                          "conv.weight [4, 1, 5, 5], in the model [4, 1, 3, 3]",
                          "conv.bias Double, in the model Float"});
    EXPECT_EQ(message.find("{.strict = false}") != std::string::npos, is_strict);
    EXPECT_EQ(message.find("unknown to the model: head.weight") != std::string::npos, is_strict);
    EXPECT_EQ(message.find("missing in the file: bn.weight, bn.bias, fc.bias") != std::string::npos,
              is_strict)
        << message;
  }
  EXPECT_TRUE(are_equal(*net, *before));  // fc.weight would have fitted
}

TEST(LoadStateDict, NotStrictSaysWhatWasLeftOut) {
  const Folder folder;
  Tensors tensors = one("fc.weight", torch::ones({3, 16}));
  tensors.insert("head.weight", torch::ones(2));
  save_state_dict(tensors, folder / "part.pt");
  Net net;
  const LoadedStateDict loaded = load_state_dict(*net, folder / "part.pt", {.strict = false});
  EXPECT_EQ(loaded.unexpected_keys, std::vector<std::string>{"head.weight"});
  EXPECT_EQ(loaded.missing_keys.size(), 7u);  // num_batches_tracked may be missing
  EXPECT_TRUE(net->fc->weight.equal(torch::ones({3, 16})));
}

TEST(LoadStateDict, MessagesAreBounded) {
  const Folder folder;
  Tensors tensors;
  for (int i = 0; i < 1000; ++i) {
    tensors.insert("layer" + std::to_string(i) + std::string(500, 'x'), torch::ones(1));
  }
  save_state_dict(tensors, folder / "many.pt");
  Net net;
  const std::string message = refusal(kInvalid, [&] { load_state_dict(*net, folder / "many.pt"); });
  expect_says(message, {"and 990 more", "layer9", "..."});
  EXPECT_LT(message.size(), 3000u);
}

TEST(LoadStateDict, EntriesThatCannotBeRead) {
  struct WithTable : torch::nn::Module {
    WithTable() { register_buffer("random", torch::zeros(1)); }
  } model;
  // Under "optimizer" there is a dictionary whose entries are no tensors.
  expect_says(refusal(kInvalid, [] { read_state_dict(golden("run.pt"), "optimizer"); }),
              {"read_state_dict: ", "state is no tensor", "param_groups is no tensor"});
  expect_says(
      refusal(kInvalid, [&] { load_state_dict(model, golden("run.pt"), {.key = "epoch"}); }),
      {"no dictionary", "'model'"});
  expect_says(refusal(ErrorCode::kSystem, [&] { load_state_dict(model, "absent.pt"); }),
              {"load_state_dict: absent.pt cannot be opened: No such file"});
}

TEST(LoadStateDict, AnotherDtypeWhereItIsAskedFor) {
  const Folder folder;
  Net whole, net;
  whole->bn->num_batches_tracked.fill_(1001);  // no number of bf16
  Tensors half;
  for (const auto& item : whole->named_parameters())
    half.insert(item.key(), item.value().detach().to(torch::kBFloat16));
  for (const auto& item : whole->named_buffers())
    half.insert(item.key(), item.value().is_floating_point() ? item.value().to(torch::kBFloat16)
                                                             : item.value());
  save_state_dict(half, folder / "half.pt");
  expect_says(
      refusal(kInvalid, [&] { load_state_dict(*net, folder / "half.pt"); }),
      {"of another dtype", "fc.weight BFloat16, in the model Float", "{.convert_dtypes = true}"});
  load_state_dict(*net, folder / "half.pt", {.convert_dtypes = true});
  EXPECT_TRUE(net->fc->weight.equal(half["fc.weight"].to(torch::kFloat)));
  EXPECT_EQ(net->bn->num_batches_tracked.item<std::int64_t>(), 1001);
}

TEST(SaveStateDict, BothFormatsAndBack) {
  const Folder folder;
  Net net;
  load_state_dict(*net, golden("run.pt"));
  for (const std::string name : {"net.pt", "net.safetensors", "net"}) {
    save_state_dict(*net, folder / name);
    Net back;
    load_state_dict(*back, folder / name);
    EXPECT_TRUE(are_equal(*net, *back)) << name;
  }
  EXPECT_EQ(bytes_of(folder / "net"), bytes_of(folder / "net.pt"));
  EXPECT_EQ(folder.listed().find("part"), std::string::npos);
}

TEST(SaveStateDict, LayoutsAndSharedParameters) {
  const Folder folder;
  const torch::Tensor grid = torch::arange(6.f).reshape({2, 3}), big = torch::randn({256, 256});
  Tensors tensors = one("transposed", grid.t());
  tensors.insert("expanded", torch::ones(1).expand({2, 2}));
  tensors.insert("conjugated", torch::randn(2, torch::kComplexFloat).conj());
  tensors.insert("big", big);
  tensors.insert("big_again", big);
  for (const std::string name : {"odd.pt", "odd.safetensors"}) {
    save_state_dict(tensors, folder / name);
    const Tensors back = read_state_dict(folder / name);
    for (const auto& item : tensors) EXPECT_TRUE(item.value().equal(back[item.key()]));
  }
  EXPECT_LT(bytes_of(folder / "odd.pt").size(), 2 * big.nbytes());  // stored once
}

TEST(SaveStateDict, WhatCannotBeWritten) {
  const Folder folder;
  const auto write = [&](const torch::Tensor& tensor) {
    save_state_dict(one("w", tensor), folder / "net.pt");
  };
  expect_says(refusal(kInvalid, [&] { write(torch::eye(3).to_sparse()); }),
              {"save_state_dict: ", "w: sparse tensor", "to_dense()"});
  expect_says(refusal(ErrorCode::kUnsupported,
                      [&] { write(at::quantize_per_tensor(torch::ones(2), 0.1, 0, at::kQInt8)); }),
              {"w: tensor of QInt8"});
  expect_says(refusal(kInvalid, [&] { write({}); }), {"w: undefined tensor"});
  expect_says(refusal(ErrorCode::kSystem,
                      [&] { save_state_dict(one("w", torch::ones(1)), folder / "no/net.pt"); }),
              {"no/net.pt", "No such file"});
  EXPECT_EQ(folder.listed(), "");
}

TEST(SaveStateDict, UnderDistributedDataParallel) {
  const Folder folder;
  ddp::on_ranks(2, [&](ProcessGroup& world) {
    Net net;
    // Rank 0 alone reads: the wrapper gives its parameters and buffers to all.
    if (world.rank() == 0) load_state_dict(*net, golden("run.pt"));
    auto model = DistributedDataParallel(net, world);
    Net expected;
    load_state_dict(*expected, golden("run.pt"));
    ddp::check(are_equal(*net, *expected), "rank 0's file on every rank");

    // Every rank saves, by mistake: the file is whole all the same. The wrapper has no prefix.
    save_state_dict(model, folder / "net.pt");
    world.barrier();
    ddp::check(read_state_dict(folder / "net.pt").contains("fc.weight"), "names as in Python");

    // Every rank reads, into the wrapper and into its module, from either kind of names.
    for (const auto& file : {folder / "net.pt", golden("net_of_ddp.pt")}) {
      const torch::NoGradGuard no_grad;
      net->fc->weight.zero_();
      load_state_dict(model, file);
      ddp::check(are_equal(*net, *expected), file);
      net->fc->weight.zero_();
      load_state_dict(*model.module(), file);
      ddp::check(are_equal(*net, *expected), file);
    }
    model.forward(torch::ones({2, 1, 4, 4})).sum().backward();  // it is the same wrapper still
    ddp::check_same_everywhere(world, *net);
  });
}

}  // namespace
}  // namespace tutti
