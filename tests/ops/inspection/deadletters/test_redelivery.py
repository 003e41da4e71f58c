"""A redelivery that does not get through goes on where it stopped."""

from collections.abc import Sequence

import duolog
import pytest
from duolog import Message, Producer, Timeout
from duolog._columns import property_text

from duolog_server.ops.inspection.deadletters import redelivery
from duolog_server.ops.inspection.deadletters.redelivery import (
    Bounds,
    Redelivery,
    redeliver,
    redeliver_at,
)
from duolog_server.ops.inspection.messages.places import Place
from duolog_server.ops.inspection.messages.sending import copy_of
from duolog_server.serve.server import Node
from duolog_server.store.record import SENT_PROPERTIES_BYTES_MAX
from tests.nodefixtures import StartNode
from tests.ops.console.pages.deferred.test_dead import make_letters

PLENTY = Bounds(100, 60.0)


async def bodies(client: duolog.Client) -> list[bytes]:
    """What topic T has beside the four that became dead letters."""
    return [one.body for one in await client.pull("T", 0, 4)]


async def test_after_an_error_it_begins_with_the_first_that_was_not_sent(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, failing = redelivery._copy, {b"2"}

    async def failing_once(producer: Producer, group: str, letter: Message) -> None:
        if letter.body in failing:
            failing.clear()
            raise Timeout("not in time")
        await copy(producer, group, letter)

    monkeypatch.setattr(redelivery, "_copy", failing_once)
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await make_letters(client, [b"0", b"1", b"2", b"3"])
        first = await redeliver(client, "g", PLENTY)
        assert (first.sent, first.stopped) == (3, "not in time")
        assert [one.place for one in first.refused] == [Place("broker-a", 0, 2)]
        second = await redeliver(client, "g", PLENTY)
        assert (second.sent, second.refused, second.stopped) == (2, [], "")
        assert await bodies(client) == [b"0", b"1", b"3", b"2", b"3"]
        assert (await redeliver(client, "g", PLENTY)).done == 0


async def test_when_its_time_is_over_nothing_is_lost(bare_client: duolog.Client) -> None:
    await make_letters(bare_client, [b"0", b"1", b"2", b"3"])
    late = await redeliver(bare_client, "g", Bounds(100, -1.0))
    assert (late.done, late.stopped) == (0, "its time limit of -1 s is over")
    late = await redeliver_at(bare_client, "g", [Place("broker-a", 0, 0)], -1.0)
    assert (late.done, late.stopped) == (0, "its time limit of -1 s is over")
    assert (await redeliver(bare_client, "g", PLENTY)).sent == 4


async def test_rounds_are_small_and_each_goes_on_after_the_last(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redelivery, "AT_ONCE", 3)
    node = await start_node()
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await make_letters(client, [b"0", b"1", b"2", b"3"])
        places = [Place("broker-a", 0, offset) for offset in (3, 0, 1, 2, 3)]
        assert (await redeliver_at(client, "g", places, 60.0)).sent == 4
        assert (await redeliver(client, "g", PLENTY)).sent == 4
        assert await bodies(client) == [b"0", b"1", b"2", b"3"] * 2


async def test_large_bodies_go_out_a_few_at_a_time(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redelivery, "BYTES_AT_ONCE", 10)
    rounds: list[int] = []
    send = redelivery._send

    async def noted(
        producer: Producer, group: str, letters: Sequence[Message], result: Redelivery
    ) -> int:
        rounds.append(len(letters))
        return await send(producer, group, letters, result)

    monkeypatch.setattr(redelivery, "_send", noted)
    node = await start_node()
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await make_letters(client, [b"12345", b"12345", b"x" * 50, b"1", b"2"])
        places = [Place("broker-a", 0, offset) for offset in range(5)]
        assert (await redeliver_at(client, "g", places, 60.0)).sent == 5
        assert rounds == [2, 1, 2]


async def test_copies_have_the_keys_and_full_properties_of_their_originals(node: Node) -> None:
    keys = ["a\u00a0b", "c\u3000d", "e"]  # only a space is between two keys
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        room = SENT_PROPERTIES_BYTES_MAX - len(property_text(None, keys, None)) - 1
        await make_letters(client, [b"x"], keys=keys, properties={"p": "v" * (room - 2)})
        assert (await redeliver(client, "g", PLENTY)).sent == 1
        (copy,) = list(await client.pull("T", 0, 1))
        assert copy.keys == keys
        assert len(copy.properties["p"]) == room - 2
        assert list(copy_of(copy).keys) == keys
        for key in keys:
            assert len(await client.admin.find("T", key=key)) == 2
