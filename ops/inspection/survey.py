"""Survey of a cluster: the answers of all nodes, as input of a diagnosis."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from duolog import (
    Client,
    DuologError,
    GroupDescription,
    NodeStatus,
    QueueMoves,
    Route,
    TopicDescription,
)
from duolog import Timeout as TooSlow
from duolog._admin import patience_with, status_or_refusal
from duolog._background import together
from duolog._client import runtime_of
from duolog._runtime import Runtime

from duolog_server.ops.inspection.doctor.diagnosis import diagnose, second_look
from duolog_server.ops.inspection.doctor.findings import NOTE, Clock, Finding, Seen, replica_of
from duolog_server.store.groupproblems import Patience

NODE_SECONDS = 3.0  # that one node has to answer
GROUPS_SECONDS = 6.0  # that nodes have to go through all groups and topics
AGAIN_SECONDS = 2.0  # until the second look, where the first one found something


async def examine(client: Client, named: Iterable[str], timeout: float) -> list[Finding]:
    """Findings; where any is about nodes, those that persist in a second survey.

    A switch of masters causes no findings about groups, so one survey is enough for these, also
    where they took too long to be read; it may be why a node refused to tell them. named: see
    `look`. timeout: seconds of one look. Raises duolog's errors where no node answers.
    """
    try:
        async with asyncio.timeout(timeout):
            seen = await look(client, named)
        first, unread = diagnose(seen), "" if seen.unread == _too_slow() else seen.unread
        of_nodes = diagnose(replace(seen, groups=(), topics=(), unread=unread))
        if all(finding.severity == NOTE for finding in of_nodes):
            return first
        await asyncio.sleep(AGAIN_SECONDS)
        async with asyncio.timeout(timeout):
            return second_look(first, diagnose(await look(client, named)))
    except DuologError:  # a TooSlow is a TimeoutError
        raise
    except TimeoutError:
        raise TooSlow(f"the nodes did not answer within {timeout} s") from None


async def look(client: Client, named: Iterable[str]) -> Seen:
    """Ask all nodes of the cluster, also for its groups and topics. named: see `look_at_nodes`.

    At one time: one after the other, nodes that are silent and groups that take long would need
    more time than a survey has.
    """
    async with together() as tasks:
        nodes = tasks.create_task(look_at_nodes(client, named))
        consumption = tasks.create_task(_consumption(client))
    return consumption.result().of(nodes.result())


async def look_at_nodes(client: Client, named: Iterable[str]) -> Seen:
    """Ask all nodes of the cluster how they are. named: addresses at which nodes should answer."""
    runtime = runtime_of(client)
    status, route = await asyncio.gather(client.admin.cluster_status(), client.admin.route())
    patience = [patience_with(node, NODE_SECONDS) for node in status.nodes]
    told = await _all_at([_address_of(node, route) for node in status.nodes], runtime, patience)
    nodes = {_key_of(node): node for node in status.nodes}
    refusing = {one.address: one.refusal for one in told if one.refusal}
    unreachable, strangers = set[tuple[str, str]](), dict[str, str]()
    answered = {_key_of(status.nodes[0])}
    for node, one in zip(status.nodes[1:], told[1:], strict=True):  # the first one answered
        key = _key_of(node)
        own = one.status
        if own is not None and own.cluster not in ("", status.cluster):  # older ones say none
            strangers[one.address] = own.cluster
        elif own is not None and _key_of(own) == key:
            nodes[key] = own
            answered.add(key)
        elif not node.stale and one.address and not one.refusal:
            unreachable.add(key)
    silent = []
    namesakes: dict[tuple[str, str], tuple[str, str]] = {}
    known = {node.listen for node in nodes.values()}
    more = await _all_at(sorted(set(named) - known), runtime)
    for one in more:
        if one.refusal:
            refusing[one.address] = one.refusal
        elif one.status is None:
            silent.append(one.address)
        elif one.status.cluster not in ("", status.cluster):
            strangers[one.address] = one.status.cluster
        else:
            key = _key_of(one.status)
            if key in answered and nodes[key].listen != one.status.listen:
                namesakes[key] = (nodes[key].listen, one.status.listen)
                continue
            nodes[key] = one.status  # it may be reached at this address only
            answered.add(key)
            unreachable.discard(key)
    return Seen(
        route,
        tuple(nodes.values()),
        (),
        (),
        _wall_ms(),
        frozenset(unreachable),
        tuple(silent),
        clocks=tuple(
            one.clock
            for one in (*told, *more)
            if one.clock is not None and one.address not in strangers
        ),
        refusing=refusing,
        strangers=strangers,
        namesakes=namesakes,
    )


def _key_of(node: NodeStatus) -> tuple[str, str]:
    """Sort key of a node: its replica group and name."""
    return node.replication.group, node.name


@dataclass(frozen=True, slots=True)
class _Consumption:
    """Consumer groups, topics and moves, or why they cannot be read."""

    groups: Sequence[GroupDescription] = ()
    topics: Sequence[TopicDescription] = ()
    moved: QueueMoves = field(default_factory=QueueMoves)
    unread: str = ""

    def of(self, seen: Seen) -> Seen:
        """A survey of nodes with these."""
        groups, topics = tuple(self.groups), tuple(self.topics)
        return replace(seen, groups=groups, topics=topics, moved=self.moved, unread=self.unread)


async def _consumption(client: Client) -> _Consumption:
    admin, patience = client.admin, Patience()
    try:
        async with asyncio.timeout(GROUPS_SECONDS):
            groups, topics, moved = await asyncio.gather(
                admin.groups(
                    problems_only=True, old_ms=patience.old_ms, stalled_ms=patience.stalled_ms
                ),
                admin.topics(problems_only=True),
                admin.moves(),
            )
    except DuologError as error:
        return _Consumption(unread=f"{type(error).__name__}: {error}")
    except TimeoutError:
        return _Consumption(unread=_too_slow())
    return _Consumption(groups, topics, moved)


def _too_slow() -> str:
    return f"no answer within {GROUPS_SECONDS:.0f} s"


def _address_of(node: NodeStatus, route: Route) -> str:
    """HOST:PORT of a node's client API, empty if unknown."""

    replica = replica_of(route, node)
    return node.listen or (replica.endpoint if replica is not None else "")


@dataclass(frozen=True, slots=True)
class _Told:
    """A node's answer: its status, or why it refuses it.

    clock: None where it does not say what time it is.
    """

    address: str
    status: NodeStatus | None = None
    clock: Clock | None = None
    refusal: str = ""


async def _all_at(
    addresses: Sequence[str], runtime: Runtime, patience: Sequence[float] = ()
) -> list[_Told]:
    """Status of the nodes at some addresses; without those that do not answer.

    patience: how many seconds to wait for each.
    """

    async def at(address: str, seconds: float) -> _Told:
        if not address:
            return _Told(address)
        before, began = _wall_ms(), time.monotonic()
        status = await status_or_refusal(address, seconds, runtime)
        took = int((time.monotonic() - began) * 1000) + 1
        if isinstance(status, DuologError):
            return _Told(address, refusal=f"{type(status).__name__}: {status}")
        if status is None or not status.wall_ms:
            return _Told(address, status)
        ahead = status.wall_ms - before
        return _Told(address, status, Clock(status.name, ahead - took, ahead))

    return await asyncio.gather(*map(at, addresses, patience or [NODE_SECONDS] * len(addresses)))


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
