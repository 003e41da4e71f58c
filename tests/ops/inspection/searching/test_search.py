"""Searches of real nodes: what is found, in which order, and how they end."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import duolog
import pytest
from duolog import Message

from duolog_server.ops.inspection.searching import search as module
from duolog_server.ops.inspection.searching import search as queues
from duolog_server.ops.inspection.searching.search import Search
from duolog_server.ops.inspection.searching.terms import RESULTS_MAX, End, Terms
from tests.node.replicas import Elected
from tests.nodefixtures import StartNode

QUEUES = 3
SENT = 60


def place(message: Message) -> tuple[int, int]:
    return message.queue_id, message.queue_offset


async def filled(client: duolog.Client) -> list[Message]:
    """A topic with messages; all of them as they are stored, the oldest first."""
    await client.admin.create_topic("T", QUEUES)
    async with client.producer() as producer:
        for n in range(SENT):
            await producer.send(
                "T",
                b"number %d, %s" % (n, b"odd" if n % 2 else b"even"),
                keys=[f"k{n}"],
                tags="third" if n % 3 == 0 else "other",
                properties={"n": str(n)},
                queue_id=n % 7 % QUEUES,
            )
    found = [one for q in range(QUEUES) for one in await client.pull("T", q, 0)]
    return sorted(found, key=lambda one: one.physical_offset)


async def found_by(client: duolog.Client, terms: Terms) -> Search[tuple[int, int]]:
    """A search that is over."""
    search = Search(client, terms, place)
    async with asyncio.timeout(30):
        await search.run()
    return search


def places(search: Search[tuple[int, int]]) -> list[tuple[int, int]]:
    return [hit.what for hit in search.hits]


async def test_messages_are_found_by_text_and_by_sql_in_both_directions(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "WINDOW", 4)
    monkeypatch.setattr(queues, "WINDOW_BYTES", 400)
    node = await start_node()
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        sent = await filled(client)
        cases: list[tuple[Terms, Callable[[Message], bool]]] = [
            (Terms("T", text="odd"), lambda one: b"odd" in one.body),
            (Terms("T", text="ODD"), lambda one: False),
            (Terms("T", text="ODD", any_case=True), lambda one: b"odd" in one.body),
            (Terms("T", text="k7"), lambda one: one.properties["KEYS"] == "k7"),
            (Terms("T", text="third"), lambda one: one.tags == "third"),
            (Terms("T", sql="n >= 10 AND n < 20"), lambda one: 10 <= int(one.properties["n"]) < 20),
            (Terms("T", sql="TAGS = 'third'"), lambda one: one.tags == "third"),
            (Terms("T", sql="missing IS NOT NULL"), lambda one: False),
        ]
        for terms, matches in cases:
            wanted = [place(one) for one in sent if matches(one)]
            oldest = await found_by(client, replace(terms, newest_first=False))
            newest = await found_by(client, replace(terms, newest_first=True))
            assert sorted(places(oldest)) == sorted(places(newest)) == sorted(wanted)
            times = {place(one): one.store_time_ms for one in sent}
            assert [times[one] for one in places(oldest)] == sorted(times[one] for one in wanted)
            assert [times[one] for one in places(newest)] == sorted(
                (times[one] for one in wanted), reverse=True
            )
            assert oldest.progress.end is newest.progress.end is End.WHOLE
            assert oldest.progress.scanned == newest.progress.total == SENT


@pytest.mark.parametrize("newest_first", [True, False])
async def test_the_first_ones_in_order_are_found_and_the_rest_is_not_read(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch, newest_first: bool
) -> None:
    monkeypatch.setattr(queues, "WINDOW", 2)
    monkeypatch.setattr(queues, "WINDOW_MAX", 2)
    node = await start_node()
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        sent = await filled(client)
        search = await found_by(
            client, Terms("T", text="number", newest_first=newest_first, results_max=5)
        )
        times = sorted((one.store_time_ms for one in sent), reverse=newest_first)
        by_place = {place(one): one.store_time_ms for one in sent}
        assert [by_place[one] for one in places(search)] == times[:5]
        assert search.progress.end is End.ENOUGH
        assert search.progress.scanned < SENT // 2


async def test_a_range_is_searched_and_the_rest_not_found(bare_client: duolog.Client) -> None:
    sent = await filled(bare_client)
    begin, end = sent[20].store_time_ms, sent[40].store_time_ms
    inside = [one for one in sent if begin <= one.store_time_ms <= end]
    search = await found_by(bare_client, Terms("T", text="n", begin_ms=begin, end_ms=end))
    assert sorted(places(search)) == sorted(map(place, inside))
    assert search.progress.total == len(inside)
    later = await found_by(bare_client, Terms("T", text="n", begin_ms=sent[-1].store_time_ms + 1))
    assert (later.progress.total, later.progress.end) == (0, End.WHOLE)
    odd = Search[object](bare_client, Terms("T", text="odd"), lambda one: None)
    await odd.run()
    assert (odd.hits, odd.progress.scanned) == ([], SENT)
    shown = set(map(place, sent[-5:]))
    terms = Terms("T", text="number", results_max=5)
    search = Search(bare_client, terms, lambda one: place(one) if place(one) in shown else None)
    async with asyncio.timeout(30):
        await search.run()
    assert len(search.hits) == 5
    assert search.progress.end is End.WHOLE
    for newest_first in (True, False):
        terms = Terms("T", text="number", newest_first=newest_first, results_max=SENT - 1)
        assert (await found_by(bare_client, terms)).progress.end is End.ENOUGH
        terms = replace(terms, results_max=SENT)
        assert len((await found_by(bare_client, terms)).hits) == SENT
    with pytest.raises(duolog.UnknownTopic):
        await found_by(bare_client, Terms("none", text="x"))


async def test_a_search_ends_in_time_and_keeps_what_it_found(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "WINDOW", 1)
    monkeypatch.setattr(queues, "WINDOW_MAX", 1)
    node = await start_node()
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await filled(client)
        fetch, reads, loop = client.fetch, 0, asyncio.get_running_loop()
        now, seconds = loop.time, 10.0

        with monkeypatch.context() as patch:

            async def stalls(*asked: Any, **how: Any) -> Any:
                nonlocal reads
                reads += 1
                if reads > 3:  # its time passes here, and not before: a machine may stand still
                    patch.setattr(loop, "time", lambda: now() + seconds)
                    await asyncio.Event().wait()
                return await fetch(*asked, **how)

            patch.setattr(client, "fetch", stalls)
            search = await found_by(client, Terms("T", text="number", seconds=seconds))
        assert search.progress.end is End.LATE
        assert len(search.hits) == search.progress.scanned == 3


async def test_a_search_is_cancelled(
    bare_client: duolog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(bare_client)
    stalled = asyncio.Event()

    async def stalls(*asked: Any, **how: Any) -> Any:
        stalled.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(bare_client, "fetch", stalls)
    search = Search(bare_client, Terms("T", text="number"), place)
    task = asyncio.create_task(search.run())
    async with asyncio.timeout(10):
        await stalled.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert search.progress.end is End.STOPPED


async def test_reads_are_paced_and_quotas_waited_for(
    bare_client: duolog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(bare_client)
    fetch, refused = bare_client.fetch, False

    async def refuses(*asked: Any, **how: Any) -> Any:
        nonlocal refused
        if not refused:
            refused = True
            raise duolog.Throttled("wait", 1)
        return await fetch(*asked, **how)

    monkeypatch.setattr(bare_client, "fetch", refuses)
    search = await found_by(bare_client, Terms("T", text="number"))
    assert len(search.hits) == SENT
    assert refused
    monkeypatch.setattr(module, "BYTES_A_SECOND", 10_000)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await found_by(bare_client, Terms("T", text="number"))
    # More than 60 messages of 36 bytes and their bodies.
    assert loop.time() - began > 60 * 36 / 10_000


@pytest.mark.parametrize(
    "terms",
    [
        Terms("", text="x"),
        Terms("T"),
        Terms("T", text="x", sql="a = 1"),
        Terms("T", text="x" * 2000),
        Terms("T", text="x", begin_ms=2, end_ms=1),
        Terms("T", text="x", results_max=0),
        Terms("T", text="x", results_max=RESULTS_MAX + 1),
        Terms("T", sql="a = "),
    ],
)
async def test_wrong_terms_are_refused(bare_client: duolog.Client, terms: Terms) -> None:
    await filled(bare_client)
    with pytest.raises(duolog.BadRequest):
        await found_by(bare_client, terms)


async def test_how_far_a_search_is_grows_with_each_read(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READ_BYTES", 100)
    node = await start_node()
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await filled(client)
        search, seen = Search(client, Terms("T", text="number"), place), list[int]()
        await search.run(lambda: seen.append(search.progress.scanned))
        assert seen == sorted(seen)
        assert len(set(seen)) > QUEUES + 1
        assert seen[-1] == SENT


@pytest.mark.parametrize("newest_first", [True, False])
async def test_what_a_node_sends_beyond_what_was_asked_for_counts_once(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch, newest_first: bool
) -> None:
    monkeypatch.setattr(queues, "WINDOW", 3)
    node = await start_node()
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        sent = await filled(client)
        fetch = client.fetch

        async def gives_more(request: Any, *asked: Any, **how: Any) -> Any:
            request.max_messages += 5
            return await fetch(request, *asked, **how)

        monkeypatch.setattr(client, "fetch", gives_more)
        search = await found_by(client, Terms("T", text="number", newest_first=newest_first))
        assert sorted(places(search)) == sorted(map(place, sent))
        assert search.progress.scanned == SENT


async def test_what_a_slave_lacks_is_read_from_its_master(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await start_node()
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        sent = await filled(client)
        fetch, asked = client.fetch, list[bool]()

        async def lacks(request: Any, group: str, *, from_slaves: bool) -> Any:
            asked.append(from_slaves)
            if from_slaves and not request.columns:
                request.queue_offset = 10**9  # behind its end
                found = await fetch(request, group, from_slaves=True)
                found.next_offset = 0
                return found
            return await fetch(request, group, from_slaves=from_slaves)

        monkeypatch.setattr(client, "fetch", lacks)
        search = await found_by(client, Terms("T", text="number"))
        assert sorted(places(search)) == sorted(map(place, sent))
        assert {*asked} == {True, False}


async def test_a_queue_that_was_cut_meanwhile_ends(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await start_node()
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await filled(client)
        fetch = client.fetch

        async def nothing(request: Any, group: str, **how: Any) -> Any:
            at, request.queue_offset = request.queue_offset, 10**9
            found = await fetch(request, group, **how)
            found.next_offset = at
            return found

        monkeypatch.setattr(client, "fetch", nothing)
        search = await found_by(client, Terms("T", text="number"))
        assert (search.hits, search.progress.end) == ([], End.WHOLE)


async def test_a_replica_group_is_searched_on_its_slaves(
    start_node: StartNode, tmp_path: Path
) -> None:
    group = await Elected.start(start_node, tmp_path)
    async with duolog.Client(group.endpoints, timeout=10) as client:
        sent = await filled(client)
        for terms in (Terms("T", text="number"), Terms("T", sql="n IS NOT NULL")):
            search = await found_by(client, terms)
            assert sorted(places(search)) == sorted(map(place, sent))
