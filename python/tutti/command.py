"""The command `tutti`, which lies beside the library."""
import os
import sys


def main():
    command = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_lib", "tutti")
    try:
        os.execv(command, ["tutti", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"tutti: {command}: {error.strerror}; install tutti-distributed again")
