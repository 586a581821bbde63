// From where ranks on this host would speak with those of others, and why from there: what `tutti
// env` shows before there is a world.
#pragma once

#include <string>
#include <string_view>

#include "rendezvous/identity.h"

namespace tutti::rendezvous {

struct Reach {
  std::string host;                          ///< its name
  std::string interface = {}, address = {};  ///< empty: no port is opened, or it is not known
  std::string why = {};
};

/// Looks up the name of rank 0's host, for two seconds at most.
Reach reach_of_this_host(const Identity& identity, std::string_view init_method);

}  // namespace tutti::rendezvous
