"""The target of moves: a group of one node, asked by the test."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from duolog import _errors as sdk
from duolog.testing._ports import free_endpoint

from duolog_server.ha.moverevents import (
    Ask,
    Carries,
    Nothing,
    Open,
    Opened,
    Refused,
    Reply,
    Request,
    Reserve,
    Reserved,
    Revoke,
    Revoked,
    Unknown,
)
from duolog_server.node.broker import Broker
from duolog_server.node.election.memoryregistry import MemoryRegistry
from duolog_server.node.moving.movecodec import (
    Settings,
    reply_of,
    reply_to_wire,
    request_of,
    request_to_wire,
)
from duolog_server.node.wire import moves_pb2 as wire
from duolog_server.serve.server import Node
from duolog_server.store.errors import BadMessage
from duolog_server.store.metadata import TopicConfig, new_group
from duolog_server.store.moves import Place
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode
from tests.until import until

HERE, B = Place("a", 3), "broker-b"
RESERVE = Reserve("a-1-1", HERE, HERE)
REVOKE = Revoke("a-1-1", HERE, HERE)


def settings(**topic: Any) -> Settings:
    return Settings(TopicConfig("T", 8, **topic).to_json(), [new_group("G")])


@pytest.fixture
async def node(start_node: StartNode, tmp_path: Path) -> Node:
    found = await start_node(
        tmp_path / "b",
        ha={"listen": free_endpoint(), "in_sync_replicas": 1},
        limits={"topics_max": 2, "groups_max": 2},
        registry=MemoryRegistry(),
        group=B,
        broker_role="AUTO",
    )
    await until(lambda: broker_of(found).admission.change() is None)
    return found


@pytest.fixture
def target(node: Node) -> Broker:
    return broker_of(node)


async def ask(target: Broker, request: Request, **topic: Any) -> Reply:
    return await target.move_target.answer("T", request, settings(**topic))


async def make(target: Broker, queues: int = 4, **topic: Any) -> None:
    await target.metadata.put_topic(TopicConfig("T", queues, **topic))


async def test_a_guest_is_reserved_behind_the_topics_own_queues_and_opened(target: Broker) -> None:
    await make(target)
    for _ in range(2):
        assert await ask(target, RESERVE) == Reserved("a-1-1", Place(B, 4))
    for _ in range(2):
        assert await ask(target, Open("a-1-1", 70)) == Opened("a-1-1", Place(B, 4), 70)
    assert await ask(target, Open("a-1-1", 71)) == Opened("a-1-1", Place(B, 4), 70)
    assert await ask(target, REVOKE) == Opened("a-1-1", Place(B, 4), 70)
    assert await ask(target, Ask(HERE, HERE, HERE)) == Opened("a-1-1", Place(B, 4), 70)
    assert target.store.next_offset("T", 4) == 70
    assert target.metadata.topics["T"].queues == 4


async def test_what_is_revoked_is_never_opened(target: Broker) -> None:
    await make(target)
    assert await ask(target, RESERVE) == Reserved("a-1-1", Place(B, 4))
    for request in (REVOKE, REVOKE, RESERVE, Open("a-1-1", 7)):
        assert await ask(target, request) == Revoked("a-1-1")
    assert await ask(target, Ask(HERE, HERE, HERE)) == Nothing()
    assert await ask(target, Reserve("a-1-2", HERE, HERE)) == Reserved("a-1-2", Place(B, 5))


async def test_a_move_that_reserved_nothing_is_revoked_and_its_id_used_up(target: Broker) -> None:
    assert await ask(target, REVOKE) == Revoked("a-1-1")
    assert await ask(target, RESERVE) == Revoked("a-1-1")
    assert "T" not in target.metadata.topics
    await make(target, 8)


async def test_a_topic_that_is_missing_is_made_without_queues_of_its_own(target: Broker) -> None:
    """With some, messages with keys would get other queues."""
    assert await ask(target, RESERVE, perm=4, message_type="FIFO") == Reserved("a-1-1", Place(B, 0))
    made = target.metadata.topics["T"]
    assert (made.queues, made.perm, made.message_type) == (0, 4, "FIFO")
    assert target.metadata.has_group("G")
    assert await ask(target, Open("a-1-1", 70)) == Opened("a-1-1", Place(B, 0), 70)
    made = target.metadata.topics["T"]
    assert (made.queues, made.guests) == (0, 1)


@pytest.mark.parametrize(
    ("here", "there", "why"),
    [
        ({}, {"message_type": "LITE"}, "which has lite topics"),
        ({"message_type": "LITE"}, {}, "which has lite topics"),
        ({"message_type": "FIFO"}, {}, "are FIFO in group broker-b"),
    ],
)
async def test_a_topic_of_another_type_is_refused(
    target: Broker, here: dict[str, Any], there: dict[str, Any], why: str
) -> None:
    await make(target, **here)
    reply = await ask(target, RESERVE, **there)
    assert isinstance(reply, Refused)
    assert why in reply.reason


async def test_a_topic_that_was_deleted_is_not_made_again_for_what_was_lost_with_it(
    target: Broker,
) -> None:
    lost = Reserve("a-1-1.1", HERE, HERE)
    assert isinstance(await ask(target, RESERVE), Reserved)
    await target.metadata.delete_topic("T")
    refused = await ask(target, lost)
    assert refused == Refused(lost.move, "topic T was deleted in group broker-b")
    assert "T" not in target.metadata.topics
    assert isinstance(await ask(target, RESERVE), Reserved)


async def test_a_topic_beyond_the_limit_is_refused(target: Broker) -> None:
    for name in ("U", "V"):
        await target.metadata.put_topic(target.metadata.new_topic(name, 1, 6))
    reply = await ask(target, RESERVE)
    assert isinstance(reply, Refused)
    assert "maximum of 2 topics" in reply.reason


async def test_a_topic_without_a_queue_id_left_is_refused(
    target: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(target)
    monkeypatch.setattr("duolog_server.node.core.metadatalog.QUEUE_ID_MAX", 3)
    reply = await ask(target, RESERVE)
    assert isinstance(reply, Refused)
    assert "no queue id left" in reply.reason


async def test_what_the_tables_lack_is_said_after_a_confirm_that_began_later(
    target: Broker,
) -> None:
    for request in (Ask(HERE, HERE, HERE), Open("a-1-1", 0)):
        before = target.store.max_offset
        reply = await ask(target, request)
        assert isinstance(reply, Nothing | Unknown)
        assert target.store.confirm_offset > before, "it has stored something"
    await make(target)
    await ask(target, RESERVE)
    before = target.store.max_offset
    await ask(target, RESERVE)
    assert target.store.max_offset == before, "what they have is said at once"


async def test_requests_of_a_topic_are_answered_one_at_a_time(target: Broker) -> None:
    await make(target)
    moves = [Reserve(f"a-1-{k}", Place("a", k), Place("a", k)) for k in range(8)]
    asked = [asyncio.create_task(ask(target, move)) for move in (*moves, *moves)]
    replies = [await one for one in asked]
    assert replies[:8] == replies[8:]
    places = {reply.place.queue_id for reply in replies if isinstance(reply, Reserved)}
    assert places == set(range(4, 12))
    assert len(target.move_target._turns) == 0


async def test_a_request_that_makes_no_sense_is_an_error(target: Broker) -> None:
    own = Place(B, 0)
    with pytest.raises(sdk.BadRequest, match="of group broker-b cannot move to it"):
        await ask(target, Reserve("b-1-1", own, own))
    answer = target.move_target.answer
    with pytest.raises(sdk.BadRequest, match="settings of topic 'T' cannot be read"):
        await answer("T", RESERVE, Settings({"topicName": "T", "perm": "x"}))
    with pytest.raises(sdk.BadRequest, match="those of topic 'U', not 'T'"):
        await answer("T", RESERVE, Settings(TopicConfig("U").to_json()))
    with pytest.raises(BadMessage):
        await answer("no/topic", RESERVE, settings())


async def test_a_slave_answers_nothing(target: Broker, node: Node) -> None:
    target.demote()
    with pytest.raises(sdk.NotMaster):
        await ask(target, RESERVE)


# -- the wire --------------------------------------------------------------------------------------


@pytest.mark.parametrize("request_", [RESERVE, REVOKE, Open("a-1-1", 5), Ask(HERE, HERE, HERE)])
def test_a_request_is_read_as_it_was_written(request_: Request) -> None:
    written = request_to_wire("T", request_, settings())
    assert written.topic == "T"
    found, came = request_of(wire.MoveRequest.FromString(written.SerializeToString()))
    assert found == request_
    assert came == (settings() if isinstance(request_, Reserve) else Settings({}))


@pytest.mark.parametrize(
    "reply",
    [
        Reserved("m", Place(B, 4)),
        Opened("m", Place(B, 4), 7),
        Revoked("m"),
        Refused("m", "why"),
        Unknown("m"),
        Carries("m", Place(B, 4), 7),
        Nothing(),
    ],
)
def test_a_reply_is_read_as_it_was_written(reply: Reply) -> None:
    written = reply_to_wire(reply).SerializeToString()
    assert reply_of(wire.MoveReply.FromString(written)) == reply


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (wire.MoveRequest(), "no kind that this version knows"),
        (wire.MoveRequest(ask=wire.Ask()), "names no replica group"),
        (wire.MoveRequest(open=wire.Open(move="m", first=-1)), "cannot begin at offset -1"),
        (wire.MoveRequest(open=wire.Open()), "does not name it"),
        (
            wire.MoveRequest(
                reserve=wire.Reserve(
                    move="m", name=wire.Place(group="a"), came_from=wire.Place(group="a")
                )
            ),
            "that are no JSON",
        ),
        (
            wire.MoveRequest(
                reserve=wire.Reserve(
                    move="m",
                    name=wire.Place(group="a"),
                    came_from=wire.Place(group="a"),
                    topic_settings=b"[]",
                )
            ),
            "no JSON object",
        ),
    ],
)
def test_a_request_that_cannot_be_read_is_an_error(request_: wire.MoveRequest, why: str) -> None:
    with pytest.raises(sdk.BadRequest, match=why):
        request_of(request_)


def test_a_reply_of_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(sdk.BadRequest, match="what this version does not know"):
        reply_of(wire.MoveReply())


async def test_a_group_that_retires_takes_back_a_queue_that_it_has_lost(
    target: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else ends the wait of puts to it: the queue has ended at its source."""
    monkeypatch.setattr(target.metadata, "retires", lambda: True)
    assert await ask(target, RESERVE) == Refused("a-1-1", f"group {B} retires, and takes no queues")
    renewed = await ask(target, Reserve("a-1-1.1", HERE, HERE))
    assert isinstance(renewed, Reserved)
