"""The same requests and the same client programs with RocketMQ and with a node: their results are
the same but for the differences that docs/remoting.md lists."""

import asyncio
import json
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.peers import maven
from tests.conformance.differential.comparing import differences, unknown
from tests.conformance.differential.differences import KNOWN
from tests.conformance.differential.requests.filtering import filters
from tests.conformance.differential.requests.grouping import gone, members
from tests.conformance.differential.requests.later import (
    delays,
    retries,
    sent_to_retry_topics,
    transactions,
)
from tests.conformance.differential.requests.lookups import lookups, routes
from tests.conformance.differential.requests.pulling import held, pulls
from tests.conformance.differential.requests.sending import sends
from tests.conformance.differential.seen import Seen, plain
from tests.conformance.differential.session import Session, session
from tests.conformance.differential.sides import Side, of_node, of_rocketmq
from tests.conformance.languages import SOON_BALANCED, java_with

pytestmark = [pytest.mark.process, pytest.mark.long]

VERSIONS = ("4.9.7", "5.3.3")
PROGRAM_SECONDS = 150
# The last one: on a slow machine connections may take longer than 3 s.
OPTIONS = (
    "-Xms64m", "-Xmx256m", SOON_BALANCED,
    "-Dcom.rocketmq.remoting.client.connect.timeout=20000",
)  # fmt: skip
Program = subprocess.Popen[str]
Section = Callable[[Session], Awaitable[None]]
SECTIONS: tuple[Section, ...] = (
    sends, pulls, held, filters, members, gone, delays, retries, sent_to_retry_topics,
    transactions, lookups,
)  # fmt: skip
OF_CLIENTS = ("JA", "JO", "JR", "JX", "JB", "JD", "JF", "JN")


async def requests(side: Side) -> Mapping[str, str]:
    """What a side answers to all requests; each section has a connection of its own."""
    seen = Seen()
    async with asyncio.TaskGroup() as tasks:
        for section in SECTIONS:
            tasks.create_task(_alone(section, side, seen))
        tasks.create_task(routes(side, seen))
    return seen.rows


async def of_both(sides: tuple[Side, Side]) -> list[Mapping[str, str]]:
    """The same with both sides, at once."""
    return await asyncio.gather(*map(requests, sides))


async def _alone(section: Section, side: Side, seen: Seen) -> None:
    async with session(side.broker, seen) as client:
        await section(client)


async def topics_of_clients(side: Side) -> None:
    """What the client program sends to."""
    async with session(side.broker, Seen()) as client:
        for topic in OF_CLIENTS:
            await client.topic(topic)
        await client.topic("JClosed", perm=4)


@contextmanager
def clients(home: Path, version: str, sides: tuple[Side, Side]) -> Iterator[Program]:
    """The client program at work: with both sides at once."""
    jars = maven.HOME / f"rocketmq-{version}"
    command = java_with(jars, home, "Differential.java", *OPTIONS)
    with (
        (home / "clients.log").open("w") as log,
        subprocess.Popen(
            [*command, *(side.names for side in sides)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as program,
    ):
        try:
            yield program
        finally:
            program.kill()


def outcome(program: Program) -> list[Mapping[str, str]]:
    """What the clients of both sides saw."""
    printed = program.communicate(timeout=PROGRAM_SECONDS)[0]
    assert program.returncode == 0, printed[-1000:]
    (line,) = [line for line in printed.splitlines() if line.startswith('{"theirs"')]
    found = json.loads(line)
    return [
        {name: plain("", value) for name, value in found[side].items()}
        for side in ("theirs", "ours")
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_requests_and_clients_are_served_as_by_rocketmq(tmp_path: Path, version: str) -> None:
    with (
        of_rocketmq(tmp_path / "theirs", version) as theirs,
        of_node(tmp_path / "ours") as ours,
    ):
        for side in (theirs, ours):
            asyncio.run(topics_of_clients(side))
        with clients(tmp_path, version, (theirs, ours)) as program:
            answered = asyncio.run(of_both((theirs, ours)))
            seen = outcome(program)
    known = [row for row in KNOWN if row.version in ("", version[0])]
    found = [*differences(*answered), *differences(*seen)]
    rest = unknown(found, known)
    assert not rest, "\n".join(rest)
