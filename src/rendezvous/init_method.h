// Where ranks meet and who this one is, as a program or a user writes it in one text.
//
//     env://                                      MASTER_ADDR and MASTER_PORT, or a launcher
//     tcp://node-1:29500                          rank 0 serves there
//     tcp://[2001:db8::1]:29500?rank=1&world_size=4
//     tcp://node-1:29500?rank=auto&world_size=4   numbers in the order of arrival
//     file:///shared/job?rank=1&world_size=4      rank 0 says in that file where it serves
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tutti::rendezvous {

struct InitMethod {
  enum class Kind : std::uint8_t { env, tcp, file };
  Kind kind = Kind::env;
  std::string host = {};  ///< of tcp, without brackets
  int port = 0;           ///< of tcp
  std::string path = {};  ///< of file, from the root
  std::optional<int> rank = {};
  std::optional<int> world_size = {};
  bool is_rank_auto = false;
};

/// Errors  kInvalidArgument, with the text, what is wrong with it, and how it should look.
InitMethod parse_init_method(std::string_view text);

}  // namespace tutti::rendezvous
