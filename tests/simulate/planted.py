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
SRC = ROOT / "src/control"

# name, file, what stands there, what is planted, why it need not be found
FAULTS = [
    ("two entries k", "board/log.cc", "if (place.compare_exchange_strong(seen, entry.pack())) {",
     "if ((place.store(entry.pack()), true)) {", None),
    ("proposes before it has applied", "verdicts.cc",
     "    apply_new_entries();\n    const std::optional<Verdict> wanted", "    const std::optional<Verdict> wanted", None),
    ("a failure settles beside the log", "failing.cc", "  const bool entered = host->enter(",
     "  settle(cause);\n  const bool entered = host->enter(", None),
    ("goodbye seen once", "judge/look.cc", "if (!std::exchange(clock_.peer_left, true)) {", "if (false) {", None),
    ("who has done its part may not leave", "judge/look.cc", "if (!is_open(member) && !has_done) return member;",
     "if (!is_open(member)) return member;", "the data come between two looks, and the second look finds them first"),
    ("late before its time", "judge/look.cc", "if (arrive_.left.expired(now_)) {",
     "if (now_ > clock_.began + std::chrono::milliseconds(20)) {", None),
    ("nobody is furthest behind", "judge/look.cc", "if (entered > least) continue;", "if (entered < least) continue;", None),
    ("stalled before its time", "judge/look.cc", "if (!clock_.stall.expired(now_)) {",
     "if (now_ < clock_.began + std::chrono::milliseconds(6)) {", None),
    ("history of an older operation", "judge/agree.cc",
     "return shown && shown->seq == seq ? shown : std::nullopt;", "return shown;", None),
    ("a goodbye counts before it is said", "judge/agree.cc",
     "if (line.goodbye_seq == seq && has_left(line.state)) return line.goodbye_chain;",
     "if (line.goodbye_seq == seq) return line.goodbye_chain;", "its words are written once, before the state"),
    ("compares with who is still there", "judge/agree.cc",
     "if (member == facts.rank || !theirs || !has_left(theirs->state)) continue;",
     "if (member == facts.rank || !theirs) continue;", None),
    ("a loss counts for who has said goodbye", "judge/standing.cc",
     "if (!line || !has_left(line->state)) members.push_back(member);", "members.push_back(member);", None),
    ("the own failure is news", "judge/standing.cc", "if (member == facts.rank || !line || !line->failure) continue;",
     "if (!line || !line->failure) continue;", "who has a failure on its line has it already"),
    ("stopped is dead", "host.cc", "if (other.mark.look() != Mark::State::owner_died) continue;",
     "if (other.mark.look() == Mark::State::free) continue;", None),
    ("everybody decides at once", "judge/decider.cc", "return first_death + (decider == rank ? kFreeze : kOvertake);",
     "return first_death;",
     "the log has one entry k, whoever proposes it"),
    ("who has left is lost", "host.cc", "if (has_left(other) || is_lost(slot)) continue;", "if (is_lost(slot)) continue;",
     None),
    ("who left the world may still come", "judge/meeting.cc",
     "if (facts.of(member).has_left_world) finding.culprits.push_back(member);", "static_cast<void>(member);", None),
    ("a meeting outlives its parent", "judge/meeting.cc",
     "look.ends_with_parent = !look.finding && question.parent_failed;", "look.ends_with_parent = false;", None),
    ("a failure before the state", "board/members.cc",
     "facts.state = line->state.load(std::memory_order_acquire);", "facts.state = LineState::closed;", None),
    ("a knot counts without looks", "judge/deadlock.cc", "one.looks >= then.looks + kLooksOfAKnot && ", "", None),
    ("a wait may change between the looks", "judge/deadlock.cc",
     "return one.rank == other.rank && one.version == other.version;", "return one.rank == other.rank;", None),
    ("every missing member is awaited", "judge/deadlock.cc", "if (needs_all) return not_called(facts, seq);",
     "return not_called(facts, seq);", "all ranks follow one plan: who is missing waits for nobody further on"),
    ("what has been called is awaited", "judge/deadlock.cc", "if (!is_stuck_[at(waiting)] || !can_go_on(waiting)) continue;",
     "continue;", None),
    ("nobody is roused", "failing.cc", "if (world_rank != host->rank) rouse_control(", "if (world_rank < -1) rouse_control(",
     "control threads look by themselves, every 20 ms"),
]


def compile_command(build, source):
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if entry["file"] == str(source) and "tutti_stepped" in entry["command"]:
            return entry["command"], entry["directory"]
    sys.exit(f"{source} is not in {build}/compile_commands.json: build the tests first")


def plant(build, folder, fault):
    """The path of a simulator with the fault, or None if its text is not there any more."""
    name, file, before, after, _ = fault
    source = SRC / file
    text = source.read_text()
    if before not in text:
        return None
    planted = folder / "planted.cc"
    planted.write_text(text.replace(before, after, 1))
    command, directory = compile_command(build, source)
    own = re.search(r" -o (\S+)", command).group(1)
    command = command.replace(f" -o {own}", f" -o {folder}/planted.o").replace(f" -c {source}", f" -w -c {planted}").replace("-Werror", "")
    command = re.sub(r" -M\S+( \S+\.(?:d|o))?(?= )", "", command)
    subprocess.run(command, shell=True, check=True, cwd=directory)
    link = subprocess.run(["ninja", "-t", "commands", "-s", "tests/simulate/soak_simulate"], cwd=build, check=True,
                          capture_output=True, text=True).stdout.strip().split("&& ")
    line = next(part for part in link if " -o tests/simulate/soak_simulate" in part)
    line = line.replace(f" {own} ", f" {folder}/planted.o ").replace("-o tests/simulate/soak_simulate", f"-o {folder}/simulate")
    subprocess.run(line, shell=True, check=True, cwd=build)
    return folder / "simulate"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--rounds", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("names", nargs="*", help="of faults; all without")
    options = parser.parse_args()
    build = options.build.resolve()
    survived = []
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
        found = re.search(r"^VIOLATED: seed (\d+): (.*)", done.stdout, re.MULTILINE)
        if found:
            print(f"found     {fault[0]}: after {int(found[1]) - options.seed + 1} rounds: {found[2][:110]}", flush=True)
        elif fault[4]:
            print(f"survived  {fault[0]}: {fault[4]}", flush=True)
        else:
            print(f"SURVIVED  {fault[0]}", flush=True)
            survived.append(fault[0])
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
