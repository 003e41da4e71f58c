"""Masterships as people read them: how long, why, and how long nobody led."""

import pytest
from duolog import Mastership

from duolog_server.ops.inspection.masterships import led


def test_a_mastership_ends_when_nobody_leads_and_has_no_negative_length() -> None:
    first, second, third = led(
        [
            Mastership(5, "a", 1_000, "STARTED"),
            Mastership(6, "b", 10_000, "LEASE_ENDED", 3_400),
            Mastership(7, "a", 20_000, "HANDED_OVER", 60),
        ]
    )
    assert (first.lasted_ms, first.unled_ms, first.cause) == (5_600, None, "start")
    assert (second.lasted_ms, second.cause) == (9_940, "the lease of a ended")
    assert (third.lasted_ms, third.unled_ms, third.cause) == (None, 60, "planned switch")
    first, _ = led([Mastership(1, "a", 5_000), Mastership(2, "b", 4_000, unled_ms=9_000)])
    assert first.lasted_ms == 0
    assert led([]) == []


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ("LEASE_ENDED", "the lease of the last master ended"),
        ("DEPOSED", "the last master lacked confirmed messages"),
        ("UNCLEAN", "unclean election by hand"),
        ("OF_A_NEWER_NODE", "of a newer node"),
        ("", ""),
    ],
)
def test_causes_in_words(cause: str, words: str) -> None:
    (one,) = led([Mastership(9, "a", 0, cause)])
    assert one.cause == words
