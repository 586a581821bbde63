// Neighbours of a job who do it harm: processes, mostly of another user, that connect to the socket
// where its ranks meet, as fast as they can. The same processes can be busy loops, to compare with.
//
// They talk to the one address that a rank has put on the *page*, end with whoever started them,
// and end by themselves after an hour.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "net/fd.h"

namespace tutti::soak {

enum class Harm : std::uint32_t { close, garbage, oversize, hold, drip };
inline constexpr std::array kHarms{Harm::close, Harm::garbage, Harm::oversize, Harm::hold,
                                   Harm::drip};
const char* name_of(Harm harm) noexcept;

/// What soak, neighbours and ranks share; all zero at first.
struct Page {
  enum class Orders : std::uint32_t { rest, spin, flood };
  std::atomic<Orders> orders;
  std::atomic<std::uint32_t> target;  ///< how many addresses there were; the last one is flooded
  std::array<char, 108> address;
  std::atomic<std::uint64_t> attempts;  ///< to connect, since the address was put here
  std::atomic<std::uint64_t> groups;    ///< made by the job so far
  std::atomic<bool> is_job_to_end;
};

/// The page in memory of its own; `path` leads other processes to it.
class SharedPage {
 public:
  SharedPage();
  explicit SharedPage(const std::string& path);
  ~SharedPage();
  SharedPage(const SharedPage&) = delete;
  SharedPage& operator=(const SharedPage&) = delete;
  Page* operator->() const noexcept { return page_; }
  std::string path() const;

 private:
  void map();
  net::Fd memory_;
  Page* page_ = nullptr;
};

/// `count` processes; of the user nobody where asked, which takes root. The destructor ends them.
class Neighbours {
 public:
  Neighbours(const SharedPage& page, Harm harm, int count, bool is_other_user);
  ~Neighbours();
  Neighbours(const Neighbours&) = delete;
  Neighbours& operator=(const Neighbours&) = delete;

 private:
  std::vector<pid_t> pids_;
};

}  // namespace tutti::soak
