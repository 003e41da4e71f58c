"""The mark on a call that one node of a cluster with users forwards to another.

A forwarding node has recognised the client. It says in headers who that is, from which address and
how it is connected, and marks them: without the cluster's key nobody can say so. A client's own
signature would not do: on a stream that moves to the next master it is as old as the stream.
"""

from collections.abc import Callable, Iterable, Mapping

from duolog_server.compat.grpc.relay.calls import CLIENT_ID, METHOD, OWN, Header
from duolog_server.compat.grpc.words.codes import Refused
from duolog_server.compat.grpc.words.stubs import Code
from duolog_server.node.identity.access.vouching import Vouching

MARK = OWN + "mark"
TIME = OWN + "time"  # milliseconds of the forwarding node's wall clock
SECONDS = 300  # how long a mark is good, and how far clocks may differ


class Marks:
    """Adds marks to headers, and checks them."""

    def __init__(self, vouching: Vouching, wall_ms: Callable[[], int]) -> None:
        self._vouching = vouching
        self._wall_ms = wall_ms

    def added(self, headers: Iterable[Header]) -> list[Header]:
        """The headers, and a mark that covers what this node says in them."""
        made = [*headers, (TIME, str(int(self._wall_ms())))]
        return [*made, (MARK, self._vouching.mark(_covered(dict(made))))]

    def proof(self, user: str, secret: str) -> str:
        """Differs after a change of a user's secret."""
        return self._vouching.mark(("secret", user, secret))

    def check(self, headers: Mapping[str, str | bytes], method: str) -> None:
        """Raise Refused (UNAUTHORIZED) unless a node of the cluster marked them just now, for a
        call of this method.
        """
        if not self._vouching.is_mark(str(headers.get(MARK, "")), _covered(headers)):
            raise Refused(
                Code.UNAUTHORIZED,
                f"only nodes of this cluster may send headers {OWN}*: if one did, give all nodes "
                "the same access.key_file",
            )
        if headers.get(METHOD) != method:
            raise Refused(Code.UNAUTHORIZED, f"the headers {OWN}* are those of another method")
        time = str(headers.get(TIME, ""))
        if not time.isdecimal() or abs(int(time) - self._wall_ms()) > SECONDS * 1000:
            raise Refused(
                Code.UNAUTHORIZED,
                f"the call was forwarded more than {SECONDS} s ago, or the clocks "
                "of two nodes differ by that",
            )


def _covered(headers: Mapping[str, str | bytes]) -> list[str]:
    return [
        word
        for name, value in sorted(headers.items())
        if (name.startswith(OWN) and name != MARK) or name == CLIENT_ID
        for word in (name, str(value))
    ]
