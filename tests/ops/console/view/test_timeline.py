"""The line of masterships: in order, without an overlap, and readable at any length."""

from itertools import pairwise

import pytest

from duolog_server.ops.console.view.formatting import THIN
from duolog_server.ops.console.view.timeline import (
    LETTER,
    LINES_MAX,
    NAME_MAX,
    Gap,
    Span,
    time_line,
)
from duolog_server.ops.inspection.masterships import Led

HOUR_MS = 3_600_000
LONG = "node-" + "x" * 250


def test_spans_and_gaps_alternate_along_the_line_by_their_length() -> None:
    line = time_line(
        [
            Led(5, "a", 0, 3 * HOUR_MS, "start", None),
            Led(6, "b", 1, 400 * HOUR_MS, "planned switch", 60),
            Led(7, "a", 2, None, "the lease of b ended", 3_400),
        ]
    )
    both: list[Span | Gap] = [*line.spans, *line.gaps]
    parts = sorted(both, key=lambda part: part.begin)
    assert [type(part).__name__ for part in parts] == ["Span", "Gap", "Span", "Gap", "Span"]
    assert parts[0].begin == 0
    assert parts[-1].end == line.width
    assert all(before.end == after.begin < after.end for before, after in pairwise(parts))
    assert [span.label for span in line.spans] == ["5 a", "6 b", "7 a"]
    assert [span.length for span in line.spans] == [f"3{THIN}h", f"17{THIN}d", ""]
    assert [gap.length for gap in line.gaps] == [f"60{THIN}ms", f"3.4{THIN}s"]
    assert [" ".join(gap.cause) for gap in line.gaps] == ["planned switch", "the lease of b ended"]
    assert line.says == (
        f"Time-line of masters: a leads epoch 7; before, no master for 3.4{THIN}s: the lease of b "
        "ended. The table has all of it."
    )
    lengths = [1_000, 10_000, HOUR_MS, 24 * HOUR_MS, 24 * 365 * HOUR_MS]
    spans = time_line([Led(1, "a", 0, one, "", None) for one in lengths]).spans
    gaps = time_line([Led(1, "a", 0, None, "", one) for one in (0, *lengths)]).gaps
    for widths in ([one.end - one.begin for one in spans], [one.end - one.begin for one in gaps]):
        assert widths == sorted(widths)
        assert widths[-1] > 2 * widths[0]
    assert spans[-1].end - spans[-1].begin < 150, "a year and a second on one line"
    line = time_line([Led(1, "a", 0, 5, "", None), Led(2, "b", 0, None, "", None)])
    assert (line.gaps[0].length, line.gaps[0].cause) == ("?", [])
    assert "it is not known how long there was no master." in line.says
    early, late = (time_line([Led(1, "a", begin, None, "start", None)]) for begin in (0, 9**9))
    assert early == late
    assert time_line([]).spans == []


@pytest.mark.parametrize("name", ["a", LONG, "\u202e<script>"])
def test_texts_have_room(name: str) -> None:
    cause = f"the lease of {name} ended"
    line = time_line([Led(1, name, 0, 5, "", None), Led(2, name, 0, None, cause, 9)])
    for span in line.spans:
        assert len(span.label) <= NAME_MAX + 2
        assert LETTER * len(span.label) < span.end - span.begin
    (gap,) = line.gaps
    assert len(gap.cause) <= LINES_MAX
    assert all(LETTER * len(words) < gap.end - gap.begin for words in gap.cause)
    assert name in line.says
