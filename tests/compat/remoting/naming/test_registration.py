"""Registrations: none is like the one before, deleted topics, very many topics."""

import asyncio
import json
import zlib
from dataclasses import replace

from duolog_server.compat.remoting.naming import (
    DELETED_MAX,
    Registration,
    Registrations,
    Standing,
)
from duolog_server.node.core.turnbudget import SLICE_SECONDS
from duolog_server.store.clocks import WallMs
from duolog_server.store.metadata import TopicConfig

STANDING = Standing("c", "g", "127.0.0.1:9876", 0, 4)
OTHERS = {"c_REPLY_TOPIC": (1, 6)}


def topics(*names: str) -> dict[str, TopicConfig]:
    return {name: TopicConfig(name, 2) for name in names}


def perms(registration: Registration) -> dict[str, int]:
    found = json.loads(registration.body)["topicConfigSerializeWrapper"]["topicConfigTable"]
    return {name: row["perm"] for name, row in found.items()}


def version(registration: Registration) -> dict[str, int]:
    found = json.loads(registration.body)["topicConfigSerializeWrapper"]["dataVersion"]
    return {name: int(value) for name, value in found.items()}


async def test_no_data_version_comes_twice() -> None:
    made = Registrations(OTHERS)
    assert made.is_due(STANDING, {})
    first = await made.make(STANDING, topics("T"), WallMs(5))
    assert not made.is_due(STANDING, topics("T"))
    slave = replace(STANDING, broker_id=2, epoch=5)
    assert made.is_due(slave, topics("T"))
    second = await made.make(slave, topics("T"), WallMs(5))
    third = await made.make(STANDING, topics("T"), WallMs(5))
    versions = [version(one) for one in (first, second, third)]
    assert [one["counter"] for one in versions] == [1, 2, 3]
    assert [one["stateVersion"] for one in versions] == [4, 5, 4]
    assert made.is_due(STANDING, {"T": TopicConfig("T", 3)})
    assert second.fields["brokerId"] == second.unregister_fields()["brokerId"] == "2"


async def test_what_was_registered_and_is_gone_has_no_rights() -> None:
    made = Registrations(OTHERS)
    await made.make(STANDING, topics("T", "U", "DUOLOG_SYS_METADATA", "c_REPLY_TOPIC"), WallMs(1))
    found = perms(await made.make(STANDING, topics("U"), WallMs(2)))
    assert found == {"U": 6, "T": 0, "SELF_TEST_TOPIC": 0, "c_REPLY_TOPIC": 6}
    assert perms(await made.make(STANDING, topics("U"), WallMs(3))) == found, "for late servers"
    assert perms(await made.make(STANDING, topics("T", "U"), WallMs(4)))["T"] == 6


async def test_deleted_topics_are_not_kept_without_end() -> None:
    made = Registrations({})
    many = topics(*(f"T{n}" for n in range(DELETED_MAX + 5)))
    await made.make(STANDING, many, WallMs(1))
    registration = await made.make(STANDING, {}, WallMs(2))
    text = zlib.decompress(registration.body)
    assert text.count(b" 0 0 0 SINGLE_TAG") == DELETED_MAX
    assert b"T4 " not in text


async def test_very_many_topics_leave_the_others_their_turns() -> None:
    many = topics(*(f"%RETRY%group-{n}" for n in range(60_000)))
    loop, turns = asyncio.get_running_loop(), 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    other = loop.create_task(others())
    registration = await Registrations(OTHERS).make(STANDING, many, WallMs(1))
    other.cancel()
    assert turns > 3, f"slices of {SLICE_SECONDS} s"
    assert registration.fields["compressed"] == "true"
    assert len(registration.body) < 1 << 20, "a name server takes 16 MiB"
