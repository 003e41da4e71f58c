"""A real broker of RocketMQ is moved while it is written to and read, and killed on the way."""

from pathlib import Path

import duolog
import pytest

from tests.conformance.migrated import SEGMENT, SIZES, Move
from tests.process.support import NodeProcess

pytestmark = [pytest.mark.process, pytest.mark.long]


async def test_a_broker_is_moved_while_it_works(tmp_path: Path) -> None:
    found = await Move(tmp_path, "4.9.7", 200).run()
    assert [(row["broker"], row["version"]) for row in found.plan] == [("broker-a", "V4_9_7")]
    assert found.status["state"] == "PROMOTED"
    segments = found.status["segments"]
    assert isinstance(segments, list)
    assert len(segments) == found.cut // SEGMENT > 1
    assert found.same, "the logs are equal up to the cut, then as at the end"
    assert (found.missing, found.twice) == (0, 0), "consumers went on where they were"
    node = NodeProcess(tmp_path / "data", *SIZES)
    node.start()
    async with duolog.Client(node.endpoint, timeout=10) as client:
        halves = await client.admin.halves_page()
        assert [half.topic for half in halves.rows] == ["T"], "half messages carry on"
    assert node.stop() == 0
