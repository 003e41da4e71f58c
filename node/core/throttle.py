"""The throttle: asks the quotas whether something may pass now, and counts what may not.

Rules: quotas are those of the replicated metadata, read anew when a change of them is applied.
Where there are none, `on` is false, and callers check nothing else.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import structlog
from duolog import _errors as sdk

from duolog_server.node.core.metadatalog import MetadataLog
from duolog_server.node.engine.storetimes import StoreTimes
from duolog_server.node.identity.quotas.connections import Connections
from duolog_server.node.identity.quotas.quota import BadQuota, Kind, Limit, Quota, Subject
from duolog_server.node.identity.quotas.quotas import Quotas, Wait, Who
from duolog_server.store.clocks import MonoMs
from duolog_server.store.metadata import Json, TopicConfig

log = structlog.get_logger("duolog.node")

LOOK_AGAIN_SECONDS = 1.0  # a longer wait may have become a shorter one: quotas change
CONNECTION_AGAIN_MS = 1000  # one may end any time
HELD_MS = 10_000  # readers and writers count as held for so long after the last call that was
HELD_MAX = 1000  # groups
REFUSING_MAX = 16  # quotas
HELD_TOPICS_MAX = 64  # of a group: those that were held last


class Throttle:
    """Throttle that the services of a node ask before something passes.

    Attributes:
        on: whether there are any quotas.
        refused: calls over a quota, by what the quota limits and to what; delayed reads included.
    """

    def __init__(self, metadata: MetadataLog, times: StoreTimes) -> None:
        self._metadata = metadata
        self._times = times
        self.quotas = Quotas()
        self.connections = Connections()
        self.on = False
        # Those that were read, by subject; a row is never altered, but replaced.
        self._quota_rows: dict[str, tuple[Json, Quota | None]] = {}
        self.refused: Counter[tuple[Kind, Limit]] = Counter()
        # Groups whose reads are over a quota, with the topics, and until when each counts.
        self._held: dict[str, dict[str, tuple[MonoMs, Wait]]] = {}
        # Quotas that refused sends, in words, and until when each counts.
        self._refusing: dict[str, MonoMs] = {}
        metadata.quotas_changed.append(self._refresh)
        metadata.topic_refused = self._topic_refused

    def _refresh(self, rows: Mapping[str, Json]) -> None:
        before, self._quota_rows = self._quota_rows, {}
        for subject, row in rows.items():
            known = before.get(subject)
            if known is None or known[0] is not row:
                known = row, _quota_of(subject, row)
            self._quota_rows[subject] = known
        found = (quota for _, quota in self._quota_rows.values())
        self.quotas.replace(quota for quota in found if quota is not None)
        self.on = self.quotas.on

    def _counted(self, wait: Wait | None) -> Wait | None:
        if wait is not None:
            self.refused[wait.subject.kind, wait.limit] += 1
        return wait

    # -- messages ------------------------------------------------------------------------------

    def put(self, who: Who, topic: str, size: int, count: int) -> Wait | None:
        """Let messages in, or say why they may not come in now: then nothing is used."""
        now = self._times.mono_ms()
        wait = self.quotas.incoming.take(who, topic, (size, count), now)
        if wait is not None:
            self._refusing.pop(wait.text, None)  # so that the newest are the last
            self._refusing[wait.text] = MonoMs(now + HELD_MS)
            if len(self._refusing) > REFUSING_MAX:
                del self._refusing[next(iter(self._refusing))]
        return self._counted(wait)

    def refusing(self) -> list[str]:
        """Quotas that sends are over, or were a moment ago, in words."""
        now = self._times.mono_ms()
        return sorted(text for text, until in self._refusing.items() if until > now and self.on)

    def read(self, who: Who, topic: str, group: str = "", *, again: bool = False) -> Wait | None:
        """Why nothing may be read now. again: it was asked for before, and is counted already.

        group: as which it is read; empty for a reader without one.
        """
        now = self._times.mono_ms()
        wait = self.quotas.outgoing.wait(who, topic, now)
        if wait is not None and self._metadata.has_group(group):  # any text may come
            if group not in self._held and len(self._held) >= HELD_MAX:
                del self._held[next(iter(self._held))]
            topics = self._held.setdefault(group, {})
            topics.pop(topic, None)  # so that the newest are the last
            topics[topic] = MonoMs(now + HELD_MS), wait
            if len(topics) > HELD_TOPICS_MAX:
                del topics[next(iter(topics))]
        return wait if again else self._counted(wait)

    def holds(self, group: str) -> list[tuple[str, Wait]]:
        """Topics that a group may not read now, or could not a moment ago, and why."""
        now = self._times.mono_ms()
        topics = self._held.get(group, {})
        for topic in [topic for topic, (until, _) in topics.items() if until < now or not self.on]:
            del topics[topic]
        if group in self._held and not topics:
            del self._held[group]
        return [(topic, wait) for topic, (_, wait) in sorted(topics.items())]

    async def may_read(self, who: Who, topic: str, deadline: float, group: str = "") -> Wait | None:
        """Wait while a reader is over a quota, until the deadline; why it still is then.

        Not less where the wait is known to be longer: a client that is answered at once asks again
        at once. deadline: loop time.
        """
        loop, again = asyncio.get_running_loop(), False
        while (wait := self.read(who, topic, group, again=again)) is not None:
            left, again = deadline - loop.time(), True
            if left <= 0:
                return wait
            await asyncio.sleep(min(wait.ms / 1000, left, LOOK_AGAIN_SECONDS))
        return None

    def at_once(self, who: Who, topic: str, size: int, count: int) -> tuple[int, int]:
        """Bytes and messages, so many at most, that one read should return."""
        return self.quotas.outgoing.at_once(who, topic, (size, count), self._times.mono_ms())

    def sent(self, who: Who, topic: str, size: int, count: int) -> None:
        """Messages went out."""
        self.quotas.outgoing.add(who, topic, (size, count), self._times.mono_ms())

    # -- connections and topics ----------------------------------------------------------------

    def joined(self, who: Who, peer: str) -> None:
        """A connection, or a stream on one, begins. Raises Throttled where it may not.

        peer: its address with the port, which tells connections apart.
        """
        wait = None
        if self.on and not self.connections.has(who, peer):
            of_user = self.connections.of_user(who.user)
            of_address = self.connections.of_address(who.address)
            user, client = Subject(Kind.USER, who.user), Subject(Kind.CLIENT, who.address)
            wait = self.quotas.over(Limit.CONNECTIONS, user, of_user) if who.user else None
            wait = wait or self.quotas.over(Limit.CONNECTIONS, client, of_address)
        if wait is not None:
            self._counted(wait)
            raise throttled(wait._replace(ms=CONNECTION_AGAIN_MS))
        self.connections.enter(who, peer)

    @contextmanager
    def joining(self, who: Who, peer: str) -> Iterator[None]:
        """While a stream is open. Raises as `joined`."""
        self.joined(who, peer)
        try:
            yield
        finally:
            self.left(who, peer)

    def left(self, who: Who, peer: str) -> None:
        """It ended."""
        self.connections.leave(who, peer)

    def _topic_refused(self, config: TopicConfig) -> sdk.DuologError | None:
        """Why a topic may not be created."""
        if not self.on:
            return None
        owners = self._metadata.owners()
        wait = self._counted(self.quotas.over_topics(config.name, config.owner, owners))
        return throttled(wait) if wait is not None else None


def _quota_of(subject: str, row: Json) -> Quota | None:
    """The quota of a row; None for one that this version cannot use."""
    try:
        return Quota.from_row(row)
    except BadQuota as error:  # written by a newer version
        log.warning("cannot use a quota", subject=subject, reason=str(error))
        return None


def throttled(wait: Wait) -> sdk.Throttled:
    """The error of a call that is over a quota."""
    return sdk.Throttled(wait.text, wait.ms)
