// What ranks say in the store of their doors, and the keys of the connections that follow from it.
//
// A *plate* says where a rank can be called, and a public key. Any two ranks agree on a key that
// nobody knows who has only read both plates; it depends on the plates of all ranks, so that those
// who have read different ones do not come together. Where ranks know a secret, a plate bears a
// proof of it, and the keys depend on it, too.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/roster.h"
#include "net/keys.h"
#include "net/security.h"
#include "net/tcp.h"

namespace tutti::control {

struct DoorPlate {
  net::TcpAddress address;
  net::Level level = net::Level::none;
  net::Digest public_key = {};
  bool proves_secret = false;  ///< read: its rank has the secret of who reads it
};

std::string encode(const DoorPlate& plate, WorldRank rank, const net::Security& security);
/// None: this is no plate.
std::optional<DoorPlate> decode_plate(const std::string& text, WorldRank rank,
                                      const net::Security& security);

/// Used by one thread.
class DoorKeys {
 public:
  /// `plates`: of all ranks, as they stand in the store, by rank.
  DoorKeys(const net::Security& security, const net::KeyPair& own,
           const std::vector<std::string>& plates);

  const net::Security& security() const noexcept { return security_; }
  /// Of connections with `rank`. Throws kUnauthenticated where its public key is none.
  const net::Key& with(WorldRank rank, const net::Digest& public_key);

 private:
  net::Security security_;
  net::KeyPair own_;
  net::Digest all_plates_;
  std::vector<std::optional<net::Key>> keys_;  ///< by rank, once they were asked for
};

}  // namespace tutti::control
