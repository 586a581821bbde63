// What one rank alone can see to be wrong: each rule fires, and right calls pass.
#include "group/check.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <vector>

namespace tutti::group {
namespace {

constexpr int kRank = 1, kRanks = 3;

Request make(Op op, ConstBuffer input, Buffer output, std::size_t count, int root = -1) {
  Request request;
  request.op = op;
  request.input = input;
  request.output = output;
  request.count = count;
  request.dtype = DType::f32;
  (is_message(op) ? request.message.peer : request.root) = root;
  return request;
}

void expect_fine(const Request& request, bool blocking = true) {
  const auto wrong = objection(request, kRank, kRanks, blocking);
  EXPECT_FALSE(wrong.has_value()) << name_of(request.op) << ": " << wrong.value_or("");
}

void expect_objection(const Request& request, const std::string& part, bool blocking = true) {
  const auto wrong = objection(request, kRank, kRanks, blocking);
  ASSERT_TRUE(wrong.has_value()) << name_of(request.op) << ", expected: " << part;
  EXPECT_NE(wrong->find(part), std::string::npos) << *wrong;
}

class CheckTest : public testing::Test {
 protected:
  std::array<float, 6> a_ = {};
  std::array<float, 6> b_ = {};
  Buffer whole_{a_};  // 6 elements: 2 for each of 3 ranks
  Buffer other_{b_};
  Buffer part_{a_.data() + kRank * 2, 2, DType::f32};  // the own part of whole_
  Buffer small_{b_.data(), 2, DType::f32};
};

TEST_F(CheckTest, MessagesUnderWayTogetherShareNoMemoryThatIsWritten) {
  const Buffer head(a_.data(), 4, DType::f32), tail(a_.data() + 3, 3, DType::f32);
  const auto send = [](ConstBuffer data, int to = 0) { return make(Op::send, data, {}, 1, to); };
  const auto recv = [](Buffer data, int from = 0) { return make(Op::recv, {}, data, 1, from); };
  const auto wrong = [](std::initializer_list<Request> list) {
    return overlap_objection(std::span(list.begin(), list.size())).value_or("");
  };
  EXPECT_EQ(wrong({send(head), send(tail), send(whole_)}), "") << "nothing is written";
  EXPECT_EQ(wrong({send(part_), recv(small_), recv(tail, kNoRank)}), "");
  EXPECT_EQ(wrong({recv(Buffer(a_.data(), 3, DType::f32)), recv(tail), send(other_)}), "");
  const std::string text =
      "messages 0 and 1 of those posted together share memory, and one of them is received into "
      "it: use two buffers that do not overlap";
  EXPECT_EQ(wrong({send(head), recv(tail)}), text);
  EXPECT_EQ(wrong({recv(whole_), send(part_), send(other_)}), text);
  EXPECT_EQ(wrong({recv(head), recv(head)}), text);
}

TEST_F(CheckTest, RightCallsPass) {
  expect_fine(make(Op::broadcast, whole_, whole_, 6, 2));
  expect_fine(make(Op::all_reduce, whole_, whole_, 6));
  expect_fine(make(Op::all_reduce, whole_, other_, 6));
  expect_fine(make(Op::reduce, whole_, other_, 6, kRank));
  expect_fine(make(Op::reduce, whole_, {}, 6, 0));
  expect_fine(make(Op::gather, small_, whole_, 2, kRank));
  expect_fine(make(Op::gather, part_, whole_, 2, kRank));
  expect_fine(make(Op::gather, small_, {}, 2, 0));
  expect_fine(make(Op::all_gather, small_, whole_, 2));
  expect_fine(make(Op::all_gather, part_, whole_, 2));
  expect_fine(make(Op::scatter, whole_, small_, 2, kRank));
  expect_fine(make(Op::scatter, {}, small_, 2, 0));
  expect_fine(make(Op::reduce_scatter, whole_, small_, 2));
  expect_fine(make(Op::reduce_scatter, whole_, part_, 2));
  expect_fine(make(Op::all_to_all, whole_, other_, 2));
  expect_fine(make(Op::all_to_all, whole_, whole_, 2));
  expect_fine(make(Op::scan, whole_, other_, 6));
  expect_fine(make(Op::exclusive_scan, whole_, whole_, 6));
  expect_fine(make(Op::barrier, {}, {}, 0));
  expect_fine(make(Op::send, small_, {}, 2, 0));
  expect_fine(make(Op::recv, {}, small_, 2, 2));
}

TEST_F(CheckTest, NothingToMoveIsFine) {
  const Buffer none(nullptr, 0, DType::f32);
  expect_fine(make(Op::all_reduce, none, none, 0));
  expect_fine(make(Op::all_gather, none, none, 0));
  expect_fine(make(Op::send, none, {}, 0, 0));
}

TEST_F(CheckTest, RankOutOfRangeIsNamed) {
  expect_objection(make(Op::broadcast, whole_, whole_, 6, 3), "root 3 is out of range");
  expect_objection(make(Op::reduce, whole_, whole_, 6, -1), "root -1 is out of range");
  expect_objection(make(Op::send, small_, {}, 2, 17), "peer 17 is out of range");
  expect_objection(make(Op::recv, {}, small_, 2, -2), "ranks 0 to 2");
  expect_objection(make(Op::broadcast, whole_, whole_, 6, kNoRank), "is out of range");
}

TEST_F(CheckTest, NegativeTagIsRefused) {
  Request request = make(Op::recv, {}, small_, 2, 0);
  request.message.tag = -5;
  expect_objection(request, "tag -5 is negative: tags begin at 0, and a recv names one");
  request = make(Op::send, small_, {}, 2, 0);
  request.message.tag = -1;
  expect_objection(request, "tag -1 is negative: tags begin at 0");
}

TEST_F(CheckTest, NullWithElementsIsRefused) {
  const Buffer null(nullptr, 6, DType::f32);
  expect_objection(make(Op::all_reduce, null, null, 6), "input is null, but 6 elements");
  expect_objection(make(Op::all_reduce, whole_, null, 6), "output is null");
  const Buffer one(nullptr, 1, DType::f32);
  expect_objection(make(Op::all_reduce, one, one, 1), "input is null, but 1 element is needed");
  expect_objection(make(Op::recv, {}, Buffer(nullptr, 1, DType::f32), 1, 0), "output is null");
}

TEST_F(CheckTest, CountsMustFit) {
  expect_objection(make(Op::all_reduce, whole_, small_, 6), "output has 2 elements, but 6");
  expect_objection(make(Op::all_gather, small_, other_, 3), "input has 2 elements, but 3");
  expect_objection(make(Op::all_reduce, Buffer(a_.data(), 1, DType::f32), small_, 2),
                   "input has 1 element, but 2 are needed");
  expect_objection(make(Op::all_reduce, small_, small_, 1),
                   "input has 2 elements, but 1 is needed");
  expect_objection(make(Op::gather, whole_, other_, 6, kRank), "18 are needed: 6 for each of 3");
  expect_objection(make(Op::scatter, small_, part_, 2, kRank), "input has 2 elements, but 6");
  expect_objection(make(Op::all_to_all, whole_, small_, 2), "output has 2 elements, but 6");
  expect_objection(make(Op::all_to_all, part_, small_, 0), "input has 2 elements, but 0");
}

TEST_F(CheckTest, AbsurdCountsAreRefused) {
  const std::size_t negative = static_cast<std::size_t>(-3);
  const Buffer absurd(a_.data(), negative, DType::f32);
  expect_objection(make(Op::all_reduce, absurd, absurd, negative), "which no memory holds");
  // A count whose product with the number of ranks wraps to the number of elements given.
  const std::size_t wraps = std::numeric_limits<std::size_t>::max() / 3 + 1;
  expect_objection(make(Op::all_gather, small_, Buffer(b_.data(), wraps * 3, DType::f32), wraps),
                   "input has 2 elements");
}

TEST_F(CheckTest, DTypesMustAgree) {
  std::array<double, 6> doubles = {};
  expect_objection(make(Op::all_reduce, whole_, doubles, 6),
                   "input is of f32, output of f64: they must be of one dtype");
}

TEST_F(CheckTest, OverlapIsForInPlaceForms) {
  const Buffer head(a_.data(), 4, DType::f32), tail(a_.data() + 2, 4, DType::f32);
  expect_objection(make(Op::all_reduce, head, tail, 4), "overlap, but not in place");
  const Buffer wrong_part(a_.data(), 2, DType::f32);  // part 0, but this is rank 1
  expect_objection(make(Op::all_gather, wrong_part, whole_, 2), "the own part of output");
  expect_objection(make(Op::reduce_scatter, whole_, wrong_part, 2), "the own part of input");
}

TEST_F(CheckTest, NegativeTimeoutIsRefused) {
  Request request = make(Op::barrier, {}, {}, 0);
  request.arrive = Deadline::after(std::chrono::seconds(-1));
  expect_objection(request, "the timeout is negative");
}

TEST(CheckNewGroup, RanksMustBeInRangeAndDistinct) {
  const std::vector<int> good = {2, 0}, none = {}, beyond = {0, 3}, negative = {-1}, twice = {1, 1};
  EXPECT_FALSE(objection(good, 3).has_value());
  EXPECT_EQ(objection(none, 3), "a group needs at least one rank");
  EXPECT_EQ(objection(beyond, 3), "rank 3 is out of range: the parent has ranks 0 to 2");
  EXPECT_EQ(objection(negative, 3), "rank -1 is out of range: the parent has ranks 0 to 2");
  EXPECT_EQ(objection(twice, 3), "rank 1 is given twice");
}

TEST(CheckMessage, NamesOperationNumberRankAndCallSite) {
  Request request = make(Op::all_reduce, {}, {}, 0);
  request.seq = 42;
  request.where = {"/home/somebody/train.cc", 88};
  const Error error = make_error(ErrorCode::kInvalidArgument, request, {1}, "that is wrong");
  EXPECT_STREQ(error.what(), "all_reduce #42 (rank 1) at train.cc:88: that is wrong.");
  EXPECT_STREQ(make_error(ErrorCode::kClosed, request, {1, "world/1-3"}, "that is closed").what(),
               "all_reduce #42 of group world/1-3 (rank 1) at train.cc:88: that is closed.");
  EXPECT_EQ(error.context().op, "all_reduce");
  EXPECT_EQ(error.context().seq, 42u);
  EXPECT_EQ(error.context().call_site, "train.cc:88");
}

/// One error names the same ranks whichever member it is thrown on.
TEST(CulpritsOfNewGroup, AreThoseOfTheParentIfItEndsWithIt) {
  using Ranks = std::vector<int>;
  const Ranks ranks = {2, 3, 1};
  EXPECT_EQ(culprits_of_new_group(ranks, Ranks{1}, Ranks{}), Ranks{3}) << "the parent is well";
  EXPECT_EQ(culprits_of_new_group(ranks, Ranks{1}, Ranks{1}), Ranks{3})
      << "the parent has failed as well, by another cause";
  EXPECT_EQ(culprits_of_new_group(ranks, Ranks{1}, Ranks{3, 1}), Ranks{3}) << "the same";
  EXPECT_EQ(culprits_of_new_group(ranks, Ranks{2, 0}, Ranks{0, 1, 2}), (Ranks{0, 1, 2}))
      << "its members among the culprits of the parent";
  EXPECT_EQ(culprits_of_new_group(ranks, Ranks{}, Ranks{0}), Ranks{0})
      << "none of them is a member";
  EXPECT_EQ(culprits_of_new_group(ranks, Ranks{}, Ranks{}), Ranks{});
}

}  // namespace
}  // namespace tutti::group
