"""Errors as pages."""

import duolog
import pytest

from duolog_server.ops.console.requests.answers import error_page, status_of


@pytest.mark.parametrize(
    ("error", "status", "alarm"),
    [
        (duolog.TopicExists("topic 'T' exists"), 409, False),
        (duolog.BadRequest("no"), 400, False),
        (duolog.MessageTooLarge("no"), 400, False),
        (duolog.Unavailable("no"), 503, True),
        (duolog.ResultUnknown("no"), 503, True),
    ],
)
def test_only_nodes_out_of_reach_are_an_alarm(
    error: duolog.DuologError, status: int, alarm: bool
) -> None:
    assert status_of(error) == status
    shown = error_page(error, ("n1:8081",)).facts
    assert (shown["alarm"], bool(shown["endpoints"])) == (alarm, alarm)
