#include "control/hosts/report.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "net/frame.h"

namespace tutti::control {

namespace {

constexpr std::uint32_t kHasLeft = 1, kHasLine = 2, kHasFailure = 4, kHasWait = 8;
constexpr std::size_t kMostText = 4096, kMostCallText = 256;
constexpr std::uint32_t kMostMeetings = 1024;
constexpr std::uint32_t kRuns = 1, kSeveralThreads = 2;     // of a wait
constexpr std::uint32_t kMakesGroup = 1, kOneSuffices = 2;  // of a part
constexpr std::uint32_t kMostParts = 64;

std::uint32_t flags_of(const Report& report) {
  return (report.has_left ? kHasLeft : 0u) | (report.line ? kHasLine : 0u) |
         (report.line && report.line->failure ? kHasFailure : 0u) | (report.wait ? kHasWait : 0u);
}

class Writer {
 public:
  explicit Writer(std::string* bytes) : out_(bytes) {}
  void ranks(const std::vector<int>& ranks) {
    out_.u32(static_cast<std::uint32_t>(ranks.size()));
    for (const int rank : ranks) out_.u32(static_cast<std::uint32_t>(rank));
  }
  void shown(const Shown& shown) {
    out_.u64(shown.seq);
    out_.u64(shown.chain);
    out_.u64(shown.count);
    out_.u64(std::bit_cast<std::uint64_t>(shown.factor));
    out_.u32(std::uint32_t{shown.op} | std::uint32_t{shown.dtype} << 8 |
             std::uint32_t{shown.reduce} << 16 | std::uint32_t{shown.site} << 24);
    out_.u32(static_cast<std::uint32_t>(shown.root_or_peer));
  }
  void call(const KnownCall& call) {
    shown(call);
    for (const std::string* text : {&call.site_text, &call.purpose_text})
      out_.bytes(std::string_view(*text).substr(0, kMostCallText));
  }
  void line(const LineFacts& line) {
    out_.u32(static_cast<std::uint32_t>(line.state));
    for (const std::uint64_t word : {line.entered, line.completed, line.queued, line.goodbye_seq,
                                     line.goodbye_chain, line.progress})
      out_.u64(word);
    out_.u32(line.waiting_in);
    out_.u32(static_cast<std::uint32_t>(line.waiting_for));
    const auto count = std::count_if(line.history.begin(), line.history.end(),
                                     [](const auto& each) { return each.has_value(); });
    out_.u32(static_cast<std::uint32_t>(count));
    for (const auto& each : line.history)
      if (each) call(*each);
    if (line.failure) failure(*line.failure);
  }
  void failure(const FailureFacts& failure) {
    out_.u32(static_cast<std::uint32_t>(failure.code));
    ranks(failure.culprits);
    out_.bytes(std::string_view(failure.text).substr(0, kMostText));
  }
  void meeting(const MeetingFacts& meeting) {
    out_.u64(meeting.group);
    out_.u64(meeting.asked_of);
    std::vector<int> members;
    for (const WorldRank rank : meeting.members) members.push_back(rank.value);
    ranks(members);
    out_.u64(meeting.looks);
    out_.bytes(std::string_view(meeting.words).substr(0, kMostCallText));
  }
  void wait(const WaitFacts& wait, Clock::time_point now) {
    out_.u32((wait.is_running ? kRuns : 0u) | (wait.has_several_threads ? kSeveralThreads : 0u));
    out_.u64(wait.version);
    out_.u64(wait.looks);
    out_.i64(wait.since.time_since_epoch().count());
    out_.i64((now - wait.since).count());
    const auto count = std::min<std::size_t>(wait.parts.size(), kMostParts);
    out_.u32(static_cast<std::uint32_t>(count));
    for (std::size_t i = 0; i < count; ++i) part(wait.parts[i]);
  }
  net::ByteWriter& out() { return out_; }

 private:
  void part(const WaitPart& part) {
    out_.u64(part.group);
    out_.u32((part.makes_group ? kMakesGroup : 0u) | (part.one_suffices ? kOneSuffices : 0u));
    shown(part.what);
    std::vector<int> awaited;
    for (const WorldRank rank : part.awaited) awaited.push_back(rank.value);
    ranks(awaited);
    out_.bytes(std::string_view(part.words).substr(0, kMostText));
  }

  net::ByteWriter out_;
};

class Reader {
 public:
  Reader(std::string_view bytes, int world_size) : in_(bytes), world_size_(world_size) {}
  net::ByteReader& in() { return in_; }
  bool is_good() const { return good_ && in_.ok(); }
  void need(bool holds) { good_ = good_ && holds; }

  WorldRank rank() {
    const std::uint32_t rank = in_.u32();
    need(rank < static_cast<std::uint32_t>(world_size_));
    return WorldRank(is_good() ? static_cast<int>(rank) : 0);
  }
  std::vector<int> ranks() {
    std::vector<int> found;
    const std::uint32_t count = in_.u32();
    need(count <= static_cast<std::uint32_t>(world_size_));
    for (std::uint32_t i = 0; is_good() && i < count; ++i) found.push_back(rank().value);
    return found;
  }
  Shown shown() {
    Shown shown;
    shown.seq = in_.u64();
    shown.chain = in_.u64();
    shown.count = in_.u64();
    shown.factor = std::bit_cast<double>(in_.u64());
    const std::uint32_t packed = in_.u32();
    shown.op = static_cast<std::uint8_t>(packed);
    shown.dtype = static_cast<std::uint8_t>(packed >> 8);
    shown.reduce = static_cast<std::uint8_t>(packed >> 16);
    shown.site = static_cast<std::uint8_t>(packed >> 24);
    shown.root_or_peer = static_cast<std::int32_t>(in_.u32());
    need(shown.seq != 0);
    return shown;
  }
  KnownCall call() {
    KnownCall call = shown();
    for (std::string* text : {&call.site_text, &call.purpose_text})
      *text = in_.bytes(kMostCallText);
    return call;
  }
  LineFacts line() {
    LineFacts line;
    const std::uint32_t state = in_.u32();
    need(state <= static_cast<std::uint32_t>(LineState::unmade));
    if (is_good()) line.state = static_cast<LineState>(state);
    for (std::uint64_t* word : {&line.entered, &line.completed, &line.queued, &line.goodbye_seq,
                                &line.goodbye_chain, &line.progress})
      *word = in_.u64();
    line.waiting_in = in_.u32();
    line.waiting_for = static_cast<std::int32_t>(in_.u32());
    need(line.waiting_for >= -1 && line.waiting_for < world_size_);
    const std::uint32_t count = in_.u32();
    need(count <= kHistory);
    for (std::uint32_t i = 0; is_good() && i < count; ++i) {
      const KnownCall each = call();
      line.history[each.seq % kHistory] = each;
    }
    return line;
  }
  FailureFacts failure() {
    FailureFacts failure;
    const std::uint32_t code = in_.u32();
    need(code < kErrorCodeCount);
    if (is_good()) failure.code = static_cast<ErrorCode>(code);
    failure.culprits = ranks();
    failure.text = in_.bytes(kMostText);
    return failure;
  }
  MeetingFacts meeting() {
    MeetingFacts meeting;
    meeting.group = in_.u64();
    meeting.asked_of = in_.u64();
    meeting.members = world_ranks(ranks());
    meeting.looks = in_.u64();
    meeting.words = in_.bytes(kMostCallText);
    return meeting;
  }
  WaitFacts wait(Clock::duration* age) {
    WaitFacts wait;
    const std::uint32_t flags = in_.u32();
    need(flags <= (kRuns | kSeveralThreads));
    wait.is_running = (flags & kRuns) != 0;
    wait.has_several_threads = (flags & kSeveralThreads) != 0;
    wait.version = in_.u64();
    wait.looks = in_.u64();
    wait.since = Clock::time_point(Clock::duration(in_.i64()));
    need(wait.since >= Clock::time_point{});
    *age = std::max(Clock::duration(in_.i64()), Clock::duration::zero());
    const std::uint32_t count = in_.u32();
    need(count <= kMostParts && (count > 0 || wait.version == 0));
    for (std::uint32_t i = 0; is_good() && i < count; ++i) wait.parts.push_back(part());
    return wait;
  }

 private:
  WaitPart part() {
    WaitPart part;
    part.group = in_.u64();
    const std::uint32_t kind = in_.u32();
    need(kind <= (kMakesGroup | kOneSuffices));
    part.makes_group = (kind & kMakesGroup) != 0;
    part.one_suffices = (kind & kOneSuffices) != 0;
    part.what = shown();
    part.awaited = world_ranks(ranks());
    need(!part.awaited.empty() && std::is_sorted(part.awaited.begin(), part.awaited.end()));
    part.words = in_.bytes(kMostText);
    return part;
  }

  net::ByteReader in_;
  const int world_size_;
  bool good_ = true;
};

}  // namespace

std::string encode(const Report& report, Clock::time_point now) {
  std::string bytes;
  Writer writer(&bytes);
  net::ByteWriter& out = writer.out();
  out.u32(static_cast<std::uint32_t>(report.rank.value));
  out.u64(report.stamp);
  out.u32(flags_of(report));
  out.u64(report.group);
  out.i64(report.asked);
  if (report.line) writer.line(*report.line);
  const auto count = std::min<std::size_t>(report.meetings.size(), kMostMeetings);
  out.u32(static_cast<std::uint32_t>(count));
  for (std::size_t i = 0; i < count; ++i) writer.meeting(report.meetings[i]);
  if (report.wait) writer.wait(*report.wait, now);
  return bytes;
}

std::string encode(const Question& question) {
  std::string bytes;
  net::ByteWriter out(&bytes);
  out.u32(static_cast<std::uint32_t>(question.rank.value));
  out.u64(question.group);
  out.i64(question.asked);
  return bytes;
}

std::optional<Report> decode_report(std::string_view bytes, int world_size) {
  Reader reader(bytes, world_size);
  Report report;
  report.rank = reader.rank();
  report.stamp = reader.in().u64();
  const std::uint32_t flags = reader.in().u32();
  report.has_left = (flags & kHasLeft) != 0;
  report.group = reader.in().u64();
  report.asked = reader.in().i64();
  const bool fails = (flags & kHasFailure) != 0, has_line = (flags & kHasLine) != 0;
  const bool has_wait = (flags & kHasWait) != 0;
  reader.need(flags <= (kHasLeft | kHasLine | kHasFailure | kHasWait) && (has_line || !fails));
  reader.need(report.group != 0 ? !has_wait : !has_line);
  if (reader.is_good() && has_line) report.line = reader.line();
  if (reader.is_good() && fails) report.line->failure = reader.failure();
  const std::uint32_t meetings = reader.in().u32();
  reader.need(meetings <= kMostMeetings);
  for (std::uint32_t i = 0; reader.is_good() && i < meetings; ++i)
    report.meetings.push_back(reader.meeting());
  if (reader.is_good() && has_wait) report.wait = reader.wait(&report.wait_age);
  if (!reader.is_good() || !reader.in().at_end()) return std::nullopt;
  return report;
}

std::optional<Question> decode_question(std::string_view bytes, int world_size) {
  Reader reader(bytes, world_size);
  Question question;
  question.rank = reader.rank();
  question.group = reader.in().u64();
  question.asked = reader.in().i64();
  if (!reader.is_good() || !reader.in().at_end()) return std::nullopt;
  return question;
}

}  // namespace tutti::control
