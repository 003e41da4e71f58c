"""python -m node.console: the console of a node, which starts it and ends it.

Standard input: a line with its options, then the numbers of its sockets; it stays open as long as
the node lives.
"""

import socket
import sys
import threading

from node.console.program import run
from node.console.serving import Server
from node.consoleprocess import ConsoleOptions


def main() -> None:
    """Serve until standard input is at its end."""
    options = ConsoleOptions.of_line(sys.stdin.readline())
    numbers = [int(word) for word in sys.stdin.readline().split()]
    sockets = [socket.socket(fileno=number) for number in numbers]

    def wait(server: Server) -> None:
        sys.stdin.read()
        server.end()

    run(
        options,
        sockets,
        lambda server: threading.Thread(target=wait, args=(server,), daemon=True).start(),
    )


if __name__ == "__main__":
    main()
