// A handshake over a socket.
#pragma once

#include <string>

#include "net/handshake.h"
#include "tutti/error.h"
#include "tutti/types.h"

namespace tutti::net {

/// Moves what can be moved without waiting. 0: it is over, and its outcome says how; EAGAIN: more
/// has to come; else the number of the error. `socket` does not block, and nothing else is sent on
/// it meanwhile.
int advance(Handshake& handshake, int socket);

/// The same until it is over. False: the other end has closed the connection. Throws kTimeout.
bool shake_hands(Handshake& handshake, int socket, Deadline& deadline);

/// What a handshake has come to that has failed, for who has made it. `us` and `them` are for
/// people: "rank 1 on node-2", "the store at 10.0.0.1:29500"; so is the file of our secret, where
/// there is one.
Error failure_of(const Handshake& handshake, Level level, const std::string& us,
                 const std::string& them, const std::string& secret_file = {});
/// How a text ends that says that secrets differ: what to do, and where that of `whose` was read.
std::string advice_on_secrets(const std::string& whose, const std::string& secret_file);

}  // namespace tutti::net
