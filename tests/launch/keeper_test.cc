// What is said of a keeper that cannot be.
#include "launch/keeper.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <span>

#include "launch/messages.h"
#include "net/frame.h"

namespace tutti::launch {
namespace {

/// In a process of a user who has no other and may have two: itself and the guard.
[[noreturn]] void expect_no_keeper() {
  const auto user = static_cast<uid_t>(1'000'000 + ::getpid());
  const rlimit two{2, 2};
  if (::setgid(user) != 0 || ::setuid(user) != 0) ::_exit(77);
  if (::setrlimit(RLIMIT_NPROC, &two) != 0) ::_exit(77);
  const Keeper keeper = fork_keeper({}, {});
  char packet[net::kFrameHeaderBytes + kMaxNoteBytes];
  const ssize_t got = ::recv(keeper.channel.get(), packet, sizeof packet, 0);
  ::waitpid(keeper.guard, nullptr, 0);
  if (got <= 0) ::_exit(1);
  net::FrameDecoder decoder(kMaxNoteBytes);
  decoder.feed(std::as_bytes(std::span(packet, static_cast<std::size_t>(got))));
  net::Frame frame;
  if (decoder.next(&frame) != net::FrameDecoder::Next::frame) ::_exit(2);
  const auto note = decode_note(frame.type, frame.body);
  const auto* const none = note ? std::get_if<NoKeeper>(&*note) : nullptr;
  ::_exit(none != nullptr && none->error == EAGAIN ? 0 : 3);
}

TEST(Keeper, ThatCannotBeForkedIsTold) {
  if (::getuid() != 0) GTEST_SKIP() << "only root can become another user";
  const pid_t pid = ::fork();
  if (pid == 0) expect_no_keeper();
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "no other user here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace tutti::launch
