"""The comparison itself: what counts as a difference, and as a known one."""

import pytest

from duolog_server.compat.remoting.codec.command import Command
from tests.conformance.differential.comparing import Difference, Known, differences, unknown
from tests.conformance.differential.differences import KNOWN
from tests.conformance.differential.seen import OFFSET_ID, Seen, plain
from tests.process.support import ROOT

PAGE = ROOT / "docs" / "remoting.md"
TABLE = "| | RocketMQ 4.9 | here |"


def rows() -> list[str]:
    """The first cells of the table of differences."""
    lines = PAGE.read_text().partition(TABLE)[2].splitlines()[2:]
    end = next(number for number, line in enumerate(lines) if not line.startswith("|"))
    return [line.split("|")[1].strip() for line in lines[:end]]


def test_what_one_side_has_and_what_both_say_otherwise_are_differences() -> None:
    found = differences({"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "9", "d": "4"})
    assert found == [
        Difference("b", "2", "9"),
        Difference("c", "3", "-"),
        Difference("d", "-", "4"),
    ]


def test_of_answers_with_other_codes_only_the_codes_are_told() -> None:
    theirs = {"pull: code": "0", "pull: offset": "5", "pull 2: code": "0", "pull 2: offset": "5"}
    ours = {"pull: code": "1", "pull: remark": "yes", "pull 2: code": "0", "pull 2: offset": "6"}
    assert [one.name for one in differences(theirs, ours)] == ["pull 2: offset", "pull: code"]


@pytest.mark.parametrize(
    ("names", "theirs", "ours", "known"),
    [
        ("send *: property CLUSTER", "a", "-", True),
        ("send *: property CLUSTER", "b", "-", False),
        ("send good", "*", "*", False),
        ("send [1]?: property CLUSTER", "a", "-", False),
    ],
)
def test_a_new_difference_and_one_that_ended_are_reported(
    names: str, theirs: str, ours: str, known: bool
) -> None:
    found = [Difference("send good: property CLUSTER", "a", "-")]
    row = Known("row", names, theirs, ours)
    assert bool(unknown(found, [row])) is not known
    assert unknown([], [row]) == [f"no difference any more: {row}"]
    assert unknown(found, []) == ["send good: property CLUSTER: RocketMQ 'a', here '-'"]


def test_what_differs_in_each_run_is_replaced() -> None:
    ids = "7F0000010000271100000000000001F4"
    assert plain("msgId", f"{ids},{ids}") == f"{OFFSET_ID},{OFFSET_ID}"
    client = "0A0000010000000000000000000000A1"
    assert plain("UNIQ_KEY", client) == client
    assert plain("timestamp", "1000") == "1000"


def test_a_remark_is_noted_by_whether_there_is_one() -> None:
    seen = Seen()
    seen.answer("one", Command(1, 0, {"a": "b", "left": "out"}, remark="why"), "left")
    seen.answer("two", Command(0, 0, remark="FOUND"))
    assert seen.rows == {"one: code": "1", "one: remark": "yes", "one: a": "b", "two: code": "0"}


@pytest.mark.parametrize("row", sorted({one.row for one in KNOWN}))
def test_every_known_difference_is_explained(row: str) -> None:
    assert any(cell.startswith(row) for cell in rows()), f"no row {row!r} in {PAGE.name}"
