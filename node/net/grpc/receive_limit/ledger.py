"""How many bytes came on each connection, and how many of them are known as requests.

Rules: what is not known is unfinished: gRPC's core holds it, or has refused it. All of it may take
`bytes_max`; beyond, connections end of which no message arrived for a while, those with the most
unfinished bytes first. Connections that never sent a whole message may have a part of it, and end
sooner. A single connection may have as much as the longest message. A connection without a call
that waits for a message has none to send: it sends headers without an end, and ends with few of
them, though not at once, as its calls may wait to be taken. No IO, no clock.
"""

from collections.abc import Mapping, Set
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
SILENT_MS = 200  # without a message
# Of one of which none has arrived yet, and without a call that began on any. Calls of a method are
# taken one by one: those of many clients that connect anew wait for each other, with their
# messages, and are no calls until they are taken.
STRANGERS_SILENT_MS = 30
UNCALLED_BYTES = 256 << 10  # of one without a call that waits: the headers of a thousand calls
UNCALLED_MS = 5_000  # since it has more than its own, whatever others do
STRANGERS_PART = 4  # of the bytes, together, once half of all of them are in use
HEARD_PART = 16  # of what is unfinished that messages have to be, so that its connection is heard
PINGS_MS = 10_000
PINGS_BYTES = 256  # in it, of one that sends nothing else: keep-alives, which gRPC does not report
FORGOTTEN_MS = 60_000  # without a byte; then what little is unfinished is taken for a miscount
FORGOTTEN_BYTES = 1 << 20  # so little: calls that were given up, or refused unread


@dataclass(slots=True)
class _Connection:
    """heard_ms: when a message arrived, or nothing counted. grew_ms: when any byte came.
    since_ms: since when it had no more unfinished than `before` and some pings. received:
    bytes, at the last look. known: of requests, since then. is_strange: no message arrived yet.
    waits: calls whose messages have not all come. excused: bytes that are unfinished, and no
    headers without an end: those of before a call began, as headers come one after the other,
    and those of a call that was given up, at the next look (gives_up).
    """

    heard_ms: MonoMs
    grew_ms: MonoMs
    since_ms: MonoMs
    before: int = 0
    received: int = 0
    known: int = 0
    unfinished: int = 0
    looks: int = 0
    is_strange: bool = True
    waits: int = 0
    gives_up: bool = False
    excused: int = 0

    @property
    def counts(self) -> int:
        """Bytes that count."""
        return max(0, self.unfinished - OWN_BYTES)

    def calls_nothing(self, now_ms: MonoMs, quiet_ms: int) -> bool:
        """Whether it said far more than a connection does before a call, for long."""
        if self.waits or self.unfinished - self.excused <= OWN_BYTES + UNCALLED_BYTES:
            return False
        return self._is_silent(now_ms, quiet_ms, UNCALLED_MS)

    def may_end(self, now_ms: MonoMs, quiet_ms: int) -> bool:
        """Whether no message of it has arrived for long. quiet_ms: without a call, on any."""
        return self._is_silent(now_ms, quiet_ms if self.is_strange else 0, SILENT_MS)

    def _is_silent(self, now_ms: MonoMs, quiet_ms: int, most_ms: int) -> bool:
        silent_ms = now_ms - self.heard_ms
        is_long = silent_ms >= most_ms or min(silent_ms, quiet_ms) >= STRANGERS_SILENT_MS
        return is_long and self.looks >= LOOKS


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
    _counted: dict[Name, int] = field(default_factory=dict)  # of these: bytes that count
    _has_begun: bool = False  # a call, since the last look
    _began_ms: MonoMs = MonoMs(0)  # when one had, at a look

    def began(self, name: Name, size: int) -> None:
        """So many bytes of a connection were the headers of a call."""
        found = self._found(name)
        found.known += size
        found.waits += 1
        found.excused = found.unfinished
        self._has_begun = True

    def over(self, name: Name, gave_up: bool) -> None:
        """A call waits for no message any more. gave_up: it was given up before they all came:
        what is here of them stays unfinished, and is no headers without an end.
        """
        found = self._connections.get(name)
        if found is not None:
            found.waits = max(0, found.waits - 1)
            found.gives_up |= gave_up

    def known(self, name: Name, size: int) -> None:
        """So many bytes of a connection were a message."""
        found = self._found(name)
        found.known += size
        found.is_strange = False

    def _found(self, name: Name) -> _Connection:
        found = self._connections.get(name)
        if found is None:
            found = self._connections[name] = _Connection(MonoMs(0), MonoMs(0), MonoMs(0))
        return found

    def look(self, received: Mapping[Name, int], now_ms: MonoMs) -> None:
        """Some connections, in a look at all of them. received: what came on each since it began;
        to be noted in the turn in which it was read, as what is known by then is known of these
        bytes.
        """
        for name, size in received.items():
            found = self._found_at(name, size, now_ms)
            self._connections[name] = self._looked[name] = found
            counts = found.counts
            if counts:
                self._counted[name] = counts

    def judge(self, all_are_named: bool, now_ms: MonoMs) -> set[Name]:
        """The connections to end; it ends the look. all_are_named: it was at all that are
        open, not at those alone that were known before.
        """
        if self._has_begun:
            self._has_begun, self._began_ms = False, now_ms
        quiet_ms = now_ms - self._began_ms
        looked, self._looked = self._looked, {}
        counted, self._counted = self._counted, {}
        for name in self._connections.keys() - looked.keys():
            if not self._is_kept(name, all_are_named):
                del self._connections[name]
        self.unfinished = total = sum(counted.values())
        ended = {name for name in counted if looked[name].calls_nothing(now_ms, quiet_ms)}
        left = {name: size for name, size in counted.items() if name not in ended}
        large = sum(size > OWN_BYTES for size in counted.values())
        if (large > 1 or total > self.message_bytes_max) and total > self.bytes_max // 2:
            ended |= self._scarce(left, looked, now_ms)
        for name in ended:
            del self._connections[name]
        return ended

    def _scarce(
        self,
        left: Mapping[Name, int],
        looked: Mapping[Name, _Connection],
        now_ms: MonoMs,
    ) -> set[Name]:
        """The connections to end where all of them together have too much."""
        quiet_ms = now_ms - self._began_ms
        strange = {name: size for name, size in left.items() if looked[name].is_strange}
        may_end = {
            name
            for name, size in left.items()
            if looked[name].may_end(now_ms, quiet_ms)
            or size > self.bytes_max + self.message_bytes_max
        }
        ended = _too_many(strange, may_end, self.bytes_max // STRANGERS_PART)
        left = {name: size for name, size in left.items() if name not in ended}
        return ended | _too_many(left, may_end, self.bytes_max)

    def _is_kept(self, name: Name, all_are_named: bool) -> bool:
        """Of one that was not seen: it is gone, or it is new, and was heard of before."""
        one = self._connections[name]
        one.looks += all_are_named and not one.received
        return not all_are_named or (not one.received and one.looks < UNSEEN_LOOKS)

    def _found_at(self, name: Name, size: int, now_ms: MonoMs) -> _Connection:
        one = self._connections.get(name) or _Connection(now_ms, now_ms, now_ms)
        one.heard_ms = one.heard_ms or now_ms  # it may have been heard of before it was seen
        one.unfinished = max(0, one.unfinished + size - one.received - one.known)
        if now_ms - one.since_ms >= PINGS_MS:
            if one.unfinished - one.before <= PINGS_BYTES:
                one.unfinished = min(one.before, one.unfinished)
            one.since_ms, one.before = now_ms, one.unfinished
        if size != one.received:
            one.grew_ms = now_ms
        elif now_ms - one.grew_ms >= FORGOTTEN_MS and one.unfinished < FORGOTTEN_BYTES:
            one.unfinished = 0
        if one.known * HEARD_PART > one.counts or not one.counts:
            one.looks, one.heard_ms = 0, now_ms
        else:
            one.looks += 1
        one.received, one.known = size, 0
        if one.gives_up:
            one.excused, one.gives_up = one.unfinished, False
        one.excused = min(one.excused, one.unfinished)
        return one


def _too_many(counted: Mapping[Name, int], may_end: Set[Name], bytes_max: int) -> set[Name]:
    """Connections to end, so that the others keep within the limit."""
    total, ended = sum(counted.values()), set[Name]()
    for name in sorted(may_end & counted.keys(), key=counted.__getitem__, reverse=True):
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
