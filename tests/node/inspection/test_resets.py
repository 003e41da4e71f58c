"""Where a group is to resume, as people write it."""

import pytest
from duolog import Start

from node.inspection.resets import BadPlace, Place, place_of


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", Place(Start.EARLIEST)),
        ("latest", Place(Start.LATEST)),
        ("1700000000000", Place(1_700_000_000_000)),
        ("offset:0", Place(offset=0)),
        (f"offset:{(1 << 63) - 1}", Place(offset=(1 << 63) - 1)),
    ],
)
def test_places(text: str, place: Place) -> None:
    assert place_of(text) == place


@pytest.mark.parametrize(
    "text",
    ["", "nowhere", "offset:", "offset:-1", "offset:x", "offset:\u0663", f"offset:{1 << 63}"],
)
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(BadPlace):
        place_of(text)
