"""Planted bugs of group coordination, of the SDK's policy and of sinks."""

import itertools
import math
import random
from dataclasses import replace
from typing import Any

from duolog._batcher import Batcher, Filling
from duolog._groupreader import GroupReader
from duolog._membership import SharingMember
from duolog._posted import Posting
from duolog._prefetch import Prefetch
from duolog._sending import WEAK, Sender, _Delivery
from duolog.wire import duolog_pb2 as wire

from duolog_server.node.api.groups import GroupsService
from duolog_server.node.consuming import reading
from duolog_server.node.consuming.groups import NO_GRACE, GroupCoordinator, Heartbeat
from duolog_server.node.core.metadatalog import MetadataLog
from duolog_server.node.service import publishservice
from duolog_server.node.service.publishservice import PublishService
from duolog_server.store.metadata import Metadata
from sim.channels import CLIENT
from sim.faults import NODES, SDK_ON, SERVICES_ON, Fault
from sim.mutants_services import taking_turns, with_sdk
from sim.mutants_steps import at_steps
from sim.planted import Bugs, Patch, left_out_later
from sim.sdkhistory import PUBLISHED, WRITTEN
from sim.services import SimBroker

# -- the node's groups -----------------------------------------------------------------------------


def _claims_believed() -> list[Patch]:
    """What a member says that it reads is its own, whoever was given it meanwhile."""
    original = GroupCoordinator.heartbeat

    def heartbeat(self: Any, group: str, member: str, beat: Heartbeat, *rest: Any) -> Any:
        answer = original(self, group, member, beat, *rest)
        if answer is not None:
            self._groups[group].members[member].owned = set(beat.owned)
        return answer

    return [(GroupCoordinator, "heartbeat", heartbeat)]


def _commits_go_back() -> list[Patch]:
    """A commit that arrives after a newer one counts."""
    original = Metadata._apply_offsets
    return [
        (
            Metadata,
            "_apply_offsets",
            lambda self, change: original(self, {**change, "forward": False}),
        )
    ]


def _reads_go_back() -> list[Patch]:
    """The next master tells where a group was before the message that it consumed last."""
    original = GroupsService.Offsets

    async def offsets(self: Any, request: Any, context: Any) -> wire.OffsetsReply:
        reply = await original(self, request, context)
        if self._admission.masterships()[0] > 1:
            for row in reply.offsets:
                row.offset = max(row.offset - 1, min(row.offset, 0))
        return reply

    return [(GroupsService, "Offsets", offsets)]


def _unheard_commits() -> list[Patch]:
    """A new master takes commits before it has heard who reads what."""
    original = GroupCoordinator.may_commit

    def may_commit(self: Any, *asked: Any) -> bool:
        grace_until, self._grace_until_ms = self._grace_until_ms, NO_GRACE
        try:
            return original(self, *asked)
        finally:
            self._grace_until_ms = grace_until

    return [(GroupCoordinator, "may_commit", may_commit)]


def _groups_kept() -> list[Patch]:
    """A master that leads again knows its members of the last time, and no grace."""
    return [(GroupCoordinator, "begin_again", lambda self, grace_until: None)]


# -- the SDK's policy ------------------------------------------------------------------------------


def _begins_behind() -> list[Patch]:
    """A queue is taken over behind its first message that nobody has consumed."""
    original = GroupReader._read_from

    def read_from(self: Any, starts: dict[Any, int]) -> None:
        original(self, {queue: offset + (offset > 0) for queue, offset in starts.items()})

    return [(GroupReader, "_read_from", read_from)]


def _place_forgotten() -> list[Patch]:
    """Where a group begins is kept nowhere until something of the queue was consumed."""

    async def begin(self: Any, queues: Any, begun: Any) -> dict[Any, int]:
        return {queue: await self._offset_at(queue, self._start) for queue in queues}

    return [*left_out_later(MetadataLog, "begin")(), (GroupReader, "_begin", begin)]


def _reads_on() -> list[Patch]:
    """What goes to another member is read until the stream breaks."""
    original = Prefetch.end

    def end(self: Any, queues: Any) -> None:
        if len(list(queues)) > 1:
            original(self, queues)

    return [(Prefetch, "end", end)]


def _fetched_is_consumed() -> list[Patch]:
    """What arrives counts as consumed."""
    original = GroupReader._take

    def take(self: Any, reply: Any) -> None:
        original(self, reply)
        if reply.count:
            self._consumed((reply.topic, reply.queue_id), reply.next_offset)

    return [(GroupReader, "_take", take)]


def _claims_kept() -> list[Patch]:
    """A member claims what it read last, however long nobody has heard it."""
    original = SharingMember.share

    async def share(self: Any, owned: Any) -> Any:
        self._known_until = math.inf
        return await original(self, owned)

    return [(SharingMember, "share", share)]


def _forfeits_claimed() -> list[Patch]:
    """A member that is heard again claims what it read before it was silent."""

    async def share(self: Any, owned: Any) -> Any:
        async with self._sharing:
            given = await self._share(sorted(owned))
            self._reads.update(owned)
            return given

    return [(SharingMember, "share", share)]


def _old_claims_believed() -> list[Patch]:
    """A member claims what a master before the last one told it."""
    original = GroupCoordinator.heartbeat

    def heartbeat(self: Any, group: str, member: str, beat: Heartbeat, *rest: Any) -> Any:
        return original(self, group, member, replace(beat, outdated=False), *rest)

    return [(GroupCoordinator, "heartbeat", heartbeat)]


def _new_sequence() -> list[Patch]:
    """A repeat is a new message."""
    original = _Delivery._try

    async def attempt(self: Any) -> Any:
        self._request.sequence = self._sender.take_sequences(self._batch.count)
        return await original(self)

    return [(_Delivery, "_try", attempt)]


def _unknown_is_refused() -> list[Patch]:
    """A send that had no answer is told as one that was not stored."""
    return [(_Delivery, "_told", lambda self, error: error)]


def _weak_is_success() -> list[Patch]:
    """What the master stored and could not confirm counts as sent."""
    return [(Sender, "accepts", lambda self, status: status in (wire.PUT_OK, *WEAK))]


def _masters_unheard(seed: int) -> list[Fault]:
    """Weather: nodes that do not reach one another for a while, and then a death."""
    chance = random.Random(seed)
    found = [Fault(0.0, SERVICES_ON, NODES[0]), Fault(0.0, SDK_ON, NODES[0])]
    at = 900.0
    while at < 3300:
        for node in NODES:
            for other in NODES:
                if other != node:
                    found.append(Fault(at, "cut_one_way", node, other, 700.0))
        for node in NODES:
            found.append(Fault(at + 500, "kill", node, lasts=chance.uniform(50, 400)))
        at += chance.uniform(1500, 1900)
    return sorted(found, key=lambda fault: fault.at)


# -- sinks -----------------------------------------------------------------------------------------


def _side_by_side() -> list[Patch]:
    """Each message of a queue goes out at once, in a batch of its own."""
    original = Batcher.add

    def add(self: Any, filling: Filling, *message: Any) -> Any:
        filling.limit = 99
        self._shut(filling)
        handle = original(self, filling, *message)
        self._shut(filling)
        return handle

    return [(Batcher, "add", add), (Filling, "enough", lambda self, others: True)]


def _misplaced() -> list[Patch]:
    """Places are counted from the end of what was sent together."""
    original = Posting.receipt_of
    return [
        (
            Posting,
            "receipt_of",
            lambda self, place: original(self, self._count - 1 - place),
        )
    ]


def _number_again() -> list[Patch]:
    """A number that was published is published again."""
    original = Metadata._apply_publish

    def apply(self: Any, change: Any) -> None:
        row = self.sinks.get(change["sink"])
        if row is not None:
            row["batch"] = -1
        original(self, change)

    return [(Metadata, "_apply_publish", apply)]


def _ids_by_chance() -> list[Patch]:
    """The next master stores what was published under an id of its own."""
    numbers = itertools.count()

    class Hash:
        """Another one each time."""

        def __init__(self, data: bytes, digest_size: int) -> None:
            self._size = digest_size

        def digest(self) -> bytes:
            """A number."""
            return next(numbers).to_bytes(self._size, "big")

    class Hashes:
        """In the place of the module."""

        blake2b = Hash

    return [(publishservice, "hashlib", Hashes)]


def _parts_passed_over() -> list[Patch]:
    """A note tells of one part more than is stored."""
    original = MetadataLog.note

    def note(self: Any, change: Any) -> None:
        more = {"done": change["done"] + 1} if change["op"] == "published" else {}
        original(self, {**change, **more})

    return [(MetadataLog, "note", note)]


def _rest_left_out() -> list[Patch]:
    """Of a part that a log was cut in, the rest is never stored."""
    original = publishservice._Earlier.held

    async def held(self: Any, request: Any) -> int:
        count = await original(self, request)
        return publishservice._count(request) if count else 0

    return [(publishservice._Earlier, "held", held)]


def _faltering(seed: int) -> list[Fault]:
    """Weather: members stand still for about as long as a session, or are killed."""
    chance = random.Random(seed)
    found = [Fault(0.0, SERVICES_ON, NODES[0]), Fault(0.0, SDK_ON, NODES[0])]
    at = 700.0
    while at < 3800:
        kind = chance.choice(("member_pause", "member_pause", "member_pause", "member_kill"))
        found.append(Fault(at, kind, NODES[0], "", chance.uniform(700, 1800), chance.random()))
        at += chance.uniform(150, 500)
    return found


def _held_up(seed: int) -> list[Fault]:
    """Weather: the SDK's programs, and connections that hold up what is sent."""
    chance = random.Random(seed)
    found = [Fault(0.0, SERVICES_ON, NODES[0]), Fault(0.0, SDK_ON, NODES[0])]
    at = 700.0
    while at < 3800:
        lasts = chance.uniform(300, 1400)
        found += [Fault(at, "cut_link", node, CLIENT, lasts) for node in NODES]
        at += lasts + chance.uniform(100, 400)
    return found


def _publishers_die(seed: int) -> list[Fault]:
    """Weather: publishers that are killed, and a network that loses and delays."""
    chance = random.Random(seed)
    found = [Fault(0.0, SERVICES_ON, NODES[0]), Fault(0.0, SDK_ON, NODES[0])]
    for k in range(6):
        level = chance.uniform(0.5, 1.0)
        found.append(Fault(600.0 + 550 * k, "weather", NODES[0], lasts=500.0, level=level))
    at = 600.0
    while at < 3600:
        found.append(Fault(at, "publisher_kill", NODES[0], level=chance.random()))
        at += chance.uniform(40, 150)
    return sorted(found, key=lambda fault: fault.at)


def _full_now_and_then(seed: int) -> list[Fault]:
    """Weather: publishers, and disks that are full again and again for a moment."""
    chance = random.Random(f"{seed}:disks")
    found = [Fault(0.0, SERVICES_ON, NODES[0]), Fault(0.0, SDK_ON, NODES[0])]
    at = chance.uniform(250, 450)
    while at < 3500:
        lasts = chance.uniform(50, 150)
        found += [Fault(at, "full_disk", node, lasts=lasts) for node in NODES]
        at += lasts + chance.uniform(50, 200)
    return found


def _parts_cut(seed: int) -> list[Fault]:
    """Weather: masters that die behind a part, and a network that delays what they sent of it."""
    found = at_steps(f"after {PUBLISHED}", sdk=True)(seed)
    chance = random.Random(seed)
    for k in range(6):
        level = chance.uniform(0.6, 1.0)
        found.append(Fault(600.0 + 550 * k, "weather", NODES[0], lasts=500.0, level=level))
    return sorted(found, key=lambda fault: fault.at)


def _silent_between_masters(seed: int) -> list[Fault]:
    """Weather: members that stand still for longer than a session, until the next master leads."""
    chance = random.Random(seed)
    found = [Fault(0.0, SERVICES_ON, NODES[0]), Fault(0.0, SDK_ON, NODES[0])]
    at = 700.0
    while at < 2800:
        lasts = chance.uniform(1300, 1700)
        found.append(Fault(at, "member_pause", NODES[0], "", lasts, chance.random()))
        at += lasts
        switch = at - chance.uniform(20, 300)
        found.append(Fault(switch, "switch_master", NODES[0], level=chance.random()))
        at += chance.uniform(100, 400)
    return found


def _woken_under_the_next_master(seed: int) -> list[Fault]:
    """Weather: members that stand still for longer than a session, and go on as a master begins."""
    chance = random.Random(seed)
    found = [Fault(0.0, SERVICES_ON, NODES[0]), Fault(0.0, SDK_ON, NODES[0])]
    at = 900.0
    while at < 3000:
        lasts = chance.uniform(1400, 1700)
        found.append(Fault(at, "member_pause", NODES[0], "", lasts, chance.random()))
        at += lasts
        switch = at - chance.uniform(80, 250)
        found.append(Fault(switch, "switch_master", NODES[0], level=chance.random()))
        at += chance.uniform(300, 600)
    return found


def _silent_beyond_the_grace(seed: int) -> list[Fault]:
    """Weather: members that stand still for longer than a new master's grace, not for a session."""
    chance = random.Random(seed)
    found = [Fault(0.0, SERVICES_ON, NODES[0]), Fault(0.0, SDK_ON, NODES[0])]
    at = 900.0
    while at < 3000:
        found.append(Fault(at, "switch_master", NODES[0], level=chance.random()))
        at += chance.uniform(0, 60)
        lasts = chance.uniform(750, 950)
        found.append(Fault(at, "member_pause", NODES[0], "", lasts, chance.random()))
        at += lasts + chance.uniform(300, 600)
    return found


def _unheard_by_one_master(seed: int) -> list[Fault]:
    """Weather: members that stand still while a master comes and goes, for less than a session."""
    chance = random.Random(seed)
    found = [Fault(0.0, SERVICES_ON, NODES[0]), Fault(0.0, SDK_ON, NODES[0])]
    at = 900.0
    while at < 3000:
        lasts = chance.uniform(800, 950)
        found.append(Fault(at, "member_pause", NODES[0], "", lasts, chance.random()))
        for switch in (at + chance.uniform(0, 40), at + lasts - chance.uniform(40, 160)):
            found.append(Fault(switch, "switch_master", NODES[0], level=chance.random()))
        at += lasts + chance.uniform(300, 600)
    return found


def _segments_lost(seed: int) -> list[Fault]:
    """Weather: nodes that lose segments while readers move about."""
    chance = random.Random(seed)
    found = [Fault(0.0, SERVICES_ON, NODES[0]), Fault(0.0, SDK_ON, NODES[0])]
    at = 1200.0
    while at < 3700:
        node = chance.choice(NODES)
        found.append(Fault(at, "lose_segment", node, lasts=1.0, level=chance.random()))
        found += [Fault(at + 1, "cut_link", node, other, 300.0) for other in NODES if other != node]
        at += chance.uniform(300, 600)
    return found


def _taking_turns(seed: int) -> list[Fault]:
    """Weather: the SDK's programs, and masters that take turns."""
    return taking_turns(seed, SDK_ON)


_bug = Bugs(with_sdk)


SDK = [
    _bug(
        "group-two-readers",
        "a queue goes to another member before its reader let go of it",
        lambda: [(GroupCoordinator, "_held_by_others", staticmethod(lambda group, name: set()))],
    ),
    _bug(
        "group-no-grace",
        "a new master gives away what members read",
        lambda: [(SimBroker, "group_grace_ms", 0)],
    ),
    _bug(
        "group-claims-believed",
        "a silent member takes its queue back",
        _claims_believed,
        _silent_beyond_the_grace,
    ),
    _bug(
        "group-stale-commits",
        "anybody commits for a queue",
        lambda: [(GroupCoordinator, "may_commit", lambda self, *_: True)],
        _faltering,
    ),
    _bug(
        "group-unheard-commits",
        "a new master takes a silent member's commit for a queue that another one reads",
        _unheard_commits,
        _woken_under_the_next_master,
    ),
    _bug(
        "group-commits-unstored",
        "a commit is answered, and not stored",
        left_out_later(MetadataLog, "commit"),
    ),
    _bug("group-commits-back", "an older commit takes a group back", _commits_go_back, _held_up),
    _bug(
        "group-reads-back",
        "after a failover a group is told to be where it was before",
        _reads_go_back,
    ),
    _bug(
        "groups-untold",
        "members of an old mastership are believed",
        _groups_kept,
        _taking_turns,
    ),
    _bug(
        "group-silent-claims",
        "a member that was silent for too long claims what it read",
        _claims_kept,
        _silent_between_masters,
    ),
    _bug(
        "group-forfeits-claimed",
        "a member claims what it lost to others by its silence, once it was heard again",
        _forfeits_claimed,
        _woken_under_the_next_master,
    ),
    _bug(
        "group-old-claims",
        "a member claims what a master that never heard of it may have given to others",
        _old_claims_believed,
        _unheard_by_one_master,
    ),
    _bug(
        "group-slave-passes-over",
        "a damaged slave has readers pass over what its master has",
        lambda: [(reading, "_passes_over", lambda result: False)],
        _segments_lost,
    ),
    _bug("group-begins-behind", "a message is passed over by who takes over", _begins_behind),
    _bug(
        "group-place-forgotten",
        "a group that began at the latest message begins again where nothing was consumed",
        _place_forgotten,
    ),
    _bug("group-reads-on", "a queue that was taken away is read on", _reads_on),
    _bug("group-fetched-is-consumed", "what arrives counts as consumed", _fetched_is_consumed),
    _bug(
        "send-new-sequence",
        "a repeat is a new message",
        _new_sequence,
        at_steps(f"after {WRITTEN}", sdk=True),
    ),
    _bug(
        "send-unknown-is-refused",
        "no answer is told as not stored",
        _unknown_is_refused,
        at_steps(f"after {WRITTEN}", sdk=True),
    ),
    _bug(
        "send-weak-is-success",
        "a message that no slave has counts as sent",
        _weak_is_success,
        _masters_unheard,
    ),
    _bug("posts-side-by-side", "posts to a queue do not wait for each other", _side_by_side),
    _bug("posts-misplaced", "a posted message is told the place of another", _misplaced),
    _bug("sink-number-again", "a number is published again", _number_again),
    _bug(
        "sink-answered-unstored",
        "what is published is not there",
        left_out_later(PublishService, "_finish"),
    ),
    _bug(
        "sink-answered-unreadable",
        "what is published cannot be read yet",
        left_out_later(PublishService, "_readable"),
        _full_now_and_then,
    ),
    _bug(
        "sink-ids-by-chance",
        "the next master stores a part again",
        _ids_by_chance,
        at_steps(f"after {PUBLISHED}", sdk=True),
    ),
    _bug(
        "sink-parts-unread",
        "a part that cannot be read yet is stored again",
        lambda: [(publishservice._Earlier, "readable", True)],
        _publishers_die,
    ),
    _bug(
        "sink-rest-left-out",
        "a part whose first messages are stored counts as stored",
        _rest_left_out,
        _parts_cut,
    ),
    _bug(
        "sink-parts-passed-over",
        "the next master leaves a part out",
        _parts_passed_over,
        at_steps("after published", sdk=True),
    ),
]
