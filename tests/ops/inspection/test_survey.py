"""What is seen of real nodes, and what is wrong with them."""

import asyncio
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duolog
import pytest
from duolog._client import parse_endpoints
from duolog._runtime import MACHINE
from duolog.testing._ports import free_endpoint

from duolog_server.demo.certificates import Authority
from duolog_server.ops.cli.output import show_findings
from duolog_server.ops.inspection import survey
from duolog_server.ops.inspection.doctor.diagnosis import diagnose
from duolog_server.ops.inspection.doctor.findings import NOTE, Finding, Seen
from duolog_server.ops.inspection.survey import examine, look
from duolog_server.serve.server import Node
from duolog_server.store.directories import FileSystem
from duolog_server.store.status import RunningFlags
from tests.keyfiles import access_files
from tests.node.replicas import WAIT_SECONDS, Elected, broker_of, drained
from tests.node.runtime.test_clocks import jumping
from tests.nodefixtures import StartNode
from tests.until import until


@pytest.fixture(autouse=True)
def roomy_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """How full this machine's disk is is no finding of these tests."""
    monkeypatch.setattr(FileSystem, "used_ratio", 0.1)


async def causes(*endpoints: str, user: str = "", password: str = "") -> dict[str, Finding]:
    """What is wrong, by its names. user: as whom the nodes are asked."""
    named = parse_endpoints(",".join(endpoints))
    async with duolog.Client(named, user=user, password=password, timeout=10) as client:
        return {one.cause: one for one in diagnose(await look(client, named))}


async def causes_with(
    endpoint: str, *expected: str, user: str = "", password: str = ""
) -> dict[str, Finding]:
    """What is wrong, once all of these are: nodes learn of each other in their own time."""
    async with asyncio.timeout(WAIT_SECONDS):
        while (
            not set(expected)
            <= (found := await causes(endpoint, user=user, password=password)).keys()
        ):
            await asyncio.sleep(0.02)
    return found


async def test_a_group_that_is_well_and_one_that_lost_nodes(
    start_node: StartNode, tmp_path: Path
) -> None:
    group = await Elected.start(start_node, tmp_path)
    async with duolog.Client(group.endpoints, timeout=10) as client, client.producer() as producer:
        await client.admin.create_topic("T", 2)
        await producer.send("T", b"x")

    async def is_well() -> bool:
        return await causes(*group.endpoints) == {}

    await until(is_well)
    master = group.the_master()
    slave, other = (node for node in group.nodes if node is not master)
    endpoint = f"127.0.0.1:{other.port}"
    async with duolog.Client(endpoint, timeout=10) as client:
        name = (await client.admin.node_status()).name
        await drained(client, name)
    found = (await causes_with(endpoint, "drained"))["drained"]
    assert (found.severity, found.where) == (NOTE, f"node {name} of broker-a")
    await slave.stop()
    await causes_with(endpoint, "node-down")
    await master.stop()
    await causes_with(endpoint, "no-master", "node-down")


async def test_a_node_alone_and_what_its_groups_left(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint = f"127.0.0.1:{node.port}"
    async with duolog.Client(endpoint, timeout=10) as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        await client.admin.put_group("G", retry_times=0)
        await producer.send("T", b"x")
        async with client.consumer("G", "T") as consumer:
            message = await anext(aiter(consumer))
            await consumer.send_back(message)
    found = await causes(f" {endpoint}, ")
    assert found.keys() == {"single-node", "dead-letters"}
    assert found["dead-letters"].where == "consumer group G"
    show_findings(found.values())
    assert "duolog group dead G (docs/runbooks/dead-letters.md)" in capsys.readouterr().out
    show_findings([])
    assert capsys.readouterr().out == "no problems found\n"
    broker_of(node).store.fence("for the test")
    assert (await causes(endpoint))["fenced"].what.endswith("for the test")


async def test_a_slave_that_its_master_refuses_is_suspended_and_not_down(
    start_node: StartNode, tmp_path: Path
) -> None:
    ports = free_endpoint(), free_endpoint()
    master = await start_node(
        tmp_path / "m", broker_role="SYNC_MASTER", name="m", ha={"listen": ports[0]}
    )
    lone = await start_node(
        tmp_path / "s", name="s", broker_role="ASYNC_MASTER", ha={"listen": ports[1]}
    )
    async with duolog.Client(f"127.0.0.1:{lone.port}") as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        await producer.send("T", b"of its own")
    await lone.stop()
    await start_node(tmp_path / "s", name="s", broker_role="SLAVE", ha={"master": ports[0]})
    rows = broker_of(master).replication
    await until(lambda: rows.master is not None and bool(rows.master.rows(rows.mono_ms())))
    found = await causes_with(f"127.0.0.1:{master.port}", "suspended")
    assert "node-down" not in found


async def test_clocks_and_certificates_of_real_nodes(start_node: StartNode, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    one = authority.issue("one", days=2)
    port = free_endpoint()
    tls = {"tls_ca": authority.cert, "tls_cert": one.cert, "tls_key": one.key}
    master = await start_node(
        tmp_path / "m", broker_role="SYNC_MASTER", name="m", ha={"listen": port, **tls}
    )
    slave = await start_node(
        tmp_path / "s", broker_role="SLAVE", name="s", ha={"master": port, **tls}
    )
    endpoint = f"127.0.0.1:{master.port}"
    found = await causes_with(endpoint, "certificate-expires")
    assert str(one.cert) in found["certificate-expires"].what
    assert "clocks-differ" not in found
    jumping(slave).jumped = 7000
    found = await causes_with(endpoint, "clocks-differ")
    told = re.fullmatch(
        r"the clock of node s is (\d\.\d) s or more ahead of that of node m",
        found["clocks-differ"].what,
    )
    assert told is not None
    assert 1 < float(told[1]) <= 7


async def test_how_long_an_answer_took_is_no_difference_of_clocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The node may have looked at its clock at any time in between."""
    now_ms = 1_700_000_000_000

    async def status_of(address: str, timeout: float, runtime: Any) -> SimpleNamespace:
        nonlocal now_ms
        looked = now_ms
        now_ms += 100 * address.startswith("slow")
        looked = looked if address == "slow, first" else now_ms
        return SimpleNamespace(name=address, wall_ms=looked)

    monkeypatch.setattr(survey, "status_or_refusal", status_of)
    monkeypatch.setattr(survey, "_wall_ms", lambda: now_ms)
    monkeypatch.setattr(survey, "time", SimpleNamespace(monotonic=lambda: now_ms / 1000))
    for one in await survey._all_at(["quick", "slow, first", "slow, last"], MACHINE):
        clock = one.clock
        assert clock is not None
        assert clock.least_ms <= 0 <= clock.most_ms, clock
        assert (clock.most_ms - clock.least_ms >= 100) == clock.node.startswith("slow"), clock


async def test_a_node_that_answers_and_refuses_is_not_down(
    start_node: StartNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new slave has another key file, and no users yet."""
    port = free_endpoint()
    files = {}
    for name in ("m", "s"):
        (tmp_path / f"key-{name}").mkdir()
        files[name] = access_files(tmp_path / f"key-{name}", "pw")
    ha = {"listen": port}
    master = await start_node(
        tmp_path / "m", name="m", broker_role="SYNC_MASTER", ha=ha, access=files["m"]
    )
    slave = await start_node(
        tmp_path / "s", name="s", broker_role="SLAVE", ha={"master": port}, access=files["s"]
    )
    endpoints = f"127.0.0.1:{master.port},127.0.0.1:{slave.port}"
    found = await causes_with(endpoints, "node-refuses", user="root", password="pw")
    assert found["node-refuses"].where == f"node at 127.0.0.1:{slave.port}"
    assert "node-down" not in found


@pytest.mark.parametrize(
    ("cluster", "cause", "where"),
    [("another", "other-cluster", "node at {}"), ("DefaultCluster", "same-name", "node test of")],
)
async def test_a_node_of_the_same_name_is_not_taken_for_another_one(
    start_node: StartNode, tmp_path: Path, cluster: str, cause: str, where: str
) -> None:
    """Of another cluster, or a second one of the same."""
    first = await start_node(tmp_path / "first")
    second = await start_node(tmp_path / "second", cluster=cluster)
    here, there = (f"127.0.0.1:{one.port}" for one in (first, second))
    async with duolog.Client(here, timeout=10) as client:
        seen = await look(client, [here, there])
    assert [node.listen for node in seen.nodes] == [here]
    found = {one.cause: one for one in diagnose(seen)}
    assert found.keys() == {cause, "single-node"}
    assert found[cause].where.startswith(where.format(there))
    assert there in found[cause].where + found[cause].what


async def test_what_passes_in_a_moment_is_not_told(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = f"127.0.0.1:{node.port}"
    flags, looks = broker_of(node).store.flags, 0
    plain = survey.look

    async def passing(client: duolog.Client, named: Iterable[str]) -> Seen:
        nonlocal looks
        looks += 1
        (flags.set if looks == 1 else flags.clear)(RunningFlags.DISK_FULL)
        return await plain(client, named)

    monkeypatch.setattr(survey, "look", passing)
    monkeypatch.setattr(survey, "AGAIN_SECONDS", 0.01)
    async with duolog.Client(endpoint, timeout=10) as client:
        assert [one.cause for one in await examine(client, [endpoint], 10.0)] == ["single-node"]
    assert looks == 2


async def test_groups_that_a_master_refuses_while_it_is_replaced_are_asked_for_again(
    node: Node, client: duolog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nodes may all have answered before."""
    plain, refusals = client.admin.groups, [duolog.NotMaster("it is a slave now")]

    async def refused_once(**how: Any) -> list[duolog.GroupDescription]:
        if refusals:
            raise refusals.pop()
        return await plain(**how)

    monkeypatch.setattr(client.admin, "groups", refused_once)
    monkeypatch.setattr(survey, "AGAIN_SECONDS", 0.01)
    found = await examine(client, [f"127.0.0.1:{node.port}"], WAIT_SECONDS)
    assert [one.cause for one in found] == ["single-node"]


async def test_a_silent_node_and_groups_that_take_long_are_found_within_one_survey(
    node: Node, client: duolog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The console and the command line give a look 10 s; either of these may take 6 s of them."""
    monkeypatch.setattr(survey, "GROUPS_SECONDS", 0.05)
    all_at, given_up = survey._all_at, asyncio.Event()

    async def groups(**how: Any) -> Any:
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            given_up.set()

    async def silent(addresses: Sequence[str], *args: Any) -> list[survey._Told]:
        await given_up.wait()
        return await all_at(addresses, *args)

    monkeypatch.setattr(client.admin, "groups", groups)
    monkeypatch.setattr(survey, "_all_at", silent)
    port = free_endpoint()
    async with asyncio.timeout(WAIT_SECONDS):
        seen = await look(client, [f"127.0.0.1:{node.port}", port])
    assert seen.silent == (port,)
    assert "no answer within" in seen.unread
    monkeypatch.setattr(survey, "AGAIN_SECONDS", 2 * WAIT_SECONDS)
    async with asyncio.timeout(WAIT_SECONDS):  # they are not read a second time
        found = await examine(client, [f"127.0.0.1:{node.port}"], WAIT_SECONDS)
    assert {one.cause for one in found} == {"single-node", "groups-unread"}


async def test_what_is_wrong_with_groups_alone_needs_no_second_look(
    node: Node, client: duolog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.admin.create_topic("unreadable", 1, perm=2)
    looks, plain = 0, survey.look

    async def counting(client: duolog.Client, named: Iterable[str]) -> Seen:
        nonlocal looks
        looks += 1
        return await plain(client, named)

    monkeypatch.setattr(survey, "look", counting)
    found = await examine(client, [f"127.0.0.1:{node.port}"], 10.0)
    assert [one.cause for one in found] == ["topic-unreadable", "single-node"]
    assert looks == 1


async def test_where_no_node_answers_there_is_an_error() -> None:
    async with duolog.Client("127.0.0.1:1", timeout=0.5) as client:
        with pytest.raises(duolog.Unavailable):
            await look(client, ["127.0.0.1:1"])
