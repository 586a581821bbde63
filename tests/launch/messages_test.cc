// Messages of job, host and keeper: what is encoded is decoded, and nothing else is.
#include "launch/messages.h"

#include <gtest/gtest.h>

#include <csignal>
#include <span>
#include <string>
#include <vector>

#include "net/frame.h"

namespace tutti::launch {
namespace {

net::Frame frame_of(const std::string& bytes, std::size_t max_body) {
  net::FrameDecoder decoder(max_body);
  decoder.feed(std::as_bytes(std::span(bytes)));
  net::Frame frame;
  EXPECT_EQ(decoder.next(&frame), net::FrameDecoder::Next::frame);
  EXPECT_EQ(decoder.buffered(), 0u);
  return frame;
}

Prepare a_prepare() {
  return {.command = {"./train", "--epochs", "3"},
          .environment = {{"HOME", "/h"}, {"EMPTY", ""}},
          .ranks = {2, 3},
          .prefix_columns = {4, 4},
          .world_size = 4,
          .host_index = 1,
          .host_count = 2,
          .folder = "/data",
          .master_address = "10.0.0.1",
          .master_port = 29500,
          .run_id = "job-7",
          .role = "trainer",
          .restart_count = 1,
          .max_restarts = 3,
          .gpus_per_rank = 2};
}

agent::RankExit an_exit() {
  return {.rank = 3,
          .wait_status = SIGKILL,
          .ours = true,
          .culprits = {0, 2},
          .disagreement = "about the count",
          .failure = "rank 0 was lost",
          .doing = "is in all_reduce #4",
          .error = "ValueError: no data",
          .untold = agent::UntoldFailure{.code = ErrorCode::kPeerLost,
                                         .culprits = {0},
                                         .text = "rank 0 was lost",
                                         .is_told = true}};
}

const std::vector<Order> kOrders = {
    a_prepare(), Start{}, Signal{-1, SIGTERM}, Hold{true}, CloseStream{Stream::err, {0, 3}}, End{}};
const std::vector<Note> kNotes = {KeeperIs{7},         Started{1, 8}, ExecFailed{1, ENOENT, false},
                                  Stopped{1, SIGTSTP}, Continued{1},  Exited{1, 256},
                                  NoKeeper{EAGAIN}};
const std::vector<Report> kReports = {KeeperIs{7},
                                      Started{1, 8},
                                      Stopped{1, SIGTSTP},
                                      Continued{1},
                                      Prepared{"host-a", "OMP_NUM_THREADS=1", {"rank 0 -> host a"}},
                                      Refused{ErrorCode::kInvalidArgument, "no such program"},
                                      Joined{1, true},
                                      Met{1},
                                      Printed{1, Stream::err, std::string("a\0b\n", 4)},
                                      PrintedAll{1, Stream::out},
                                      Complaint{1, "cannot execute"},
                                      Ended{an_exit()},
                                      KeeperDied{7, 6},
                                      Done{9}};

/// Says the same again; cut short or lengthened it is nothing.
template <class Messages, class Decode>
void expect_whole_or_nothing(const std::vector<Messages>& all, const Decode& decode) {
  ASSERT_EQ(all.size(), std::variant_size_v<Messages>) << "one of each";
  for (std::size_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(all[i].index(), i);
    const std::string bytes = encode(all[i]);
    const net::Frame frame = frame_of(bytes, kMaxOrderBytes);
    const auto decoded = decode(frame.type, frame.body);
    ASSERT_TRUE(decoded.has_value()) << i;
    EXPECT_EQ(encode(*decoded), bytes) << i;
    for (std::size_t left = 0; left < frame.body.size(); ++left) {
      EXPECT_FALSE(decode(frame.type, frame.body.substr(0, left))) << i << " cut to " << left;
    }
    EXPECT_FALSE(decode(frame.type, frame.body + '\0')) << i;
  }
  EXPECT_FALSE(decode(0, ""));
  EXPECT_FALSE(decode(static_cast<std::uint32_t>(all.size()) + 1, ""));
}

TEST(Messages, OrdersComeWholeOrNotAtAll) { expect_whole_or_nothing(kOrders, decode_order); }
TEST(Messages, NotesComeWholeOrNotAtAll) { expect_whole_or_nothing(kNotes, decode_note); }
TEST(Messages, ReportsComeWholeOrNotAtAll) { expect_whole_or_nothing(kReports, decode_report); }

TEST(Messages, FieldsKeepTheirPlaces) {
  const net::Frame frame = frame_of(encode(Report(Ended{an_exit()})), kMaxReportBytes);
  const agent::RankExit exit = std::get<Ended>(decode_report(frame.type, frame.body).value()).exit;
  EXPECT_EQ(exit.rank, 3);
  EXPECT_EQ(exit.wait_status, SIGKILL);
  EXPECT_TRUE(exit.ours);
  EXPECT_EQ(exit.culprits, (std::vector<int>{0, 2}));
  EXPECT_EQ(exit.disagreement, "about the count");
  EXPECT_EQ(exit.failure, "rank 0 was lost");
  EXPECT_EQ(exit.doing, "is in all_reduce #4");
  ASSERT_TRUE(exit.untold.has_value());
  EXPECT_EQ(exit.untold->code, ErrorCode::kPeerLost);
  EXPECT_TRUE(exit.untold->is_told);

  const net::Frame order = frame_of(encode(Order(a_prepare())), kMaxOrderBytes);
  const auto prepare = std::get<Prepare>(decode_order(order.type, order.body).value());
  EXPECT_EQ(prepare.environment, a_prepare().environment);
  EXPECT_EQ(prepare.ranks, (std::vector<int>{2, 3}));
  EXPECT_EQ(prepare.master_port, 29500);
  EXPECT_EQ(prepare.gpus_per_rank, 2);
}

TEST(Messages, AnOrderThatCannotBeMeantIsNone) {
  const auto is_order = [](const Prepare& prepare) {
    const net::Frame frame = frame_of(encode(Order(prepare)), kMaxOrderBytes);
    return decode_order(frame.type, frame.body).has_value();
  };
  const auto changed = [](auto change) {
    Prepare prepare = a_prepare();
    change(prepare);
    return prepare;
  };
  EXPECT_TRUE(is_order(a_prepare()));
  EXPECT_FALSE(is_order(changed([](Prepare& p) { p.command.clear(); })));
  EXPECT_FALSE(is_order(changed([](Prepare& p) { p.ranks.clear(); })));
  EXPECT_FALSE(is_order(changed([](Prepare& p) { p.ranks = {3, 2}; })));
  EXPECT_FALSE(is_order(changed([](Prepare& p) { p.ranks = {-1, 2}; })));
  EXPECT_FALSE(is_order(changed([](Prepare& p) { p.world_size = 3; })));
  EXPECT_FALSE(is_order(changed([](Prepare& p) { p.prefix_columns = {4}; })));
  EXPECT_FALSE(is_order(changed([](Prepare& p) { p.host_index = 2; })));
}

TEST(Messages, ACountThatIsNotThereTakesNoMemory) {
  std::string body(8, '\xff');  // four thousand million words, and none follows
  EXPECT_FALSE(decode_order(1, body));
}

TEST(Messages, ANoteFitsIntoOnePacket) {
  for (const Note& note : kNotes) {
    EXPECT_LE(encode(note).size(), net::kFrameHeaderBytes + kMaxNoteBytes);
  }
}

}  // namespace
}  // namespace tutti::launch
