"""Ports for the tests in Python."""
import contextlib
import socket


@contextlib.contextmanager
def held_port():
    """A number that nobody else is given meanwhile, at any address; a server that shares addresses, as torch's store does, may listen there."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", 0))
        yield held.getsockname()[1]
