#!/usr/bin/env python3
"""./dev hosts: ranks on hosts that reach each other, exit codes, and that nothing is left whatever ends it."""
import os
import pathlib
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TOOL = [sys.executable, str(ROOT / "tools" / "hosts.py")]
NOT_PERMITTED = 77

# Every rank says hello to rank 0, over TCP.
MEET = """
import os, socket, sys, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
print("threads", os.environ["OMP_NUM_THREADS"], os.environ["OMP_WAIT_POLICY"], *sorted(n for n in os.environ if n.startswith("TUTTI_")))
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


def spaces():
    return {line.split()[0] for line in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout.splitlines()
            if line.startswith("tutti-hosts-")}


def start(*words):
    env = dict(os.environ, RANK="9", TUTTI_AGENT="@of-another", OMPI_COMM_WORLD_RANK="3")
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


def await_line(process, text):
    for line in process.stdout:
        if text in line:
            return
    expect("a line", False, text)


def check_signals(before):
    grandchild = "sleep 600 & echo ready $!; exec sleep 600"
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        process = start("2", "--", "sh", "-c", grandchild)
        await_line(process, "ready")
        process.send_signal(number)
        process.communicate(timeout=60)
        expect("the code says the signal", process.returncode == code, process.returncode)
        expect("no namespace is left", spaces() <= before, spaces())
    process = start("2", "--", "sh", "-c", grandchild)
    await_line(process, "ready")
    process.kill()
    process.wait()
    expect("only SIGKILL leaves something", spaces() - before)
    expect("the next one takes that down", run("1", "--", "true")[0] == 0 and spaces() <= before, spaces())


def main():
    code, _, err = run("1", "--", "true")
    if code == NOT_PERMITTED:
        print(f"SKIPPED: {err.strip()}")
        return NOT_PERMITTED
    expect("one rank that does nothing", code == 0, err)
    before = spaces()
    begin = time.monotonic()
    check_meeting()
    check_failures()
    check_signals(before)
    print(f"passed in {time.monotonic() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
