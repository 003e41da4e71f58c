"""Where a group is to resume: as people write it, and as offsets."""

import asyncio
from typing import Any, cast

import pytest
from duolog import GroupQueue, Start, Unavailable

from duolog_server.ops.inspection.resets import (
    AT_ONCE,
    BadResumePoint,
    ResumePoint,
    resume_at,
    resume_point_of,
)


@pytest.mark.parametrize(
    ("text", "point"),
    [
        ("earliest", ResumePoint(Start.EARLIEST)),
        ("latest", ResumePoint(Start.LATEST)),
        ("1700000000000", ResumePoint(1_700_000_000_000)),
        ("offset:0", ResumePoint(offset=0)),
        (f"offset:{(1 << 63) - 1}", ResumePoint(offset=(1 << 63) - 1)),
    ],
)
def test_resume_points(text: str, point: ResumePoint) -> None:
    assert resume_point_of(text) == point


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nowhere",
        "offset:",
        "offset:-1",
        "offset:x",
        "offset:\u0663",
        f"offset:{1 << 63}",
        "offset:" + "9" * 5000,
    ],
)
def test_what_is_no_resume_point(text: str) -> None:
    with pytest.raises(BadResumePoint):
        resume_point_of(text)


class Admin:
    """Answers each queue with its own number, the later ones first; how many it answers at once."""

    def __init__(self) -> None:
        self.asked = self.at_once = self.at_once_max = 0

    async def offset_at_time(
        self, topic: str, queue_id: int, at: Start | int, *, group: str | None = None
    ) -> int:
        self.asked += 1
        self.at_once += 1
        self.at_once_max = max(self.at_once_max, self.at_once)
        for _ in range(100 - queue_id % 100):
            await asyncio.sleep(0)
        self.at_once -= 1
        if topic == "gone":
            raise Unavailable("no node answers")
        return queue_id


class Client:
    def __init__(self) -> None:
        self.admin = Admin()


QUEUES = [GroupQueue("T", "a", number, 0, 5, 20) for number in range(500)]


async def test_queues_are_asked_at_once_within_a_bound_and_an_error_is_raised_as_it_is() -> None:
    client = Client()
    found = await resume_at(cast(Any, client), QUEUES, ResumePoint(1_700_000_000_000))
    assert found == list(range(500)), "in the order of the queues"
    assert (client.admin.asked, client.admin.at_once_max) == (500, AT_ONCE)
    client = Client()
    queues = [GroupQueue("gone", "a", 0, 0, 5, 20), *QUEUES]
    with pytest.raises(Unavailable):
        await resume_at(cast(Any, client), queues, ResumePoint(1_700_000_000_000))
    assert client.admin.asked < 50


@pytest.mark.parametrize(
    ("point", "offset"),
    [
        (ResumePoint(Start.EARLIEST), 5),
        (ResumePoint(Start.LATEST), 20),
        (ResumePoint(offset=0), 5),
        (ResumePoint(offset=7), 7),
        (ResumePoint(offset=99), 20),
    ],
)
async def test_ends_and_offsets_ask_nobody(point: ResumePoint, offset: int) -> None:
    client = Client()
    assert await resume_at(cast(Any, client), QUEUES, point) == [offset] * 500
    assert client.admin.asked == 0
