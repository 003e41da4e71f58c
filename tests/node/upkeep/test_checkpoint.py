"""A start corrects a checkpoint that is wrong."""

import errno
import shutil
import struct
from pathlib import Path

import duolog
import pytest
import structlog

from duolog_server.store.checkpoint import StoreCheckpoint
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode

CONFIRM_AT = 32  # of confirmPhyOffset, in the file


async def losses_told(start_node: StartNode, data: Path, killed: Path) -> int:
    """Start on a directory, and leave in another one what a kill would; losses that were told."""
    with structlog.testing.capture_logs() as lines:
        node = await start_node(data)
    shutil.copytree(data, killed)
    await node.stop()
    return sum("are lost on this node" in str(line.get("reason")) for line in lines)


async def test_a_confirm_offset_past_the_logs_end_is_reported_once(
    start_node: StartNode, tmp_path: Path
) -> None:
    node = await start_node(tmp_path / "0")
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=5) as client:
        await client.admin.create_topic("T", 1)
    end = broker_of(node).store.log.max_offset
    await node.stop()
    with (tmp_path / "0" / "checkpoint").open("r+b") as file:
        file.seek(CONFIRM_AT)
        file.write(struct.pack(">q", 1 << 40))
    assert await losses_told(start_node, tmp_path / "0", tmp_path / "1") == 1
    data = (tmp_path / "1" / "checkpoint").read_bytes()
    assert struct.unpack_from(">q", data, CONFIRM_AT)[0] <= end
    assert await losses_told(start_node, tmp_path / "1", tmp_path / "2") == 0


async def test_a_start_that_cannot_write_the_checkpoint_releases_the_directory(
    start_node: StartNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(checkpoint: StoreCheckpoint) -> None:
        raise OSError(errno.EIO, "injected")

    with monkeypatch.context() as patched:
        patched.setattr(StoreCheckpoint, "settle", fail)
        with pytest.raises(OSError, match="injected"):
            await start_node(tmp_path / "d")
    node = await start_node(tmp_path / "d")  # it is not locked
    await node.stop()
