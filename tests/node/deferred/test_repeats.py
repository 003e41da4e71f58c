"""A repeat is judged by what its first attempt may have reached, even after a truncation."""

import shutil
from pathlib import Path

import duolog
from duolog.wire import duolog_pb2 as wire

from duolog_server.serve.server import Node
from tests.node.api.test_messages import append, append_request
from tests.nodefixtures import StartNode

FIRST, OTHER = b"producer01", b"producer02"


def client_of(node: Node) -> duolog.Client:
    return duolog.Client(f"127.0.0.1:{node.port}", timeout=10)


async def told_end(client: duolog.Client) -> tuple[int, int]:
    """What the SDK would send with a repeat of the next message."""
    reply = await client._router.seed.admin.ListTopics(wire.ListTopicsRequest(topics=["T"]))
    return reply.confirm_offset, reply.confirm_nonce


async def stored(client: duolog.Client, **how: object) -> wire.AppendReply:
    return await append(client, append_request([b"x" * 500], **how))


async def test_a_repeat_of_a_send_stored_below_an_abandoned_end_is_unknown(
    start_node: StartNode, tmp_path: Path
) -> None:
    """The log is truncated below an offset that a client knows to be confirmed."""
    node = await start_node(tmp_path / "n")
    async with client_of(node) as client:
        await client.admin.create_topic("T", 1)
    await node.stop()
    shutil.copytree(tmp_path / "n", tmp_path / "older")

    node = await start_node(tmp_path / "n")
    async with client_of(node) as client:
        for _ in range(8):
            await stored(client)
        known_end, known_nonce = await told_end(client)
    await node.stop()

    node = await start_node(tmp_path / "older", producers_max=1)
    known = {"known_end": known_end, "known_nonce": known_nonce}
    async with client_of(node) as client:
        first = await stored(client, producer_id=FIRST, sequence=0, **known)
        assert first.status == wire.PUT_OK
        assert first.physical_offset < known_end
        await stored(client, producer_id=OTHER, sequence=0)  # of one producer the node remembers
        repeat = await stored(client, producer_id=FIRST, sequence=0, again=True, **known)
        assert repeat.status == wire.SEQUENCE_TOO_OLD
        assert (await client.pull("T", 0, 0)).count == 2


async def test_a_repeat_newer_than_everything_forgotten_is_stored(
    start_node: StartNode, tmp_path: Path
) -> None:
    node = await start_node(tmp_path / "n", producers_max=1)
    async with client_of(node) as client:
        await client.admin.create_topic("T", 1)
        for number in range(3):
            await stored(client, producer_id=b"producer%02d" % number, sequence=0)
        known_end, known_nonce = await told_end(client)
    await node.stop()
    node = await start_node(tmp_path / "n", producers_max=1)
    async with client_of(node) as client:
        known = {"known_end": known_end, "known_nonce": known_nonce}
        reply = await stored(client, producer_id=FIRST, sequence=7, again=True, **known)
        assert reply.status == wire.PUT_OK
        assert reply.epoch_nonce not in (0, known_nonce)
