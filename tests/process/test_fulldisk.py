"""A disk that is really full: DISK_FULL, reads continue, writes resume; no SIGBUS."""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import duolog
import pytest

from tests.process.support import NodeProcess
from tests.until import until

pytestmark = [pytest.mark.process, pytest.mark.privileged]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 24 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(path)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = f"cannot mount a tmpfs: {done.stderr.strip()}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    yield path
    subprocess.run(["umount", str(path)], check=True)


@pytest.mark.parametrize("ratio_checked", [True, False])
async def test_a_full_disk_refuses_writes_serves_reads_and_writes_again(
    small_disk: Path, ratio_checked: bool
) -> None:
    node = NodeProcess(
        small_disk / "data",
        *("--set", "store.mapped_file_size_commit_log=1048576"),
        *("--set", "store.mapped_file_size_consume_queue=20000"),
        *("--set", "store.max_hash_slot_num=1000", "--set", "store.max_index_num=20000"),
        *("--set", "store.clean_resource_interval=200"),
        *("--set", "store.clean_file_forcibly_enable=false"),
        *("--set", f"store.disk_space_warning_level_ratio={90 if ratio_checked else 1000}"),
    )
    await asyncio.to_thread(node.start)
    filler = small_disk / "filler"
    try:
        async with duolog.Client(node.endpoint, timeout=30) as client:
            await client.admin.create_topic("T", 1)
            stored = 0
            # Unknown where the machine stands still while the last try is under way.
            with pytest.raises((duolog.Busy, duolog.NotMaster, duolog.ResultUnknown)):
                async with client.producer(timeout=5) as producer:
                    while stored < 60:
                        await producer.send_batch("T", [b"x" * 1000] * 500)
                        stored += 1
            assert node.running
            # Nothing at all is left; a buffer would be written once more when the file is closed.
            with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(b"\0" * 65536)
            offset, count = 0, 0
            while True:
                batch = await client.pull("T", 0, offset)
                if not batch.count:
                    break
                count += batch.count
                offset = batch.next_offset
            assert count >= 500 * stored > 0

            async def told() -> bool:
                return "DISK_FULL" in (await client.admin.node_status()).flags

            if ratio_checked:
                await until(told, "the node says that its disk is full")
            assert (await client.admin.node_status()).fence_reason == ""
            filler.unlink()
            subprocess.run(["mount", "-o", "remount,size=96m", str(small_disk)], check=True)
            async with client.producer(timeout=40) as producer:
                receipt = await producer.send("T", b"after")
            assert (await client.pull("T", 0, receipt.queue_offset, wait=5)).body_list() == [
                b"after"
            ]
    finally:
        filler.unlink(missing_ok=True)
        assert node.stop() == 0
