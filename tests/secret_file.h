// A secret for ranks of a test.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace tutti {

/// A file that others cannot read, gone with this object.
class SecretFile {
 public:
  explicit SecretFile(const std::string& secret) {
    const int fd = ::mkstemp(path_.data());
    EXPECT_EQ(::write(fd, secret.data(), secret.size()), static_cast<ssize_t>(secret.size()));
    ::close(fd);
  }
  SecretFile(const SecretFile&) = delete;
  SecretFile& operator=(const SecretFile&) = delete;
  ~SecretFile() { ::unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/tutti-secret-XXXXXX";
};

}  // namespace tutti
