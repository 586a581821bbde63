"""Busy foreign loops of the same priority, in the same session, that cannot outlive whoever starts them."""
import ctypes
import signal
import subprocess
import time

PR_SET_PDEATHSIG = 1


def die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Loops:
    """`count` shells that do nothing for as long as the block lasts."""

    def __init__(self, count):
        self.count, self.processes = count, []

    def __enter__(self):
        for _ in range(self.count):
            self.processes.append(subprocess.Popen(["sh", "-c", "while :; do :; done"], stdin=subprocess.DEVNULL,
                                                   preexec_fn=die_with_parent))
        if self.processes:
            time.sleep(0.2)  # until the kernel has placed them
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()
