"""Planted bugs of lite topics: who is told, who is given what, what is forgotten and when."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from duolog_server.compat.grpc.litetopics import LiteTopics
from duolog_server.compat.grpc.protocol.stubs import definition
from duolog_server.node.engine.queueremoval import QueueRemoval
from duolog_server.node.pop import liteservice
from duolog_server.node.pop.liteservice import LiteService
from duolog_server.node.pop.popservice import PopService
from duolog_server.store.clocks import WallMs
from duolog_server.store.lightqueues import is_light
from duolog_server.store.puts import LightPuts
from duolog_server.store.queueends import QueueEnds
from sim.faults import LITE_ON, NODES, Fault, loads
from sim.litehistory import PARENT
from sim.mutants_services import taking_turns, with_services
from sim.planted import Bugs, Patch, left_out, left_out_later


def with_lite(seed: int) -> list[Fault]:
    """A run's usual faults, and programs that use lite topics, alone."""
    return sorted([*with_services(seed), Fault(0.0, LITE_ON, NODES[0])], key=lambda fault: fault.at)


def _switching(seed: int) -> list[Fault]:
    """Lite topics, and masters that take turns."""
    return taking_turns(seed, LITE_ON)


def _restarting(seed: int) -> list[Fault]:
    """A kept run: a node restarts that knows what is forgotten before its queues have it."""
    kept = Path(__file__).parent / "regressions" / "lite_forgotten_undispatched_5042.json"
    return loads(kept.read_text())[1]


# -- who is told, and who is given what ------------------------------------------------------------


def _everybody_is_told() -> list[Patch]:
    """A queue is one of everybody's who subscribes to anything."""

    def notify(self: Any, queue: str, group: str = "") -> None:
        for groups in self._subscribers.values():
            for subscriber in groups.values():
                if group in ("", subscriber.group):
                    subscriber.notify(queue)

    return [(LiteService, "notify", notify)]


def _not_told_again() -> list[Patch]:
    """A queue that has messages to give again is nobody's."""
    original = PopService._wake

    def wake(self: Any, key: Any) -> None:
        if not is_light(key[0]):
            original(self, key)

    return [(PopService, "_wake", wake)]


def _still_ready() -> list[Patch]:
    """Who subscribes to less is given what was ready for it."""
    original = LiteService.unsubscribe

    def unsubscribe(self: Any, subscriber: Any, queues: Iterable[str]) -> None:
        ready = dict(subscriber.ready)
        original(self, subscriber, queues)
        subscriber.ready = ready

    return [(LiteService, "unsubscribe", unsubscribe)]


def _rivals_stay() -> list[Patch]:
    return [(liteservice, "is_exclusive", lambda row: False)]


def _repeats_take_over() -> list[Patch]:
    original = LiteService.subscribe

    def subscribe(self: Any, subscriber: Any, queues: Iterable[str], takes_over: bool) -> None:
        original(self, subscriber, queues, True)

    return [(LiteService, "subscribe", subscribe)]


def _repeats_add() -> list[Patch]:
    """What a client does not repeat, it still subscribes to."""
    original = LiteTopics.note

    def note(self: Any, request: Any, client: Any) -> None:
        known = self._lite.subscriber(client.client_id, request.group.name, PARENT)
        before = list(known.queues)
        original(self, request, client)
        if request.action == definition.COMPLETE_ADD:
            self._lite.subscribe(known, before, False)

    return [(LiteTopics, "note", note)]


def _uncounted() -> list[Patch]:
    """Who leaves is counted as before."""
    original = LiteService.leave

    def leave(self: Any, subscriber: Any) -> None:
        count = self.subscriptions
        original(self, subscriber)
        self.subscriptions = count

    return [(LiteService, "leave", leave)]


def _out_of_order() -> list[Patch]:
    """A light queue gives more while its messages are out."""
    original = PopService._state

    def state(self: Any, key: Any) -> Any:
        found = original(self, key)
        found.orderly = found.orderly and not is_light(key[0])
        return found

    return [(PopService, "_state", state)]


# -- what is forgotten -----------------------------------------------------------------------------


def _expires_early() -> list[Patch]:
    original = LiteService.expired

    def expired(self: Any, names: list[str], age_ms: int) -> list[str]:
        return original(self, names, WallMs(age_ms + 400))

    return [(LiteService, "expired", expired)]


def _unread_is_old() -> list[Patch]:
    """A lite topic is as old as the newest message that can be read."""

    def last_time(self: Any, name: str) -> int:
        _, end = self._core.store.queue_range(name, 0)
        return int(self._core.positions.store_time(name, 0, end - 1))

    return [(LiteService, "_last_time", last_time)]


def _forgotten_is_given() -> list[Patch]:
    """What is forgotten is given until its files are removed."""

    def forget(self: Any, ends: dict[str, int]) -> None:
        self._drop([key for key in self._queues if key[0] in ends])

    return [(PopService, "forget_queues", forget)]


def _dropped_late() -> list[Patch]:
    """What is out of a queue that began again is given again once the old files are removed."""

    def removed(self: Any, names: Iterable[str]) -> None:
        self._drop([key for key in self._queues if key[0] in names])

    return [(PopService, "removed", removed)]


def _removed_whole() -> list[Patch]:
    """A queue that began again is removed as well."""

    async def remove(self: Any, ends: dict[str, int]) -> None:
        async with self._work.changes:
            for name in ends:
                self._queues.remove(name, 0)
                self._queues.remove_directory(name)

    return [(QueueRemoval, "remove_light", remove)]


def _removed_unseen() -> list[Patch]:
    """A queue is taken for gone before its messages are dispatched."""

    async def remove(self: Any) -> None:
        going, self._going = self._going, {}
        await self._removal.remove_light(going)
        self._pop.removed(going)

    return [(LiteService, "_remove_forgotten", remove)]


def _without_limit() -> list[Patch]:
    """Light queues that begin anew are not counted."""
    original = QueueEnds.forget

    def forget(self: Any, key: Any) -> None:
        original(self, key)
        self.light_count = 0

    return [(QueueEnds, "forget", forget)]


_bug = Bugs(with_lite)


LITE = [
    _bug("lite-everybody-told", "a lite topic's messages are everybody's", _everybody_is_told),
    _bug("lite-arrivals-untold", "nobody is told of a message", left_out(LiteService, "arrived")),
    _bug("lite-not-told-again", "nobody is told of what comes again", _not_told_again),
    _bug("lite-still-ready", "who unsubscribes is given what was ready", _still_ready),
    _bug(
        "lite-everything-stays",
        "who asked for everything gets it for ever",
        left_out(LiteService, "unsubscribe_from_all"),
    ),
    _bug("lite-rivals-stay", "an exclusive lite topic has two subscribers", _rivals_stay),
    _bug("lite-repeats-take-over", "a repeat takes a lite topic over", _repeats_take_over),
    _bug("lite-repeats-add", "what is not repeated stays subscribed to", _repeats_add),
    _bug("lite-uncounted", "the subscriptions of who left still count", _uncounted),
    _bug("lite-out-of-order", "a lite topic gives on", _out_of_order),
    _bug(
        "lite-role-untold",
        "a new master tells nobody what there is",
        left_out(LiteService, "role_changed"),
        _switching,
    ),
    _bug("lite-expires-early", "a lite topic is forgotten too early", _expires_early),
    _bug("lite-unread-is-old", "a message that cannot be read yet is overlooked", _unread_is_old),
    _bug(
        "lite-files-stay",
        "forgotten queues are not removed",
        left_out_later(QueueRemoval, "remove_light"),
    ),
    _bug("lite-forgotten-given", "what is forgotten is given", _forgotten_is_given),
    _bug("lite-dropped-late", "what began again is given to two", _dropped_late),
    _bug("lite-removed-whole", "what began again is removed", _removed_whole),
    _bug("lite-removed-unseen", "a restart shows old messages", _removed_unseen, _restarting),
    _bug("lite-forgotten-meanwhile", "stored while it is forgotten", left_out(LightPuts, "hold")),
    _bug("lite-without-limit", "light queues are not counted", _without_limit),
]
