"""What a page renders is bounded, however many queues there are."""

import json
import re
from typing import Any, cast

import pytest
from duolog import GroupDescription, GroupQueue, QueueMoves, QueueStats, TopicDescription

from duolog_server.ops.console.pages.groups import group
from duolog_server.ops.console.pages.lists import LIVE_ROWS_MAX
from duolog_server.ops.console.pages.rights import rights
from duolog_server.ops.console.pages.topics import topic
from duolog_server.ops.console.view.questions import PREVIEW_ROWS_MAX, Question
from duolog_server.ops.console.view.rates import Rates
from duolog_server.ops.console.view.render import body
from duolog_server.ops.console.view.visits import Shown, Visit
from duolog_server.ops.inspection.doctor.findings import NOTE, Finding

MORE = 1300


class Admin:
    """Of nodes that hold these."""

    def __init__(self, groups: GroupDescription | None, topics: list[TopicDescription]) -> None:
        self._groups, self._topics = groups, topics

    async def group(self, name: str) -> GroupDescription | None:
        return self._groups

    async def topics(self, names: list[str], **_: bool) -> list[TopicDescription]:
        return [one for one in self._topics if one.topic in names]

    async def moves(self, topic: str = "") -> QueueMoves:
        return QueueMoves()


class Client:
    def __init__(self, admin: Admin) -> None:
        self.admin = admin


def visit(admin: Admin, **path: str) -> Visit:
    return Visit(cast(Any, Client(admin)), (), path, {}, 0.0, Rates())


def rows(html: str) -> int:
    return len(re.findall(r"<tr\b", html.partition("<tbody>")[2]))


async def test_pages_show_their_first_queues_rows_rights_and_users() -> None:
    queues = [
        GroupQueue("T", "a", number, 0, 0, number, lag_messages=number)
        for number in range(LIVE_ROWS_MAX + MORE)
    ]
    shown = await group(visit(Admin(GroupDescription("g", 0, tuple(queues)), []), group="g"))
    listed: Any = shown.facts["rows"]
    furthest = [*range(LIVE_ROWS_MAX + MORE - 1, MORE - 1, -1)]
    assert [row.queue.queue_id for row in listed] == furthest
    html = body(shown)
    assert rows(html) == LIVE_ROWS_MAX
    assert "1\u202f300 more queues are not shown." in html
    preview = [(f"a/{number}", "0") for number in range(PREVIEW_ROWS_MAX + 1)]
    question = Question("Reset", "Skips nothing.", "", heads=("Queue", "From"), preview=preview)
    html = body(question.shown())
    assert rows(html) == PREVIEW_ROWS_MAX
    assert "1 more row is not shown." in html
    entry = {"resource": "Topic:a", "actions": ["Pub"], "decision": "Allow"}
    policies = [{"policyType": "Custom", "entries": [entry] * (LIVE_ROWS_MAX + 5)}]

    class Access:
        async def rights(self, name: str) -> str:
            return json.dumps({"subject": f"User:{name}", "policies": policies})

    class Holder:
        access = Access()

    looked = Visit(cast(Any, Holder()), (), {}, {"user": "alice"}, 0.0, Rates())
    html = body(await rights(looked))
    assert rows(html) == LIVE_ROWS_MAX
    assert "5 more entries are not shown." in html


@pytest.mark.parametrize(
    ("sizes", "shown_sizes"),
    [
        ([LIVE_ROWS_MAX + MORE], [LIVE_ROWS_MAX]),
        ([LIVE_ROWS_MAX, MORE], [LIVE_ROWS_MAX]),
        ([300, MORE + 200, 0], [300, 200, 0]),
    ],
)
async def test_a_topic_shows_its_first_queues(sizes: list[int], shown_sizes: list[int]) -> None:
    parts = [
        TopicDescription(
            "T",
            f"group-{part}",
            size,
            stats=tuple(QueueStats(number, 0, 0) for number in range(size)),
        )
        for part, size in enumerate(sizes)
    ]
    shown = await topic(visit(Admin(None, parts), topic="T"))
    listed: Any = shown.facts["parts_shown"]
    assert [len(part.rows) for part in listed] == shown_sizes
    html = body(shown)
    assert html.count("by=offset") == LIVE_ROWS_MAX
    assert "1\u202f300 more queues are not shown." in html
    assert f"in {sum(sizes):,} queues".replace(",", "\u202f") in html


@pytest.mark.parametrize(("count", "told"), [(100, ""), (101, "1 more finding is not shown.")])
def test_findings_are_few(count: int, told: str) -> None:
    findings = [Finding(NOTE, "c", f"group {number}", "so", "do") for number in range(count)]
    html = body(Shown("doctor.html", "Doctor", {"sentence": "So.", "findings": findings}))
    assert html.count("<li ") == 100
    assert ("not shown" in html, told in html) == (bool(told), True)
