"""python -m node.console: the console of a node, which starts it and ends it.

Standard input: a line with its options, then the numbers of its sockets; it stays open as long as
the node lives.
"""

import contextlib
import os
import socket
import sys
import threading
from typing import TYPE_CHECKING

from node.consoleprocess import ConsoleOptions

if TYPE_CHECKING:
    from node.console.serving import Server

NICE = 5  # the node goes first


def main() -> None:
    """Serve until standard input is at its end."""
    with contextlib.suppress(OSError):
        os.nice(NICE)
    from node.console.program import run  # most of a start, and behind the node, too

    options = ConsoleOptions.of_line(sys.stdin.readline())
    numbers = [int(word) for word in sys.stdin.readline().split()]
    sockets = [socket.socket(fileno=number) for number in numbers]

    def wait(server: "Server") -> None:
        while os.read(0, 1024):  # sys.stdin would be locked by this thread when the process ends
            pass
        server.end()

    run(
        options,
        sockets,
        lambda server: threading.Thread(target=wait, args=(server,), daemon=True).start(),
    )


if __name__ == "__main__":
    main()
