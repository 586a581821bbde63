// Which secrets are taken, and what is said of those that are not.
#include "net/security.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "ranks.h"

namespace tutti::net {
namespace {

/// A file that others cannot read, gone with this object.
class SecretFile {
 public:
  explicit SecretFile(const std::string& content, mode_t mode = 0600) {
    const int fd = ::mkstemp(path_.data());
    EXPECT_EQ(::write(fd, content.data(), content.size()), static_cast<ssize_t>(content.size()));
    EXPECT_EQ(::fchmod(fd, mode), 0);
    ::close(fd);
  }
  ~SecretFile() { ::unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/tutti-secret-XXXXXX";
};

const std::string kWhat = "ranks meet at 10.0.0.1:29500 over TCP";
const std::string kSecret = "0123456789abcdef0123456789abcdef";

Security read(const std::string& content) {
  const SecretFile file(content);
  return security_of("auth", file.path(), kWhat);
}

Error refused(const std::string& path) {
  const Error error = thrown_by([&] { security_of("auth", path, kWhat); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
  EXPECT_EQ(std::string(error.what()).find(kSecret), std::string::npos) << "the secret is shown";
  return error;
}

TEST(Security, TheSameSecretIsTheSameWithAndWithoutALineEnd) {
  const Security plain = read(kSecret);
  EXPECT_EQ(plain.level, Level::auth);
  EXPECT_TRUE(is_same(plain.secret.bytes(), read(kSecret + "\n").secret.bytes()));
  EXPECT_TRUE(is_same(plain.secret.bytes(), read(kSecret + "\r\n").secret.bytes()));
  EXPECT_FALSE(is_same(plain.secret.bytes(), read(kSecret + " ").secret.bytes()));
}

TEST(Security, LowLevelsReadNoFile) {
  for (const char* level : {"none", "opportunistic"}) {
    const Security security = security_of(level, "/nonexistent", kWhat);
    EXPECT_EQ(name_of(security.level), level);
    EXPECT_TRUE(is_same(security.secret.bytes(), Key().bytes()));
  }
}

TEST(Security, WithoutASecretTheRemediesAreSaid) {
  for (const char* level : {"auth", "integrity"}) {
    const Error error = thrown_by([&] { security_of(level, "", kWhat); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    expect_text(error, kWhat + ", and TUTTI_SECURITY=" + level + " needs a secret");
    expect_text(error, "set TUTTI_SECRET_FILE to a file that holds it");
    expect_text(error, "openssl rand -hex 32");
    expect_text(error, "TUTTI_SECURITY=opportunistic");
  }
}

TEST(Security, EncryptionIsRefusedByName) {
  const Error error = thrown_by([&] { security_of("encrypt", "", kWhat); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  expect_text(error,
              "TUTTI_SECURITY=encrypt asks that it be encrypted, which this version does not");
}

TEST(Security, FilesThatOthersCanReadOrWriteAreRefused) {
  for (const mode_t mode : {0604, 0640, 0602, 0620, 0644, 0660, 0777}) {
    const SecretFile file(kSecret, mode);
    expect_text(refused(file.path()), "can be read or written by others (mode 0");
  }
  const SecretFile strict(kSecret, 0400);
  EXPECT_EQ(security_of("auth", strict.path(), kWhat).level, Level::auth);
}

TEST(Security, FilesOfAnotherUserAreRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "not root: cannot give a file away";
  const SecretFile file(kSecret);
  ASSERT_EQ(::chown(file.path().c_str(), 65534, 65534), 0);
  expect_text(refused(file.path()), "belongs to user 65534");
}

TEST(Security, WhatIsNoSecretIsNamed) {
  expect_text(refused("/nonexistent/secret"), "cannot be opened: No such file");
  expect_text(refused("/tmp/no-such-secret"),
              "the secret file /tmp/no-such-secret (TUTTI_SECRET_FILE) cannot be opened");
  for (const std::string secret :
       {"0123456789abcdef0123456789abcdef", "/ab+/cd0123456789abcdef="}) {
    const Error error = refused(secret);
    expect_text(error,
                "the secret file (not shown: if this is the secret itself, put it into a file)");
    EXPECT_EQ(std::string(error.what()).find(secret), std::string::npos);
  }
  expect_text(refused("/tmp"), "is no regular file");
  const std::string pipe = std::string("/tmp/tutti-pipe-") + std::to_string(::getpid());
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  expect_text(refused(pipe), "is no regular file");  // and nobody waits for a writer
  ::unlink(pipe.c_str());
  const SecretFile empty(""), little("123456789012345\n"), least("1234567890123456\n"),
      most(std::string(4096, 'x')), much(std::string(4097, 'x'));
  expect_text(refused(empty.path()), "holds 0 bytes, at least 16 are needed");
  expect_text(refused(little.path()), "holds 15 bytes, at least 16 are needed");
  expect_text(refused(much.path()), "holds more than 4096 bytes");
  EXPECT_EQ(security_of("auth", least.path(), kWhat).level, Level::auth);
  EXPECT_EQ(security_of("auth", most.path(), kWhat).level, Level::auth);
}

}  // namespace
}  // namespace tutti::net
