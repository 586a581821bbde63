// From where ranks on this host would speak with those of others, and why from there: what `tutti
// env` shows before there is a world.
#pragma once

#include <string>
#include <string_view>

#include "net/interfaces.h"
#include "rendezvous/identity.h"

namespace tutti::rendezvous {

struct Reach {
  std::string host;                          ///< its name
  std::string interface = {}, address = {};  ///< empty: no port is opened, or it is not known
  std::string why = {};
};

/// What the setting socket_ifname asks for, by its value and the source of that.
net::AddressChoice choice_of(const std::string& value, const std::string& source);

/// Looks up the name of rank 0's host, for two seconds at most.
Reach reach_of_this_host(const Identity& identity, std::string_view init_method,
                         const net::AddressChoice& choice);

}  // namespace tutti::rendezvous
