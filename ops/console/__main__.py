"""python -m duolog_server.ops.console: the console of a node, which starts it and ends it.

Standard input: a line with its options, then the numbers of its sockets; it stays open as long as
the node lives.
"""

import contextlib
import os
import socket
import sys
import threading

from duolog_server.node.runtime.consoleprocess import ConsoleOptions

NICE = 5  # the node goes first


def main() -> None:
    """Serve until standard input is at its end."""
    with contextlib.suppress(OSError):
        os.nice(NICE)
    options, numbers = sys.stdin.readline(), sys.stdin.readline()
    # Before the rest of the start: a node that ends meanwhile needs its port, too.
    threading.Thread(target=_end_with_the_node, daemon=True).start()
    from duolog_server.ops.console.program import run  # most of a start, and behind the node, too

    sockets = [socket.socket(fileno=int(word)) for word in numbers.split()]
    run(ConsoleOptions.of_line(options), sockets)


def _end_with_the_node() -> None:
    """Wait until standard input is at its end, then end at once.

    A node that is started again needs the port, and nobody waits for what a page still had to say.
    """
    while os.read(0, 1024):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
