#!/usr/bin/env python3
"""Plants one fault at a time in the code that is simulated, and expects the simulator to find it.

    tests/simulate/planted.py [--build build/release] [--rounds 10000] [NAME...]

A line per fault: found after how many rounds and by what, or SURVIVED. Faults with a reason need not be found: they
change nothing that a promise speaks of. Exit code 1: one without a reason survived.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/soak"))
import over_hosts  # noqa: E402

SRC = ROOT / "src"

# name, file, what stands there, what is planted (of each as many as there are), why it need not be found
FAULTS = [
    ("two entries k", "control/board/log.cc", "if (place.compare_exchange_strong(seen, entry.pack())) {",
     "if ((place.store(entry.pack()), true)) {", None),
    ("proposes before it has applied", "control/verdicts.cc",
     "    apply_new_entries();\n    std::optional<Verdict> wanted", "    std::optional<Verdict> wanted", None),
    ("a failure settles beside the log", "control/failing.cc", "  const bool entered =\n      host->enter(",
     "  settle(cause);\n  const bool entered =\n      host->enter(", None),
    ("nobody hears what others failed with before they left", "control/relay.cc",
     "return failure ? std::move(failure) : find_last_word(facts);", "return failure;",
     "222,968 rounds found it, when it was there; test Relay.WhatAllOthersHadFailedWithIsEnteredOnceTheyHaveLeft does"),
    ("goodbye seen once", "control/judge/look.cc", "if (!std::exchange(clock_.peer_left, true)) {", "if (false) {", None),
    ("who has done its part may not leave", "control/judge/look.cc", "if (has_gone(member) && !has_done) return member;",
     "if (has_gone(member)) return member;", "the data come between two looks, and the second look finds them first"),
    ("late before its time", "control/judge/look.cc", "if (arrive_.left.expired(now_)) {",
     "if (now_ > clock_.began + std::chrono::milliseconds(20)) {", None),
    ("who was missing is the only one", "control/waits.cc", "    missing = (first + i) % size;\n",
     "    missing = (first + i) % size;\n    if (first > 0 && i > 0) break;\n", None),
    ("nobody is furthest behind", "control/judge/look.cc", "if (entered > least) continue;", "if (entered < least) continue;", None),
    ("stalled before its time", "control/judge/look.cc", "if (!clock_.stall.expired(now_)) {",
     "if (now_ < clock_.began + std::chrono::milliseconds(6)) {", None),
    ("history of an older operation", "control/judge/agree.cc",
     "return shown && shown->seq == seq ? &*shown : nullptr;", "return shown ? &*shown : nullptr;", None),
    ("compares with who is still there", "control/judge/agree.cc",
     "if (member == facts.rank || !has_left(theirs.state) || theirs.failure) continue;",
     "if (member == facts.rank) continue;", None),
    ("a loss counts for who has said goodbye", "control/judge/standing.cc",
     "if (!has_left(facts.does(member).state)) members.push_back(member);", "members.push_back(member);", None),
    ("the own failure is news", "control/judge/standing.cc", "if (member == facts.rank || !failure || takes","if (!failure || takes", "who has a failure on its line has it already"),
    ("stopped is dead", "control/board/board.cc", "slot(of).mark.look() == Mark::State::owner_died;",
     "slot(of).mark.look() != Mark::State::free;", None),
    ("everybody decides at once", "control/judge/decider.cc", "return first_death + (is_decider ? kFreeze : kOvertake);",
     "return first_death;",
     "the log has one entry k, whoever proposes it"),
    ("who has left is lost", "control/host.cc", "!has_left(shared, slot) && !is_lost(dead)", "!is_lost(dead)",
     None),
    ("who left the world may still come", "control/judge/meeting.cc",
     "if (facts.of(member).has_left_world) left.push_back(member);", "static_cast<void>(member);", None),
    ("who comes late gets a group that has failed", "control/waits.cc", "if (state.is_given_up) throw state.make_error(nullptr);", "",
     "once in 700 to 26,000 rounds: it must come before it hears that the others' lines are gone; NewGroup.NoneIsMadeOnceOtherHostsHaveGivenUp always does"),
    ("a meeting outlives its parent", "control/judge/meeting.cc",
     "look.ends_with_parent = question.parent_failed;", "look.ends_with_parent = false;", None),
    ("a failure before the state", "control/board/members.cc",
     "facts.state = line.state.load(std::memory_order_acquire);", "facts.state = LineState::closed;", None),
    ("who waits for all waits for each", "control/judge/deadlock.cc",
     "if (parts[part].one_suffices ? stuck < parts[part].awaited.size() : stuck == 0) return true;",
     "if (stuck == 0) return true;", None),
    ("what has been done is still awaited", "control/judge/deadlock.cc",
     "if (facts.does(next).completed >= inside) return {};", "",
     "a rank must stop in the middle of a chain while two others are late: seed 4100464065, JudgeAwaited.NobodyWhereWhoIsAwaitedInTurnHasDoneItsPart"),
    ("nobody needs a closed line", "control/judge/standing.cc",
     "if (member != facts.rank && reads && !other.has_left_world && !other.is_lost) return true;", "static_cast<void>(reads);",
     "who closes then finds no goodbye to compare: that shows only where a group disagrees in its last operation and one member has made "
     "many more before another closes: judge_group_test"),
    ("nothing comes too late", "control/judge/standing.cc",
     "if (code != ErrorCode::kCollectiveMismatch && code != ErrorCode::kClosed) return false;", "if (code != ErrorCode::kInternal) return false;",
     "it is for the launcher, which no simulated world has: judge_group_test, soak_endings (too late)"),
    ("a knot counts without looks", "control/judge/deadlock.cc", "return one.looks >= then.looks + kLooksOfAKnot;", "return one.rank == then.rank;", None),
    ("a wait goes by old answers", "control/deadlocks.cc", "return part.as_of >= shown_wait->looked;", "return true;",
     "what a rank waits for comes over the same relay as what it has called: Hosts.AWaitHasLookedOnceAnswersAreNew..."),
    ("a look counts although others have not read all", "control/deadlocks.cc", "if (is_new && all_was_read &&", "if (is_new &&",
     "simulated data are never under way: HeldUp.*, Hosts.AWaitHasLookedOnceAnswersAreNew..."),
    ("a knot over hosts counts at once", "control/judge/deadlock.cc", "clock.has_arrived = !spans_hosts(seen, facts);", "clock.has_arrived = true;",
     "simulated data are never under way: JudgeDeadlock.OverHostsCountsOnceAllHaveLookedTwice"),
    ("a deadlock is wished until all its groups have failed", "control/verdicts.cc",
     "    if (failed > 0 && !is_dispute) return true;\n", "", "once in some 10,000 rounds (seed 5009918: it does not end)"),
    ("a dispute is settled once one of its groups has failed", "control/verdicts.cc",
     "    if (failed > 0 && !is_dispute) return true;\n", "    if (failed > 0) return true;\n",
     "it takes more than two groups that are asked for at once over hosts: NewGroup.AllHostsAreTold..."),
    ("who has found a dispute asks nobody", "control/judge/meeting.cc",
     "  look.ask = awaited;\n", "  if (!dispute.awaits_us) look.ask = awaited;\n",
     "the same: NewGroup.AllHostsAreTold..., and judge_group_test"),
    ("a new relay knows of no failure", "control/relay.cc", "  for (const Entry& entry : vote_.entries)\n", "  for (const Entry& entry : std::vector<Entry>())\n",
     "once in some 40,000 rounds: a relay dies between an entry and a wish that it settles"),
    ("a wait may change between the looks", "control/judge/deadlock.cc",
     "std::tie(one.rank, one.version) == std::tie(other.rank, other.version)", "one.rank == other.rank",
     "looks that belong to several waits of the same ranks: judge_deadlock_test"),
    ("every missing member is awaited", "control/judge/deadlock.cc", "if (needs_all) return not_called(facts, seq);",
     "return not_called(facts, seq);", "all ranks follow one plan: who is missing waits for nobody further on"),
    ("what has been called is awaited", "control/judge/deadlock.cc", "if (!is_stuck_[waiting.index()] || !can_go_on(waiting)) continue;",
     "continue;", None),
    ("a verdict is told before it has failed all its groups", "control/failing.cc",
     "    host->apply_log();\n    const std::lock_guard", "    const std::lock_guard",
     "once in some 20,000 rounds; Deadlock.TwoGroupsInOppositeOrderFailBoth under ThreadSanitizer"),
    ("a disagreement is never found", "control/judge/agree.cc",
     "    if (auto finding = disagreement_at(facts, entered - left + 1)) return finding;\n", "", None),
    ("goodbyes are not compared", "control/judge/agree.cc", "if (member == facts.rank || !has_left(theirs.state) || theirs.failure) continue;", "continue;", None),
    ("a disagreement names rank 0", "control/judge/agree.cc", "  std::vector<int> culprits = culprits_of(sides);\n  return Finding{",
     "  std::vector<int> culprits = {0};\n  return Finding{", None),
    ("who has come has not", "control/judge/meeting.cc", "ErrorCode::kTimeout, awaited, NotCome", "ErrorCode::kTimeout, {facts.rank}, NotCome", None),
    ("who has left is another one", "control/judge/look.cc", "others() : std::vector<int>{member}", "others() : std::vector<int>{facts_.rank}", None),
    ("a later operation inherits the clock", "control/judge/look.cc", "if (arrive_.seq != request_.seq) arrive_", "if (arrive_.seq == 0) arrive_", None),
    ("stalled at half its time", "control/judge/look.cc", "if (!clock_.stall.expired(now_)) {",
     "if (clock_.stall.left(now_) > request_.stall.budget() / 2) {", None),
    ("a meeting is over at half its time", "control/judge/meeting.cc", "  if (clock.deadline.expired(now)) {\n    clock.due",
     "  if (clock.deadline.left(now) <= clock.deadline.budget() / 2) {\n    clock.due", None),
    ("of equals the first is right", "control/judge/agree.cc", "if (members.size() < most || with_most > 1)", "if (members.size() < most)", None),
    ("a knot names one rank", "control/deadlocks.cc", ".culprits = knot->ranks(),", ".culprits = {knot->ranks().front()},", None),
    ("a knot that was no more is never looked for again", "control/deadlocks.cc",
     "  if (!stood) deadlock_clock = {};  // what is left of it is a knot that is seen first from now on\n", "",
     "it takes an entry between the last look and the own one that ends a group of a member, and leaves the knot as it is: a round in some 10,000 (add_circles_apart)"),
    ("a knot is never told", "control/deadlocks.cc", "  if (!knot) return;", "  if (!knot || rank.value >= 0) return;", None),
    ("the decider takes its time", "control/judge/decider.cc", "(is_decider ? kFreeze : kOvertake)", "kOvertake", None),
    ("a bystander is lost with a cut", "control/relay.cc", "(state != State::left && is_off);",
     "(state != State::left && (is_off || !vote_.vote.cut_off.empty()));", None),
    ("one cut, two entries", "control/relay.cc", "(state == State::cut && is_sure)", "state == State::cut", None),
    ("nobody is roused", "control/failing.cc", "if (member != rank && members.is_here(member))", "if (member < -1)",
     "control threads look by themselves, every 20 ms"),
    ("a ring holds less than two segments", "native/engine/engine.cc",
     ("tuning.segment_bytes = std::min(tuning.segment_bytes, tuning.ring_bytes / 2);", "if (tuning.segment_bytes > tuning.ring_bytes / 2) {"),
     ("", "if (false) {"), None),
    ("a place in the ring is not drained yet", "native/engine/engine.cc", "  if (segment.end > tuning_.ring_bytes &&", "  if (false &&", None),
    ("a line is used before all have read it", "native/engine/engine.cc", "      if (!all_entered()) return false;\n      if (ranks_ == 1)",
     "      if (ranks_ == 1)", None),
    ("the engine does not compare chains", "native/engine/engine.cc",
     "if (number == number_ && line.chain.load(std::memory_order_relaxed) == chain_) return true;", "if (number == number_) return true;", None),
    ("inputs in another order", "native/engine/engine.cc",
     "of_rank(inputs, peer) = peer == view_.rank ?", "of_rank(inputs, (peer + view_.rank) % ranks_) = peer == view_.rank ?", None),
    ("the engine rings nobody", "native/engine/engine.cc", "  signals_.notify_all();", "  if (ranks_ > 256) signals_.notify_all();", None),
    ("the executor does not compare chains", "native/executor.cc",
     "if (header.what.seq != request_->seq || header.what.chain != request_->chain) {", "if (header.what.seq > request_->seq + 9) {", None),
    ("a popped frame makes no room known", "native/executor.cc", "channels_.receiver(peer).pop();\n  moved(peer);",
     "channels_.receiver(peer).pop();\n  membership_.progressed();", None),
    ("who sends a frame rings nobody", "native/pump.cc", "  if (is_counted(header.type)) moved(to);\n  return true;", "  return true;", None),
    ("matches while messages are taken back", "native/pump.cc",
     "channels_.words_of(from.rank).withdrawn->load() == from.withdrawals_read &&", "", None),
    ("takes messages back while they are matched", "native/withdrawal.cc",
     "if (channels_.words_of(to.rank).matching->load() != 0) {", "if (false) {", None),
    ("a freeze that nobody sees", "native/withdrawal.cc", "withdrawn->store(to.withdrawals + 1);", "withdrawn->store(to.withdrawals);", None),
    ("what was matched is taken back", "native/withdrawal.cc", "  const bool mine = !transfer.matched();", "  const bool mine = true;", None),
    ("the last message first", "native/matcher.cc",
     ("(tag.first_kept == nullptr ? tag.first_kept : tag.last_kept->next) = kept;\n  tag.last_kept = kept;",),
     ("kept->next = tag.first_kept;\n  tag.first_kept = kept;\n  if (tag.last_kept == nullptr) tag.last_kept = kept;",), None),
    ("a message overtakes one that is kept", "native/matcher.cc", "is_first = tag.first_kept == nullptr && ", "is_first = ", None),
    ("a look at a message before what has come", "native/messages.cc",
     "  take_in();\n  pump();\n  Patience::Verdict verdict", "  Patience::Verdict verdict", "somebody else must hold the token at each of the two looks between the asks, and at none of these"),
    ("who gives the queue's token wakes nobody", "native/queue.cc", "if (wake || refused) membership_", "if (wake) membership_",
     "who was refused is late only if the holder leaves without another look, and a peer has rung between that one's last look and the refusal"),
    ("who gives the messages' token wakes nobody", "native/messages.cc", "if (wake || refused) membership_", "if (wake) membership_",
     "who was refused is late only if the holder leaves without another look, and a peer has rung between that one's last look and the refusal"),
    ("an idle progress thread sleeps on", "control/progress.cc", "  ring(idle_bell_);\n", "", None),
    ("a driver goes while it is stepped", "control/progress.cc",
     "  wait_until(visit_bell_, Deadline::Clock::time_point::max(), is_over);", "", None),
    ("a wait does not see that its group has failed", "base/wait.cc", "      if (aborted(waiter_)) return WaitResult::aborted;\n", "", None),
    ("no look between counting as a sleeper and sleep", "base/wait.cc", "      if (look_()) return true;\n    } while (alarm", "    } while (alarm", None),
    ("nobody looks out any more", "base/crowd.cc", "  ring(next->own_);", "", None),
    # Worlds of several hosts.
    ("entered before it is chosen", "control/relay.cc", "    vote_ = std::move(after);",
     "    vote_ = std::move(after);\n    if (want && vote_.vote.number == 0) log_.enter_chosen(1, &want->verdict);", None),
    ("an overtaken relay writes the vote", "control/board/vote_bytes.cc",
     "if (!board_.header().vote.compare_exchange_strong(word_, next.pack())) return false;",
     "board_.header().vote.store(next.pack());",
     "it takes a relay that stands still just there until another has voted, and a second wish: control_vote_place_test"),
    ("the vote is lost with its relay", "control/hosts/vote_place.cc",
     "auto vote = bytes->empty() ? first_vote(host_count_) : decoded(*bytes, host_count_);",
     "std::optional<HostVote> vote = first_vote(host_count_);", "it takes a relay that dies between an acceptance and the entry, and another wish after it: control_vote_place_test; a lost vote is found by soak_votes"),
    ("a silent relay stays the relay", "control/relay.cc", "return board_.is_running(slot) && now < seen.since + kVoteOvertake;", "return board_.is_running(slot);", "what stops a relay counts as a pause of everybody; control_relay_test"),
    ("a dead relay stays the relay", "control/relay.cc", "return board_.is_running(slot) && now < seen.since + kVoteOvertake;",
     "return board_.is_running(slot) || slot == VoteBytes::relay_on(board_);", None),
    ("what was chosen before a take-over is not entered", "control/relay.cc", "  enter_chosen();  // what an earlier relay has not got to\n", "", "it takes a relay that dies between its vote and the log; control_relay_test"),
    ("a stale fact", "control/judge/look.cc", "return !look_.ask.empty() && now_ < clock_.due + most;", "return false;", None),
    ("a goodbye that only some have heard of", "control/failing.cc",
     "members.all_are_here() ? lost_to(facts, lost) : lost;", "lost_to(facts, lost);", None),
    ("nobody waits for the cause", "control/membership.cc", "  state->await_cause();\n", "", None),
    ("a stopped host holds up all failures", "control/host.cc", "  with_reserve([&] { settle_what_is_held_up(now, next); });\n", "",
     "the others end once it goes on: Hosts.AFailureThatAStoppedHostHoldsUpCountsHereAfterASecond"),
    ("wishes are not shown", "control/verdicts.cc", "  own.show_wish(first);\n", "", None),
    # Hosts that vote.
    ("two deciders", "control/vote/vote.cc", "    vote_.promised = {highest.round + 1, self()};",
     "    vote_.promised = {highest.round + 1, self()};\n    return propose_value();", None),
    ("a lost vote", "control/vote/vote.cc", "  VoteStep run() && {", "  VoteStep run() && {\n    if (memory_.peers[0].connection + "
     "memory_.peers[1].connection == 0) vote_.promised = vote_.accepted = {};", None),
    ("an old term is believed", "control/vote/vote.cc", "|| frame.term < peer.term) return;", ") return;", None),
    ("an old relay writes", "control/vote/vote.cc", "return there.term == next.term;", "return there.term <= next.term + 9;", None),
    ("a silent relay is never overtaken", "control/vote/vote.cc", "(kVoteOvertake + before * kVoteStagger)", "std::chrono::hours(1)", None),
    ("quorum off by one", "control/vote/vote.cc", "return 2 * set.size() > host_.hosts.size();",
     "return 2 * (set.size() + 1) > host_.hosts.size();", None),
    ("half is a quorum", "control/vote/vote.cc", "return 2 * set.size() > host_.hosts.size();", "return 2 * set.size() >= host_.hosts.size();",
     None),
    ("the highest accepted ballot is ignored", "control/vote/vote.cc", "if (!highest->accepted.is_none()) {",
     "if (!highest->accepted.is_none() && find_want() == nullptr) {", None),
    ("the dead are counted out of the majority", "control/vote/vote.cc", "return 2 * set.size() > host_.hosts.size();",
     "return 2 * set.size() > (host_.hosts - vote_.gone).size();", None),
    ("a parted host is let in again", "control/vote/vote.cc", "if (vote_.cut_off.contains(from) ||", "if (", None),
    ("it does not count who has cut this one off", "control/vote/vote.cc",
     "if (frame.vote.cut_off.contains(self())) return vote_.cut_off.insert(from);", "", None),
    ("a promise is not kept", "control/vote/vote.cc", "shown.accepted >= vote_.promised)", "shown.accepted > vote_.accepted)", None),
    ("only the proposer has cut the others off", "control/vote/vote.cc", "return others.is_within(vote_of(host)->cut_off);",
     "return host != self() || others.is_within(vote_.cut_off);", None),
    ("parts at once", "control/vote/vote.cc", "if (input_.now < when) return wake(when);\n    vote_.cut_off", "vote_.cut_off",
     None),
    ("never parts", "control/vote/vote.cc", "    vote_.cut_off |= far;\n", "", None),
    ("does not close ranks", "control/vote/vote.cc", "vote_.cut_off.insert(std::max(host, other));", "continue;", None),
    ("asks though no quorum could answer", "control/vote/vote.cc", "keep(is_open() && may_ask(), memory_.open_since);",
     "keep(is_open() && (is_majority(reached()) || (host_.hosts - reached()).is_within(vote_.cut_off)), memory_.open_since);", None),
    ("does not tell those in the middle what it wants", "control/vote/vote.cc", " || !may_ask())) return true;", ")) return true;", None),
    ("turns go on after a parting", "control/vote/vote.cc", "|| memory_.cut_off != vote_.cut_off)", ")",
     "once in 16,000 to 27,000 rounds; Vote.TurnsBeginAnewAmongThoseThatAreLeft and votes/found/alone_after_a_parting.json do"),
    ("a ballot shown again gets more time", "control/vote/vote.cc", "if (is_news && (shown", "if ((shown",
     "once in about 24,000 rounds (--seed 20001 finds it); control_vote_test always does"),
    ("who is left out goes on to learn", "control/vote/vote.cc", "votes() && i < frame.entries.size()", "i < frame.entries.size()",
     "once in some 19,000 rounds (--seed 69001 finds it); control_vote_test and votes/found/left_out_goes_on.json always do"),
    ("who is left out in its sleep keeps its links", "control/vote/vote.cc", "      vote_.cut_off |= HostSet::first(count()) - HostSet{self()};\n", "",
     "it takes a host that sleeps through more entries than are kept, and wakes in a part without a quorum; control_vote_test always finds it"),
    ("is never held up", "control/vote/vote.cc", "step_.held_up = input_.now >= held_up;", "return;", None),
    ("does not tell who is behind", "control/vote/vote.cc", "if (known >= vote_.number && !must_tell", "if (!must_tell", None),
]


def parts_of(file):
    """The program that finds the faults of a file, and the target whose objects it is linked from."""
    if file.startswith("control/vote/"):
        return "tests/simulate/votes/soak_votes", "tutti_objects"
    return "tests/simulate/soak_simulate", "tutti_stepped"


def compile_command(build, source, target):
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if entry["file"] == str(source) and f"/{target}.dir/" in entry["command"]:
            return entry["command"], entry["directory"]
    sys.exit(f"{source} is not in {build}/compile_commands.json: build the tests first")


def plant(build, folder, fault):
    """The path of a simulator with the fault, or None if its text is not there any more."""
    name, file, before, after, _ = fault
    source = SRC / file
    text = source.read_text()
    for old, new in zip(*([one] if isinstance(one, str) else one for one in (before, after))):
        if old not in text:
            return None
        text = text.replace(old, new, 1)
    planted = folder / "planted.cc"
    planted.write_text(text)
    program, target = parts_of(file)
    command, directory = compile_command(build, source, target)
    own = re.search(r" -o (\S+)", command).group(1)
    command = command.replace(f" -o {own}", f" -o {folder}/planted.o").replace(f" -c {source}", f" -w -c {planted}").replace("-Werror", "")
    command = re.sub(r" -M\S+( \S+\.(?:d|o))?(?= )", "", command)
    subprocess.run(command, shell=True, check=True, cwd=directory)
    link = subprocess.run(["ninja", "-t", "commands", "-s", program], cwd=build, check=True,
                          capture_output=True, text=True).stdout.strip().split("&& ")
    line = next(part for part in link if f" -o {program}" in part)
    line = line.replace(f" {own} ", f" {folder}/planted.o ").replace(f"-o {program}", f"-o {folder}/simulate")
    subprocess.run(line, shell=True, check=True, cwd=build)
    return folder / "simulate"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--rounds", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path, help="a JSON file with what was found")
    parser.add_argument("names", nargs="*", help="of faults; all without")
    options = parser.parse_args()
    build = options.build.resolve()
    survived, report = [], []
    for fault in FAULTS:
        if options.names and fault[0] not in options.names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            simulator = plant(build, pathlib.Path(folder), fault)
            if simulator is None:
                print(f"STALE     {fault[0]}: {fault[1]} has changed")
                survived.append(fault[0])
                continue
            done = subprocess.run([simulator, "--rounds", str(options.rounds), "--seed", str(options.seed),
                                   "--script", f"{folder}/violation.json"],
                                  capture_output=True, text=True)
        found = re.search(r"^VIOLATED: (?:seed (\d+): )?(.*)", done.stdout, re.MULTILINE)
        report.append({"fault": fault[0], "found": found[2] if found else "", "argued": fault[4]})
        if found:  # without a seed it has crashed
            after = f"after {int(found[1]) - options.seed + 1} rounds: " if found[1] else ""
            print(f"found     {fault[0]}: {after}{found[2][:110]}", flush=True)
        elif fault[4]:
            print(f"survived  {fault[0]}: {fault[4]}", flush=True)
        else:
            print(f"SURVIVED  {fault[0]}", flush=True)
            survived.append(fault[0])
    if options.out and not options.names:  # of some: the evidence of all stays
        head = {**over_hosts.machine("planted"), "rounds": options.rounds, "seed": options.seed}
        options.out.write_text(json.dumps({**head, "faults": report}, indent=1) + "\n")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
