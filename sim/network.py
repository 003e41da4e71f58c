"""A network of streams: loss, delay, duplication, reordering, damage, cuts in one direction.

A stream transfers frames here. A connection whose peer died ends only if the reset arrives;
otherwise it is half-open, and the other end must notice by its own timeouts.
"""

from collections.abc import Callable
from dataclasses import dataclass

from sim.world import World

Deliver = Callable[[bytes], None]


@dataclass(slots=True)
class Weather:
    """The quality of a link; probabilities per frame, delays in ms."""

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    delay_min: float = 0.2
    delay_max: float = 2.0
    flip: float = 0.0  # of one bit of a frame
    mangle: float = 0.0  # a part of a frame is lost, comes twice, is blank, or in another place


class Network:
    """All links. A link is (from, to)."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.weather = Weather()
        self.cuts: set[tuple[str, str]] = set()
        self.lost = 0
        self.flipped = 0
        self.mangled = 0
        self._chance = world.chance("net")

    def is_cut(self, source: str, target: str) -> bool:
        """Nothing gets through in this direction."""
        return (source, target) in self.cuts

    def delay(self) -> float:
        """The delay of one frame."""
        weather = self.weather
        return self._chance.uniform(weather.delay_min, weather.delay_max)

    def carried(self, data: bytes) -> bytes:
        """A frame as it arrives."""
        # Where nothing is damaged, runs of earlier seeds stay what they were.
        if self.weather.mangle and self._chance.random() < self.weather.mangle:
            return self._mangled(data)
        if not self.weather.flip or self._chance.random() >= self.weather.flip:
            return data
        self.flipped += 1
        bit, changed = self._chance.randrange(8 * len(data)), bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        return bytes(changed)

    def _mangled(self, data: bytes) -> bytes:
        """A frame of which a part arrives otherwise."""
        self.mangled += 1
        at = self._chance.randrange(len(data))
        end = self._chance.randint(at + 1, len(data))
        head, part, tail = data[:at], data[at:end], data[end:]
        middle = self._chance.choice((b"", part + part, bytes(len(part))))
        if self._chance.random() < 0.25:
            return head + tail + part
        return head + middle + tail

    def call(self, source: str, target: str, do: Callable[[], None]) -> bool:
        """One datagram of a client's call: it arrives, or it does not (False)."""
        if self.is_cut(source, target) or self._chance.random() < self.weather.loss:
            self.lost += 1
            return False
        self.world.after(self.delay(), do)
        return True


class End:
    """One end of a stream."""

    __slots__ = ("_last", "closed", "name", "network", "on_close", "on_frame", "peer")

    def __init__(self, network: Network, name: str) -> None:
        self.network = network
        self.name = name
        self.closed = False
        self.on_frame: Deliver = lambda data: None
        self.on_close: Callable[[], None] = lambda: None
        self.peer: End = self
        self._last = 0.0

    def send(self, data: bytes) -> None:
        """Send a frame towards the peer."""
        network, peer = self.network, self.peer
        if self.closed:
            return
        chance, weather = network._chance, network.weather
        if network.is_cut(self.name, peer.name) or chance.random() < weather.loss:
            network.lost += 1
            return
        when = network.world.now + network.delay()
        if chance.random() >= weather.reorder:
            when = max(when, self._last)
            self._last = when
        data = network.carried(data)
        network.world.at(when, lambda: peer._arrive(data))
        if chance.random() < weather.duplicate:
            network.world.at(when + network.delay(), lambda: peer._arrive(data))

    def _arrive(self, data: bytes) -> None:
        if not self.closed:
            self.on_frame(data)

    def close(self) -> None:
        """End the stream here; the peer learns of it if the link lets it."""
        if self.closed:
            return
        self.closed = True
        network, peer = self.network, self.peer
        if not network.is_cut(self.name, peer.name):
            network.world.after(network.delay(), peer._closed)

    def _closed(self) -> None:
        if not self.closed:
            self.closed = True
            self.on_close()


def stream(network: Network, client: str, server: str) -> tuple[End, End]:
    """Both ends of a new stream."""
    ours, theirs = End(network, client), End(network, server)
    ours.peer, theirs.peer = theirs, ours
    return ours, theirs
