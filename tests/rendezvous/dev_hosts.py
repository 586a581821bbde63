#!/usr/bin/env python3
"""./dev hosts: ranks on hosts that reach each other, exit codes, and that nothing is left whatever ends it."""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TOOL = [sys.executable, str(ROOT / "tools" / "hosts.py")]
NOT_PERMITTED = 77
FOLDER = tempfile.TemporaryDirectory(prefix="tutti-dev-hosts-")

# Every rank says hello to rank 0, over TCP.
MEET = """
import os, socket, sys, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
print("threads", os.environ["OMP_NUM_THREADS"], os.environ["OMP_WAIT_POLICY"], *sorted(n for n in os.environ if n.startswith("TUTTI_") and not n.startswith("TUTTI_TEST")))
if rank == 0:
    listener = socket.create_server(place)
    came = {}
    while len(came) < size - 1:
        other, _ = listener.accept()
        host, port = other.getpeername()
        came[int(other.recv(16))] = host
    print("hosts", *(came[r] for r in sorted(came)))
else:
    while True:
        try:
            mine = socket.create_connection(place, timeout=5)
            break
        except OSError:
            time.sleep(0.05)
    mine.send(str(rank).encode())
"""


# Rank 1 sends numbers to rank 0, which sends each back; both say when they last heard one, on one clock.
ECHO = """
import os, socket, time
wire = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
rank, until, pause, last = int(os.environ["RANK"]), time.monotonic() + 6, 0, None
if rank == 0:
    wire.bind((os.environ["MASTER_ADDR"], 4000))
wire.settimeout(0.02)
while time.monotonic() < until:
    if rank == 1:
        wire.sendto(b"1", (os.environ["MASTER_ADDR"], 4000))
    try:
        _, place = wire.recvfrom(16)
    except OSError:
        continue
    now = time.monotonic()
    pause, last = max(pause, now - (last or now)), now
    if rank == 0:
        wire.sendto(b"1", place)
print(f"pause {pause:.2f} last {until - last:.2f}", flush=True)
"""


def tags():
    """Of our own hosts that are there, or were left: their locks are in our folder, where nobody else looks."""
    return {path.name.removesuffix(".lock") for path in pathlib.Path(FOLDER.name).glob("tutti-hosts-*.lock")}


def spaces(of):
    """The namespaces with these tags."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout.splitlines()
    return {line.split()[0] for line in listed if line.split()[0].rpartition("-")[0] in of}


def start(*words):
    env = dict(os.environ, TMPDIR=FOLDER.name, RANK="9", TUTTI_AGENT="@of-another", OMPI_COMM_WORLD_RANK="3")
    return subprocess.Popen([*TOOL, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def expect(what, condition, *shown):
    if not condition:
        print(f"FAILED: {what}", *shown, sep="\n")
        sys.exit(1)


def run(*words):
    process = start(*words)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def check_meeting():
    both = [start("2", "--ranks", "2", "--", sys.executable, "-c", MEET) for _ in range(2)]  # at once, at one port
    for process in both:
        out, err = process.communicate(timeout=120)
        expect("ranks meet", process.returncode == 0, out, err)
        expect("they come from their hosts", "[0] hosts 10.77.0.1 10.77.0.2 10.77.0.2" in out, out)
        for rank in range(4):
            expect("the variables", f"[{rank}] threads 1 PASSIVE\n" in out, out)


def check_failures():
    code, out, err = run("2", "--grace", "0.2", "--", "sh", "-c", 'echo "pid $$" >&2; [ $RANK = 1 ] && exit 7; exec sleep 600')
    expect("the first failure's code", code == 7, code, out, err)
    for line in err.splitlines():
        if " pid " in line:
            expect("no rank is left", not pathlib.Path(f"/proc/{line.split()[-1]}").exists(), line)
    code, out, err = run("1", "--", "sh", "-c", "kill -9 $$")
    expect("the code of a signal", code == 137, code, out, err)
    expect("no command is a wrong usage", run("2")[0] == 2)
    code, out, err = run("1", "--rate", "quick", "--", "true")
    expect("a rate that is none", code == 2 and "--rate quick" in err, code, err)


def check_cuts():
    def pauses(cut):
        code, out, err = run("2", "--bytes", "--cut", cut, "--", sys.executable, "-c", ECHO)
        expect("ranks that hear each other", code == 0 and err.count(" bytes") == 2, code, out, err)
        found = dict(line.strip("[").split("] pause ") for line in out.splitlines())
        return [float(found[str(rank)].split()[0]) for rank in range(2)], [float(found[str(rank)].split()[2]) for rank in range(2)]

    def expect_cut(what, cut, is_so):
        for _ in range(3):  # a busy machine has pauses of its own
            pause, last = pauses(cut)
            if is_so(pause, last):
                return
        expect(what, False, pause, last)

    expect_cut("a link that is back after a second", "0-1@3+1", lambda pause, last: all(0.8 < p < 2 for p in pause) and max(last) < 0.5)
    expect_cut("one way only, for good", "0>1@3", lambda pause, last: pause[0] < 0.5 and last[0] < 0.5 and last[1] > 0.8)
    for cut in ("2@1", "0-0@1", "0@x", "0"):
        code, _, err = run("2", "--cut", cut, "--", "true")
        expect("a cut that is none", code == 2 and f"--cut {cut}" in err, code, err)


def await_line(process, text):
    for line in process.stdout:
        if text in line:
            return
    expect("a line", False, text)


def check_signals():
    grandchild = "sleep 600 & echo ready $!; exec sleep 600"
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        process = start("2", "--", "sh", "-c", grandchild)
        await_line(process, "ready")
        made = tags()
        expect("two hosts and the hub are there", len(spaces(made)) == 3, made, spaces(made))
        process.send_signal(number)
        process.communicate(timeout=60)
        expect("the code says the signal", process.returncode == code, process.returncode)
        expect("no namespace is left", not spaces(made) and not tags(), spaces(made), tags())
    process = start("2", "--", "sh", "-c", grandchild)
    await_line(process, "ready")
    made = tags()
    process.kill()
    process.wait()
    expect("only SIGKILL leaves something", len(spaces(made)) == 3, spaces(made))
    expect("the next one takes that down", run("1", "--", "true")[0] == 0 and not spaces(made) and not tags(), spaces(made), tags())


def check_broken_tool():
    """What `ip` cannot do is a failure: only what a machine does not let us do is a skip."""
    with tempfile.TemporaryDirectory() as folder:
        for words, code in (("RTNETLINK answers: File exists", 1), ("RTNETLINK answers: Operation not permitted", NOT_PERMITTED)):
            tool = pathlib.Path(folder, "ip")
            tool.write_text(f'#!/bin/sh\n[ "$*" = "netns list" ] || {{ echo "{words}" >&2; exit 2; }}\n')
            tool.chmod(0o755)
            process = subprocess.Popen([*TOOL, "1", "--", "true"], stderr=subprocess.PIPE, text=True,
                                       env=dict(os.environ, TMPDIR=FOLDER.name, PATH=f"{folder}:{os.environ['PATH']}"))
            err = process.communicate(timeout=60)[1]
            expect(f"the code of '{words}'", process.returncode == code and words in err, process.returncode, err)


def main():
    code, _, err = run("1", "--", "true")
    if code == NOT_PERMITTED:
        print(f"SKIPPED: {err.strip()}")
        return NOT_PERMITTED
    expect("one rank that does nothing", code == 0, err)
    begin = time.monotonic()
    check_meeting()
    check_failures()
    check_cuts()
    check_signals()
    check_broken_tool()
    print(f"passed in {time.monotonic() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
