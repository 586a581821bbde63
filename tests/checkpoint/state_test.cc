// State_dicts out of files, without torch: those that Python has made (files.py, safetensors 0.8),
// and made-up ones that are wrong in one place.
#include "checkpoint/state.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <functional>

#include "checkpoint/bytes.h"
#include "checkpoint/crc32.h"
#include "checkpoint/zip.h"
#include "stored.h"

namespace tutti::checkpoint {
namespace {

constexpr auto kInvalid = ErrorCode::kInvalidArgument;

std::string golden(const std::string& name) { return TUTTI_GOLDEN_FOLDER "/" + name; }

State read(const std::string& path, const std::optional<std::string>& key = {}) {
  return read_state(File(path), key);
}

const StoredTensor& find(const State& state, const std::string& name) {
  const auto found = std::ranges::find(state.tensors, name, &StoredTensor::name);
  if (found == state.tensors.end()) throw std::runtime_error(name + " is not there");
  return *found;
}

template <class Number>
std::vector<Number> elements(const std::string& path, const StoredTensor& tensor) {
  std::vector<Number> numbers(tensor.elements.byte_count / sizeof(Number));
  File(path).read(tensor.elements.at, std::as_writable_bytes(std::span(numbers)));
  return numbers;
}

using Sizes = std::vector<std::int64_t>;

// ---- Files of Python ----

TEST(TorchFile, StateDictBesideAnOptimizerAndObjects) {
  const State state = read(golden("run.pt"));
  ASSERT_EQ(state.tensors.size(), 9u);
  EXPECT_EQ(state.tensors.front().name, "conv.weight");
  EXPECT_EQ(state.tensors.front().sizes, (Sizes{4, 1, 3, 3}));
  const StoredTensor& steps = find(state, "bn.num_batches_tracked");
  EXPECT_EQ(steps.dtype, DType::i64);
  EXPECT_TRUE(steps.sizes.empty());
  EXPECT_EQ(elements<std::int64_t>(golden("run.pt"), steps), (std::vector<std::int64_t>{3}));
  const std::map<std::string, Value> beside = {{"epoch", std::int64_t{3}},
                                               {"best", 0.5},
                                               {"is_done", false},
                                               {"name", std::string("run 7")}};
  EXPECT_EQ(state.values, beside);
  EXPECT_EQ(read(golden("run.pt"), "model").tensors.size(), 9u);
}

TEST(TorchFile, NamesStayAsTheFileHasThem) {
  const State state = read(golden("net_of_ddp.pt"));
  EXPECT_EQ(state.tensors.front().name, "module.conv.weight");
  EXPECT_TRUE(state.values.empty());
}

TEST(TorchFile, StridesOffsetsAndSharedStorages) {
  const State state = read(golden("odd.pt"));
  const StoredTensor& transposed = find(state, "transposed");
  EXPECT_EQ(transposed.sizes, (Sizes{6, 4}));
  EXPECT_EQ(transposed.strides, (Sizes{1, 6}));
  const StoredTensor& sliced = find(state, "sliced");  // rows 1 and 2, columns 2 to 4
  EXPECT_EQ(sliced.elements.byte_count, 9 * sizeof(float));
  EXPECT_EQ(elements<float>(golden("odd.pt"), sliced),
            (std::vector<float>{8, 9, 10, 11, 12, 13, 14, 15, 16}));
  const StoredTensor &whole = find(state, "shared"), &tail = find(state, "tail_of_shared");
  EXPECT_EQ(tail.elements.at, whole.elements.at + 3 * sizeof(float));
  EXPECT_EQ(find(state, "shared_too").elements.at, whole.elements.at);
  EXPECT_EQ(find(state, "expanded").elements.byte_count, sizeof(float));
  EXPECT_EQ(find(state, "empty").elements.byte_count, 0u);
}

TEST(TorchFile, EveryElementType) {
  const State state = read(golden("odd.pt"));
  for (const auto& [name, dtype] :
       std::initializer_list<std::pair<const char*, DType>>{{"bool", DType::bool_},
                                                            {"u8", DType::u8},
                                                            {"i8", DType::i8},
                                                            {"i16", DType::i16},
                                                            {"i32", DType::i32},
                                                            {"i64", DType::i64},
                                                            {"u16", DType::u16},
                                                            {"u32", DType::u32},
                                                            {"u64", DType::u64},
                                                            {"f16", DType::f16},
                                                            {"bf16", DType::bf16},
                                                            {"parameter", DType::f32},
                                                            {"f64", DType::f64},
                                                            {"conjugated", DType::complex64},
                                                            {"complex128", DType::complex128},
                                                            {"f8_e4m3", DType::f8_e4m3},
                                                            {"f8_e5m2", DType::f8_e5m2}}) {
    EXPECT_EQ(find(state, name).problem, "");
    EXPECT_EQ(find(state, name).dtype, dtype) << name;
  }
  EXPECT_TRUE(find(state, "conjugated").is_conjugated);
  EXPECT_TRUE(find(state, "negated").is_negated);
  EXPECT_EQ(elements<std::uint64_t>(golden("odd.pt"), find(state, "u64")),
            (std::vector<std::uint64_t>{1, std::uint64_t{1} << 63}));
  find(state, "name with \u00e4, \" and \\");
}

TEST(TorchFile, LegacyFormatIsRefusedWithTheRemedy) {
  expect_says(refusal(kInvalid, [] { read(golden("legacy.pt")); }),
              {"before torch 1.6", "torch.save(torch.load(FILE, weights_only=True), FILE)"});
}

TEST(TorchFile, EveryEndIsNoticed) {
  const Folder folder;
  const std::string whole = bytes_of(golden("net_of_ddp.pt"));
  for (std::size_t length = 0; length < whole.size(); length += 7) {
    const std::string path = folder.write("cut.pt", whole.substr(0, length));
    refusal(kInvalid, [&] { read(path); });
  }
}

TEST(Safetensors, FileOfThePackage) {
  const State state = read(golden("package.safetensors"));
  EXPECT_EQ(find(state, "fc.weight").sizes, (Sizes{3, 16}));
  EXPECT_EQ(find(state, "fc.weight").strides, (Sizes{16, 1}));
  EXPECT_EQ(elements<float>(golden("package.safetensors"), find(state, "fc.bias")),
            (std::vector<float>{0, 1, 2}));
  EXPECT_EQ(find(state, "mask").dtype, DType::bool_);
  EXPECT_EQ(find(state, "half").dtype, DType::f16);
  EXPECT_EQ(find(state, "empty").elements.byte_count, 0u);
  EXPECT_EQ(
      elements<std::int64_t>(golden("package.safetensors"), find(state, "bn.num_batches_tracked")),
      (std::vector<std::int64_t>{3}));
  EXPECT_EQ(state.values.at("epoch"), Value("3"));
}

// ---- Zips that are wrong ----

/// A zip of torch with this pickle, and a storage "0" of four floats.
struct Zip {
  std::string pickle;
  std::string byteorder = "little";
  std::map<std::string, std::string> more = {};

  std::string write(const Folder& folder) const {
    Draft draft(folder / "made.pt");
    ZipWriter zip(draft);
    zip.add("made/data.pkl", pickle);
    if (!byteorder.empty()) zip.add("made/byteorder", byteorder);
    zip.add("made/data/0", std::string(16, 'f'));
    for (const auto& [name, content] : more) zip.add(name, content);
    zip.finish();
    draft.complete();
    return folder / "made.pt";
  }
};

std::string text(const std::string& word) {
  return "X" + std::string(1, static_cast<char>(word.size())) + std::string(3, '\0') + word;
}

/// A tensor as Python pickles it, with its numbers as opcodes: "K\2" is 2.
struct MadeTensor {
  std::string offset = std::string("K\0", 2), sizes = "K\2K\2", strides = "K\2K\1",
              storage = "FloatStorage", key = "0", flags = {};
  std::string pickled() const {
    return "ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + "ctorch\n" + storage + "\n" +
           text(key) + text("cpu") + "K\4tQ" + offset + "(" + sizes + "t(" + strides + "t\x89}" +
           flags + "tR";
  }
};

std::string dictionary(const std::string& items) { return "\x80\2}(" + items + "u."; }
const std::string kTensor = MadeTensor().pickled();
const std::string kGood = dictionary(text("w") + kTensor);

std::string message_of(const Zip& zip, const std::optional<std::string>& key = {}) {
  const Folder folder;
  const std::string path = zip.write(folder);
  return refusal(kInvalid, [&] { read(path, key); });
}
std::string message_of(const std::string& pickle) { return message_of(Zip{pickle}); }

TEST(Zip, WhatIsMadeUpHereIsRead) {
  const Folder folder;
  const State state = read(Zip{kGood}.write(folder));
  ASSERT_EQ(state.tensors.size(), 1u);
  EXPECT_EQ(state.tensors[0].problem, "");
  EXPECT_EQ(state.tensors[0].elements.byte_count, 16u);
  EXPECT_EQ(read(Zip{kGood, ""}.write(folder)).tensors.size(), 1u);  // torch before 2.1
}

TEST(Zip, OtherOrderOfBytes) {
  expect_says(message_of({kGood, "big"}), {"another order of bytes", "on this machine"});
}

TEST(Zip, ArchiveOfTorchSaveInCpp) {
  expect_says(message_of({kGood, "little", {{"made/constants.pkl", ""}}}),
              {"torch::load reads it"});
}

TEST(Zip, SameEntryTwice) {
  expect_says(message_of({kGood, "little", {{"made/data/0", ""}}}), {"made/data/0 twice"});
}

TEST(Zip, WithoutPickle) {
  const Folder folder;
  {
    Draft draft(folder / "other.zip");
    ZipWriter zip(draft);
    zip.add("readme", "text");
    zip.finish();
    draft.complete();
  }
  expect_says(refusal(kInvalid, [&] { read(folder / "other.zip"); }), {"without data.pkl"});
}

/// A good zip, changed.
std::string message_of_changed(const std::function<void(std::string*)>& change) {
  const Folder folder;
  const std::string path = Zip{kGood}.write(folder);
  std::string bytes = bytes_of(path);
  change(&bytes);
  folder.write("made.pt", bytes);
  return refusal(kInvalid, [&] { read(path); });
}

TEST(Zip, CompressedOrEncrypted) {
  const auto set_in_directory = [](std::size_t at, char value) {
    return [=](std::string* bytes) { (*bytes)[bytes->find("PK\1\2") + at] = value; };
  };
  expect_says(message_of_changed(set_in_directory(10, 8)), {"compressed", "torch.save(torch.load"});
  expect_says(message_of_changed(set_in_directory(8, 1)), {"encrypted"});
}

TEST(Zip, NumbersThatPointOutside) {
  const auto set_number = [](const char* mark, std::size_t at, std::uint64_t number) {
    return [=](std::string* bytes) {
      std::memcpy(bytes->data() + bytes->rfind(mark) + at, &number, sizeof(number));
    };
  };
  constexpr std::uint64_t kHuge = ~std::uint64_t{0};
  constexpr const char* kEnd64 = "PK\6\6";
  expect_says(message_of_changed(set_number(kEnd64, 48, kHuge)), {"damaged"});  // directory
  expect_says(message_of_changed(set_number(kEnd64, 48, kHuge - 60)), {"damaged"});
  expect_says(message_of_changed(set_number(kEnd64, 40, kHuge)), {"bytes, 67108864 are read"});
  expect_says(message_of_changed(set_number("PK\6\7", 8, kHuge)), {"damaged"});  // end
  for (const std::size_t at : {0u, 8u, 16u}) {  // bytes, packed bytes, header of data/0
    expect_says(message_of_changed([&](std::string* bytes) {
                  const std::size_t numbers = bytes->rfind("made/data/0") + 11 + 4 + at;
                  std::memcpy(bytes->data() + numbers, &kHuge, sizeof(kHuge));
                }),
                {"damaged"});
  }
}

TEST(Zip, OffsetsBeyond4GiB) {
  constexpr std::uint64_t kShift = std::uint64_t{5} << 30;
  const Folder folder;
  const std::string path = Zip{kGood}.write(folder);
  std::string bytes = bytes_of(path);
  const auto shift = [&](std::size_t at) {
    const std::uint64_t number = number_at<std::uint64_t>(std::as_bytes(std::span(bytes)), at);
    const std::uint64_t shifted = number + kShift;
    std::memcpy(bytes.data() + at, &shifted, sizeof(shifted));
  };
  for (std::size_t at = bytes.find("PK\1\2"); at != std::string::npos;
       at = bytes.find("PK\1\2", at + 1)) {
    shift(at + 46 + static_cast<unsigned char>(bytes[at + 28]) + 20);  // where its header is
  }
  shift(bytes.rfind("PK\6\6") + 48);  // where the directory is
  shift(bytes.rfind("PK\6\7") + 8);   // where the record about that is
  {
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file << "PK\3\4";
    file.seekp(kShift);  // nothing stands before it
    file << bytes;
  }
  const StoredTensor tensor = read(path).tensors.at(0);
  EXPECT_GT(tensor.elements.at, kShift);
  std::vector<char> read_back(16);
  File(path).read(tensor.elements.at, std::as_writable_bytes(std::span(read_back)));
  EXPECT_EQ(std::string(read_back.begin(), read_back.end()), std::string(16, 'f'));
}

TEST(Zip, ChecksumIsThatOfZip) {
  const std::string_view digits = "123456789";  // the known answer of CRC-32
  EXPECT_EQ(crc32(std::as_bytes(std::span(digits))), 0xcbf43926u);
  EXPECT_EQ(crc32({}), 0u);
}

// ---- Pickles that are wrong, or hold something else ----

TEST(Pickle, NestedBeyondAnyStackIsRead) {
  std::string deep;
  for (int i = 0; i < 1'000'000; ++i) deep += ']';
  for (int i = 1; i < 1'000'000; ++i) deep += 'a';
  const Folder folder;
  EXPECT_EQ(
      read(Zip{dictionary(text("w") + kTensor + text("x") + deep)}.write(folder)).tensors.size(),
      2u);
}

TEST(Pickle, TooManyValues) {
  expect_says(message_of("\x80\2(" + std::string((1 << 22) + 1, 'N') + "t."),
              {"more than 4194304 values"});
  expect_says(message_of("\x80\2Nq" + std::string(1, '\0') + std::string((1 << 22) + 1, '(') + "."),
              {"more than 4194304 values"});
}

TEST(Pickle, SharedTuplesAreNotMultiplied) {
  // A million calls with one tuple of a million numbers: copies of it would not fit into memory.
  std::string pickle =
      "\x80\2(" + std::string(1'000'000, 'N') + "tq" + std::string(1, '\0') + "cm\nn\nq\1]";
  for (int i = 0; i < 1'000'000; ++i) pickle += std::string("h\1h\0Ra", 6);
  expect_says(message_of(pickle + "."), {"does not end with one value"});
}

TEST(Pickle, NothingIsExecuted) {
  const Folder folder;
  const std::string victim = folder / "victim";
  const std::string attack = "cos\nsystem\n" + text("touch " + victim) + "\x85R";
  EXPECT_EQ(read(Zip{dictionary(text("w") + kTensor + text("attack") + attack)}.write(folder))
                .tensors.size(),
            2u);
  EXPECT_FALSE(std::filesystem::exists(victim));
}

TEST(Pickle, OpcodesThatAreNotRead) {
  expect_says(message_of("\x80\2(dI1\n."), {"opcode 0x64", "(byte 4)"});  // protocol 0
  expect_says(message_of("\x80\1}."), {"protocol 1; 2 to 5 are read"});
  expect_says(message_of("\x80\6}."), {"protocol 6"});
}

TEST(Pickle, OpcodesThatTakeWhatIsNotThere) {
  for (const std::string pickle : {"t.",   "u.",    "e.",     "a.",    "s.",   "\x85.", "R.",
                                   "Q.",   "b.",    "N(b.",   "q\1.",  "h\1.", "Nq\5.", "NN\x93.",
                                   "NNR.", "N)Na.", "N(NNu.", "}(Nu.", "NN.",  "(N.",   "."}) {
    expect_says(message_of("\x80\2" + pickle), {"its pickle"});
  }
}

TEST(Pickle, TextsThatReachBeyondTheEnd) {
  for (const std::string pickle : {"X\xff\xff\xff\xff"
                                   "a",
                                   "\x8d\xff\xff\xff\xff\xff\xff\xff\xff"
                                   "a",
                                   "B\xff\xff\xff\x7f"
                                   "a",
                                   "\x8b\xff\xff\xff\xff"
                                   "a",
                                   "cos", "cos\nsystem", "G\1", "J\1", "", "\x95\1"}) {
    expect_says(message_of("\x80\2" + pickle), {"cut short"});
  }
}

TEST(Pickle, NoDictionary) {
  expect_says(message_of("\x80\2" + kTensor + "."),
              {"no dictionary", "torch.save(model.state_dict(), FILE)"});
  expect_says(message_of("\x80\2"
                         "cmy.models\nNet\n)\x81}b."),
              {"an object of my.models.Net", "state_dict()"});
  expect_says(message_of("\x80\2N."), {"is no tensor"});
}

TEST(StateDict, MustBeFoundWithoutDoubt) {
  const std::string state = "}" + text("w") + kTensor + "s";
  const std::string both = dictionary(text("model") + state + text("ema") + state);
  expect_says(message_of(both), {"more than one state_dict", "'model', 'ema'"});
  expect_says(message_of({both}, "modle"), {"no key 'modle'", "'model', 'ema'"});
  expect_says(message_of({dictionary(text("epoch") + "K\3")}, "epoch"),
              {"no dictionary", "'epoch'"});
  expect_says(message_of(dictionary(text("epoch") + "K\3")), {"no state_dict", "'epoch'"});
  const Folder folder;
  EXPECT_EQ(read(Zip{both}.write(folder), "ema").tensors.size(), 1u);
  // A tensor beside it makes no state_dict of the outer one.
  EXPECT_EQ(read(Zip{dictionary(text("best") + kTensor + text("model") + state)}.write(folder))
                .tensors[0]
                .name,
            "w");
  EXPECT_TRUE(read(Zip{"\x80\2}."}.write(folder)).tensors.empty());  // a model without parameters
}

TEST(StateDict, OneDictionaryUnderManyKeysIsLookedAtOnce) {
  std::string entries = "}(";
  for (int i = 0; i < 30'000; ++i) entries += text("w" + std::to_string(i)) + kTensor;
  const std::string kept("q\0", 2), again("h\0", 2);
  std::string pickle = "\x80\2}(" + text("first") + entries + "u" + kept;
  for (int i = 0; i < 100'000; ++i) pickle += text("k" + std::to_string(i)) + again;
  const Folder folder;  // 3 x 10^9 looks would take minutes
  EXPECT_EQ(read(Zip{pickle + "u."}.write(folder)).tensors.size(), 30'000u);
}

TEST(StateDict, KeysInAMessageAreFewAndPrintable) {
  std::string items;
  for (int i = 0; i < 40; ++i) items += text("key\x1b[" + std::to_string(i)) + "N";
  expect_says(message_of(dictionary(items)), {"'key?[9' and 30 more"});
}

TEST(StateDict, NameTwiceOrNoText) {
  expect_says(message_of(dictionary(text("w") + kTensor + text("w") + kTensor)),
              {"the name w twice"});
  expect_says(message_of({dictionary(text("o") + "}K\1" + kTensor + "s")}, "o"),
              {"no text", "an optimizer's"});
}

/// What is said of the one tensor of a state_dict.
std::string problem_of(const std::string& tensor) {
  const Folder folder;
  return read(Zip{dictionary(text("good") + kTensor + text("w") + tensor)}.write(folder))
      .tensors.at(1)
      .problem;
}

TEST(StateDict, TensorsThatReachBeyondTheirStorage) {
  const std::string huge = std::string("\x8a\x08\xff\xff\xff\xff\xff\xff\xff", 9) + "\x7f",
                    half = std::string("\x8a\x08\0\0\0\0\0\0\0\x40", 10);
  for (const MadeTensor& tensor : std::initializer_list<MadeTensor>{
           {.offset = "K\1"},
           {.offset = huge},
           {.sizes = "K\2K\3"},
           {.strides = "K\4K\1"},
           {.sizes = huge + huge},
           {.sizes = half + "K\4", .strides = std::string("K\0K\0", 4)},
           {.sizes = "K\2K\2", .strides = huge + huge},
           {.sizes = half + half, .strides = half + half},
           {.storage = "DoubleStorage"},
           {.sizes = "K\2"},                   // as many sizes as strides
           {.sizes = "J\xff\xff\xff\xffK\2"},  // negative
           {.strides = "J\xff\xff\xff\xffK\1"},
           {.sizes = std::string("K\0", 2) + huge + huge, .strides = "K\1K\1K\1"}}) {
    expect_says(problem_of(tensor.pickled()), {"reaches beyond its storage"});
  }
  std::string ones;
  for (int i = 0; i < 65; ++i) ones += "K\1";
  EXPECT_EQ(problem_of(MadeTensor{.sizes = ones, .strides = ones}.pickled()), "is damaged");
  EXPECT_EQ(problem_of(MadeTensor{.offset = "J\xff\xff\xff\xff"}.pickled()), "is damaged");
  EXPECT_EQ(problem_of(MadeTensor{.sizes = "NN"}.pickled()), "is damaged");
  EXPECT_EQ(problem_of("ctorch._utils\n_rebuild_tensor_v2\n)R"), "is damaged");
  EXPECT_EQ(problem_of(MadeTensor{.key = std::string(200, 'k')}.pickled()).find("has no"), 0u);
  const std::string negated = "}" + text("neg") + "\x88s";
  EXPECT_EQ(problem_of(MadeTensor{.flags = negated}.pickled()), "");
  EXPECT_EQ(problem_of(MadeTensor{.storage = "BoolStorage", .flags = negated}.pickled()),
            "is damaged");
  std::string flags = "}(";  // shared by any number of tensors, they would be looked at again
  for (int i = 0; i < 9; ++i) flags += text("flag" + std::to_string(i)) + "\x88";
  EXPECT_EQ(problem_of(MadeTensor{.flags = flags + "u"}.pickled()), "is damaged");
  expect_says(problem_of(MadeTensor{.key = "7"}.pickled()), {"data/7 is missing"});
  expect_says(problem_of(MadeTensor{.storage = "QInt8Storage"}.pickled()),
              {"torch.QInt8Storage", "not read"});
  EXPECT_EQ(problem_of(MadeTensor{.sizes = std::string("K\0K\2", 4)}.pickled()), "");
}

TEST(StateDict, WhatIsNoTensor) {
  EXPECT_EQ(problem_of("K\3"), "is no tensor");
  expect_says(problem_of("ctorch._utils\n_rebuild_sparse_tensor\n)R"), {"sparse", "to_dense()"});
  expect_says(problem_of("cmine\nThing\n)\x81"), {"an object of mine.Thing"});
  EXPECT_EQ(problem_of("N)R"), "is an object of an unknown kind");
  EXPECT_EQ(problem_of("ctorch._utils\n_rebuild_parameter\n)R"),
            "is an object of torch._utils._rebuild_parameter");
}

// ---- Safetensors that are wrong ----

std::string safetensors(const std::string& header, const std::string& data = std::string(16, 'f')) {
  std::string bytes;
  append_number(&bytes, std::uint64_t{header.size()});
  return bytes + header + data;
}

std::string message_of_header(const std::string& header) {
  const Folder folder;
  const std::string path = folder.write("made.safetensors", safetensors(header));
  return refusal(kInvalid, [&] { read(path); });
}

/// An entry of so many floats from that byte on.
std::string floats(int count, int begin) {
  return fmt::format(R"({{"dtype":"F32","shape":[{}],"data_offsets":[{},{}]}})", count, begin,
                     begin + 4 * count);
}

TEST(Safetensors, HeadersThatAreWrong) {
  const Folder folder;
  EXPECT_EQ(
      read(folder.write(
               "good", safetensors(R"({"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}})")))
          .tensors.size(),
      1u);
  for (const char* entry :
       {R"(5)", R"({})", R"({"dtype":7,"shape":[4],"data_offsets":[0,16]})",
        R"({"dtype":"F32","shape":[3],"data_offsets":[0,16]})",
        R"({"dtype":"F32","shape":[-4],"data_offsets":[0,16]})",
        R"({"dtype":"F32","shape":[4.0],"data_offsets":[0,16]})",
        R"({"dtype":"F32","shape":[4],"data_offsets":[0,17]})",
        R"({"dtype":"F32","shape":[4],"data_offsets":[16,0]})",
        R"({"dtype":"F32","shape":[4],"data_offsets":[0]})",
        R"({"dtype":"F32","shape":[4],"data_offsets":[0,18446744073709551615]})",
        R"({"dtype":"F32","shape":[4611686018427387905,4],"data_offsets":[0,16]})",
        R"({"dtype":"F32","shape":[0,4611686018427387905,4],"data_offsets":[0,0]})",
        R"({"dtype":"F32","shape":[18446744073709551615,4],"data_offsets":[0,16]})"}) {
    expect_says(message_of_header(fmt::format(R"({{"w":{}}})", entry)),
                {"says of w what no tensor is"});
  }
  const std::string whole = floats(4, 0);
  expect_says(message_of_header(fmt::format(R"({{"w":{}}})", floats(2, 8))), {"gaps"});
  expect_says(message_of_header(fmt::format(R"({{"w":{}}})", floats(2, 0))), {"length"});
  expect_says(message_of_header(fmt::format(R"({{"v":{},"w":{}}})", whole, floats(2, 8))),
              {"overlap"});
  expect_says(message_of_header(fmt::format(R"({{"w":{0},"w":{0}}})", whole)), {"w twice"});
  expect_says(
      message_of_header(R"({"w":{"dtype":"F32","dtype":"F32","shape":[4],"data_offsets":[0,16]}})"),
      {"dtype twice"});
  expect_says(message_of_header("{\"w\":" + std::string(100'000, '[')), {"nested too deep"});
  expect_says(message_of_header("{\"w"), {"no JSON"});
}

TEST(Safetensors, ElementsOfAnotherKind) {
  const Folder folder;
  const State state = read(folder.write(
      "f4", safetensors(R"({"w":{"dtype":"F4","shape":[32],"data_offsets":[0,16]}})")));
  expect_says(state.tensors.at(0).problem, {"F4", "not read"});
}

TEST(Safetensors, MetadataOfLongTextsIsLeftOut) {
  const Folder folder;
  const std::string most(4096, 'x'), more(4097, 'y');
  const State state = read(folder.write(
      "meta", safetensors(fmt::format(R"({{"__metadata__":{{"a":"{}","b":"{}","{}":"c"}}}})", most,
                                      more, more),
                          "")));
  EXPECT_EQ(state.values, (std::map<std::string, Value>{{"a", most}}));
}

TEST(Safetensors, LengthOfTheHeader) {
  const Folder folder;
  std::string bytes = safetensors("{}", "");
  EXPECT_TRUE(read(folder.write("empty", bytes)).tensors.empty());
  for (const std::uint64_t length :
       {std::uint64_t{3}, std::uint64_t{1} << 40, ~std::uint64_t{0}, ~std::uint64_t{7}}) {
    std::memcpy(bytes.data(), &length, sizeof(length));
    expect_says(refusal(kInvalid, [&] { read(folder.write("long", bytes)); }),
                {"header has", "are read"});
  }
}

TEST(Safetensors, HasNoKeys) {
  expect_says(refusal(kInvalid, [] { read(golden("package.safetensors"), "model"); }),
              {"no key 'model'", "give none"});
}

// ---- Files ----

TEST(Files, OfNoKnownFormat) {
  const Folder folder;
  for (const std::string content : {"", "x", "<html>404</html>, and more", "\x80\2}."}) {
    expect_says(refusal(kInvalid, [&] { read(folder.write("other", content)); }),
                {"neither a zip", "nor a safetensors"});
  }
}

TEST(Files, ThatCannotBeOpened) {
  const Folder folder;
  expect_says(refusal(ErrorCode::kSystem, [&] { read(folder / "absent"); }), {"No such file"});
  expect_says(refusal(ErrorCode::kSystem, [&] { read(folder / ""); }), {"is no file"});
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect_says(refusal(ErrorCode::kSystem, [&] { read(folder / "pipe"); }), {"a pipe"});
}

std::vector<TensorToStore> two_names(std::span<const std::byte> bytes) {
  return {{"a", DType::f32, {2, 2}, bytes}, {"b", DType::f32, {4}, bytes}};
}

TEST(Files, WhatIsWrittenIsRead) {
  const Folder folder;
  const std::vector<float> numbers = {1, 2, 3, 4};
  for (const std::string name : {"net.pt", "net.safetensors"}) {
    write_state(folder / name, two_names(std::as_bytes(std::span(numbers))));
    const State state = read(folder / name);
    ASSERT_EQ(state.tensors.size(), 2u);
    for (const StoredTensor& tensor : state.tensors)
      EXPECT_EQ(elements<float>(folder / name, tensor), numbers);
    EXPECT_EQ(find(state, "a").strides, (Sizes{2, 1}));
    const bool is_shared = find(state, "a").elements.at == find(state, "b").elements.at;
    EXPECT_EQ(is_shared, name == "net.pt");
    EXPECT_EQ(find(state, "b").elements.at % (name == "net.pt" ? 64 : 8), 0u);
  }
  EXPECT_EQ(folder.listed().find(".part"), std::string::npos);
}

TEST(Files, NamesAndElementsThatCannotBeWritten) {
  const Folder folder;
  const std::vector<std::byte> bytes(16);
  const auto write = [&](const std::string& file, const std::string& name, DType dtype) {
    const TensorToStore tensor{name, dtype, {1}, std::span(bytes).first(size_of(dtype))};
    write_state(folder / file, {&tensor, 1});
  };
  expect_says(refusal(kInvalid, [&] { write("a.pt", "w\xff", DType::f32); }), {"no UTF-8"});
  expect_says(refusal(kInvalid, [&] { write("a.safetensors", "__metadata__", DType::f32); }),
              {"to itself"});
  expect_says(
      refusal(ErrorCode::kUnsupported, [&] { write("a.safetensors", "w", DType::complex128); }),
      {"complex128", ".pt does"});
  EXPECT_EQ(folder.listed(), "");
}

TEST(Files, WhatWasThereStaysIfWritingFails) {
  const Folder folder;
  folder.write("old.pt", "old");
  {
    Draft draft(folder / "old.pt");
    draft.write("new");
    EXPECT_EQ(bytes_of(folder / "old.pt"), "old");
  }
  EXPECT_EQ(folder.listed(), "old.pt ");
  expect_says(refusal(ErrorCode::kSystem, [&] { write_state(folder / "absent/net.pt", {}); }),
              {"No such file"});
  expect_says(refusal(ErrorCode::kSystem, [&] { Draft("/dev/full/net.pt"); }),
              {"cannot be written"});
}

/// Files of this process end at so many bytes while it lives, as with ulimit -f.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t byte_count) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{byte_count, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

TEST(Files, ALimitOfTheirSizeEndsNoProcess) {
  const Folder folder;
  folder.write("net.pt", "old");
  const std::vector<std::byte> bytes(1 << 16);
  const TensorToStore tensor{"w", DType::u8, {1 << 16}, bytes};
  {
    const FileSizeLimit limit(4096);
    expect_says(refusal(ErrorCode::kSystem,
                        [&] {
                          write_state(folder / "net.pt", {&tensor, 1});
                        }),
                {"cannot be written: File too large"});
  }
  sigset_t pending;
  ::sigpending(&pending);
  EXPECT_EQ(::sigismember(&pending, SIGXFSZ), 0);
  EXPECT_EQ(bytes_of(folder / "net.pt"), "old");
  EXPECT_EQ(folder.listed(), "net.pt ");
}

TEST(Files, ALinkLeadsToTheFileThatIsReplacedAndItsModeStays) {
  namespace fs = std::filesystem;
  const Folder folder;
  fs::create_directory(folder / "runs");
  folder.write("runs/7.pt", "old");
  ASSERT_EQ(::chmod((folder / "runs/7.pt").c_str(), 0640), 0);
  fs::create_symlink("runs/7.pt", folder / "last.pt");
  fs::create_symlink("last.pt", folder / "link.pt");
  write_state(folder / "link.pt", {});
  EXPECT_TRUE(fs::is_symlink(folder / "link.pt") && fs::is_symlink(folder / "last.pt"));
  EXPECT_TRUE(read(folder / "runs/7.pt").tensors.empty());
  EXPECT_EQ(fs::status(folder / "runs/7.pt").permissions(), fs::perms(0640));
  fs::create_symlink("runs/8.pt", folder / "next.pt");  // to a file that is not there yet
  write_state(folder / "next.pt", {});
  EXPECT_TRUE(fs::is_regular_file(folder / "runs/8.pt"));
}

TEST(Files, WhatIsNoFileIsNotReplaced) {
  const Folder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  std::filesystem::create_symlink("/dev/null", folder / "nothing");
  std::filesystem::create_directory(folder / "folder");
  for (const std::string name : {"pipe", "nothing", "folder"})
    expect_says(refusal(kInvalid, [&] { write_state(folder / name, {}); }), {"is no file"});
  EXPECT_TRUE(std::filesystem::is_fifo(folder / "pipe"));
  EXPECT_EQ(folder.listed().find(".part"), std::string::npos);
}

TEST(Files, OneThatSeveralWriteAtOnceIsWhole) {
  const Folder folder;
  Draft first(folder / "net.pt"), second(folder / "net.pt");
  first.write("first");
  second.write("2nd");
  first.complete();
  EXPECT_EQ(bytes_of(folder / "net.pt"), "first");
  second.complete();
  EXPECT_EQ(bytes_of(folder / "net.pt"), "2nd");
  EXPECT_EQ(folder.listed(), "net.pt ");
}

}  // namespace
}  // namespace tutti::checkpoint
