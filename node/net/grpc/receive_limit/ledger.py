"""How many bytes came on each connection, and how many of them are known as requests.

Rules: what is not known is unfinished: gRPC's core holds it, or has refused it. All of it may take
`bytes_max`; beyond, connections end of which no message arrived for a while, those with the most
unfinished bytes first. Once half of these bytes are in use, connections that never sent a whole
message share a part of them, so that little is held for clients that have not logged in. A single
connection may have as much as the longest message. No IO, no clock.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from duolog_server.store.clocks import MonoMs

Name = tuple[str, int]  # address and port of a client
OWN_BYTES = 256 << 10  # of each connection: windows of HTTP/2, pings, what TLS adds
CALL_BYTES = 256  # of a call, beside its headers and messages
MESSAGE_BYTES = 64  # of a message, beside its payload: frames of gRPC, HTTP/2 and TLS
MESSAGE_PART = 64  # and this part of it
V4_IN_V6 = "::ffff:"
LOOKS = 2  # without a message, before a connection may end: between looks, methods get some
UNSEEN_LOOKS = 4  # at all connections, until one that was heard of is forgotten
SILENT_MS = 200  # without a message, before a connection may end
STRANGERS_PART = 4  # of the bytes, for those that never sent a message
HEARD_PART = 16  # of the unfinished bytes: a connection is heard when its messages have as many
PINGS_MS = 10_000
PINGS_BYTES = 256  # in that time, of a connection that only listens: pings, which nothing reports
FORGOTTEN_MS = 60_000  # without a byte; then FORGOTTEN_BYTES are taken for a miscount
FORGOTTEN_BYTES = 1 << 20  # of calls that were cancelled, or refused unread


@dataclass(slots=True)
class _Connection:
    """heard_ms: when a message arrived, or nothing counted. grew_ms: when any byte came.
    since_ms: since when it had no more unfinished bytes than `before` and some pings. received:
    bytes, at the last look. known: bytes of requests, since then.
    """

    heard_ms: MonoMs
    grew_ms: MonoMs
    since_ms: MonoMs
    before: int = 0
    received: int = 0
    known: int = 0
    unfinished: int = 0
    looks: int = 0  # since it was heard
    is_strange: bool = True  # no message of it has arrived

    @property
    def counts(self) -> int:
        """Bytes that count."""
        return max(0, self.unfinished - OWN_BYTES)

    def is_silent(self, now_ms: MonoMs) -> bool:
        """Whether no message of it has arrived for a while."""
        return now_ms - self.heard_ms >= SILENT_MS and self.looks >= LOOKS

    def see(self, size: int, now_ms: MonoMs) -> None:
        """A look at it. size: bytes that it received since it began."""
        self.heard_ms = self.heard_ms or now_ms  # it may have been heard of before it was seen
        self.unfinished = max(0, self.unfinished + size - self.received - self.known)
        if now_ms - self.since_ms >= PINGS_MS:
            if self.unfinished - self.before <= PINGS_BYTES:
                self.unfinished = min(self.before, self.unfinished)
            self.since_ms, self.before = now_ms, self.unfinished
        if size != self.received:
            self.grew_ms = now_ms
        elif now_ms - self.grew_ms >= FORGOTTEN_MS and self.unfinished < FORGOTTEN_BYTES:
            self.unfinished = 0
        if self.known * HEARD_PART > self.counts or not self.counts:
            self.looks, self.heard_ms = 0, now_ms
        else:
            self.looks += 1
        self.received, self.known = size, 0


@dataclass(slots=True)
class Ledger:
    """The connections of the ports of gRPC.

    bytes_max: of all that is unfinished. message_bytes_max: of the longest message.
    """

    bytes_max: int
    message_bytes_max: int
    unfinished: int = 0  # bytes, at the last look
    _connections: dict[Name, _Connection] = field(default_factory=dict)
    _looked: dict[Name, _Connection] = field(default_factory=dict)  # in this look

    def began(self, name: Name, size: int) -> None:
        """So many bytes of a connection were the headers of a call."""
        self._found(name).known += size

    def known(self, name: Name, size: int) -> None:
        """So many bytes of a connection were a message."""
        found = self._found(name)
        found.known += size
        found.is_strange = False

    def _found(self, name: Name) -> _Connection:
        return self._connections.setdefault(name, _Connection(MonoMs(0), MonoMs(0), MonoMs(0)))

    def look(self, received: Mapping[Name, int], now_ms: MonoMs) -> None:
        """Some connections, in a look at all of them. received: what came on each since it began;
        to be passed in the turn in which it was read, as what is known by then is of these bytes.
        """
        for name, size in received.items():
            found = self._connections.get(name) or _Connection(now_ms, now_ms, now_ms)
            found.see(size, now_ms)
            self._connections[name] = self._looked[name] = found

    def judge(self, all_are_named: bool, now_ms: MonoMs) -> set[Name]:
        """The connections that shall end; it ends the look. all_are_named: it was at all that are
        open, not at those alone that were known before.
        """
        looked, self._looked = self._looked, {}
        for name in self._connections.keys() - looked.keys():
            if not self._is_kept(name, all_are_named):
                del self._connections[name]
        counted = {name: one.counts for name, one in looked.items() if one.counts}
        self.unfinished = sum(counted.values())
        large = sum(size > OWN_BYTES for size in counted.values())
        if large <= 1 and self.unfinished <= self.message_bytes_max:
            return set()
        if self.unfinished <= self.bytes_max // 2:
            return set()
        ended = self._too_many(counted, now_ms)
        for name in ended:
            del self._connections[name]
        return ended

    def _too_many(self, counted: Mapping[Name, int], now_ms: MonoMs) -> set[Name]:
        """Those that end, so that strangers have their part, and all together `bytes_max`."""
        most = self.bytes_max + self.message_bytes_max
        may_end = {
            name
            for name, size in counted.items()
            if size > most or self._connections[name].is_silent(now_ms)
        }
        strange = {n: size for n, size in counted.items() if self._connections[n].is_strange}
        ended = _largest(strange, may_end, self.bytes_max // STRANGERS_PART)
        left = {name: size for name, size in counted.items() if name not in ended}
        return ended | _largest(left, may_end, self.bytes_max)

    def _is_kept(self, name: Name, all_are_named: bool) -> bool:
        """Of one that was not seen: it is gone, or it is new, and was heard of before."""
        one = self._connections[name]
        one.looks += all_are_named and not one.received
        return not all_are_named or (not one.received and one.looks < UNSEEN_LOOKS)


def _largest(counted: Mapping[Name, int], may_end: Iterable[Name], bytes_max: int) -> set[Name]:
    """The largest of some connections that end, so that the others have no more than that."""
    total, ended = sum(counted.values()), set[Name]()
    found = (name for name in may_end if name in counted)
    for name in sorted(found, key=counted.__getitem__, reverse=True):
        if total <= bytes_max:
            break
        total -= counted[name]
        ended.add(name)
    return ended


def name_of(address: str, port: int) -> Name:
    """A client's name, however its address is written."""
    return address.partition("%")[0].removeprefix(V4_IN_V6), port


def size_of(message_bytes: int) -> int:
    """What a message takes on its way, at most."""
    return MESSAGE_BYTES + message_bytes + message_bytes // MESSAGE_PART


__all__ = ["CALL_BYTES", "Ledger", "Name", "name_of", "size_of"]
