// Which job a process of MPICH's launcher belongs to: here the launcher is this test.
#include "rendezvous/pmi.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "children.h"
#include "net/unix_socket.h"
#include "ranks.h"

namespace tutti::rendezvous {
namespace {

using test::Child;

/// A connected pair, made by whoever makes this object.
struct Pair {
  net::Fd ours, theirs;
  Pair() {
    int ends[2] = {-1, -1};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) ADD_FAILURE();
    ours = net::Fd(ends[0]);
    theirs = net::Fd(ends[1]);
  }
};

Error refused(int fd) {
  const Error error = thrown_by([fd] { pmi_job(fd); });
  EXPECT_EQ(error.code(), ErrorCode::kSystem) << error.what();
  expect_text(error, "PMI_FD=" + std::to_string(fd));
  expect_text(error, "MASTER_PORT");
  return error;
}

TEST(Pmi, AllProcessesOfALauncherAreOneJob) {
  const Pair pairs[2];
  Child first([&] { return pmi_job(pairs[0].theirs.get()); });
  Child second([&] { return pmi_job(pairs[1].theirs.get()); });
  const std::string job = first.result();
  EXPECT_EQ(job.find("pid " + std::to_string(::getpid()) + " "), 0u) << job;
  EXPECT_EQ(second.result(), job);
}

TEST(Pmi, AnotherLauncherIsAnotherJob) {
  const Pair pair;
  Child other([] {
    const Pair its;
    return pmi_job(its.theirs.get());
  });
  EXPECT_NE(other.result(), pmi_job(pair.theirs.get()));
}

TEST(Pmi, WhatIsNoConnectionToTheLauncherIsRefused) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  expect_text(refused(ends[0]), "no open socket");
  ::close(ends[0]);
  ::close(ends[1]);
  expect_text(refused(ends[0]), "no open socket");
  const net::Fd network(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  refused(network.get());
}

TEST(Pmi, AStrangerAtTheOtherEndIsRefused) {
  // A child serves, and its parent, which it has not started, asks.
  const std::string address = "@tutti-pmi-test-" + std::to_string(::getpid());
  Child stranger([&] {
    const std::optional<net::Fd> listener = net::try_listen(address);
    Deadline deadline = Deadline::after(std::chrono::seconds(10));
    net::poll_readable(listener->get(), deadline);
    return std::string("seen");
  });
  Deadline deadline = Deadline::after(std::chrono::seconds(10));
  std::optional<net::Fd> connection;
  while (!(connection = net::try_connect(address, deadline))) {
    net::pause(std::chrono::milliseconds(1), deadline);
  }
  expect_text(refused(connection->get()), "has not started this process");
}

}  // namespace
}  // namespace tutti::rendezvous
