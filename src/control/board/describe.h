// What the board shows, in words for people.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "control/board/board.h"

namespace tutti::control {

struct WaitPart;

/// "killed by SIGKILL", "exit code 1".
std::string describe_wait_status(int wait_status);
/// "all_reduce(f32 x 1000, sum)". `whose` follows the number of a rank: " of the group".
std::string describe(const Shown& shown, std::string_view whose = {});
/// With its purpose and its call site: "... for ... at train.cc:88".
std::string describe(const KnownCall& call, std::string_view whose = {});
/// With the texts that its slot has for it.
KnownCall known_call(const Slot& slot, const Shown& shown);
/// The same of an operation of the slot.
std::string describe(const Slot& slot, const Shown& shown, std::string_view whose = {});
/// "all_reduce #41(f32 x 1000, sum) at train.cc:88"; of a message without a number.
std::string describe_numbered(const KnownCall& call, std::string_view whose = {});
std::string describe_numbered(const Slot& slot, const Shown& shown, std::string_view whose = {});
/// "new_group({0, 1}) at train.cc:88": the call that makes the group of a line.
std::string describe_making(const Slot& slot, const Line& line);
std::string describe_making(const Board& board, SlotIndex owner, GroupId group);
/// What the owner of a slot does in a group, for people: "is in all_reduce #41(...) at
/// train.cc:88"; where it does nothing there, also what it does in another.
std::string describe_doing(const Board& board, SlotIndex owner, GroupId group);
/// The same for the group in which the owner was last active, with ranks of the world: for whoever
/// is in no group with it.
std::string describe_doing(const Board& board, SlotIndex owner);

/// What the owner waits in: "recv(f32 x 3, from 1 of the group, tag 0) at ring.cc:9 of the group
/// made at ring.cc:5".
std::string describe_wait(const Board& board, SlotIndex owner, const WaitPart& part);
/// About what the ranks of a group of the owner disagreed, if that is why it failed: about an
/// operation, or about how many there are; or how they wait for each other. For whoever is in no
/// group: it says whose ranks it names if they are not the world's.
std::optional<std::string> disagreement_of(const Board& board, SlotIndex slot);
/// Why the first group of the owner failed that it has not outlived; "" if none did, or by a loss.
std::string describe_failure(const Board& board, SlotIndex owner);
/// Whether a group of the owner was not made by another one.
bool is_world(const Board& board, SlotIndex owner, GroupId group);

}  // namespace tutti::control
