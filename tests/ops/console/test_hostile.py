"""Whatever an address or a form says, no page fails, and none has markup or headers of it."""

from collections.abc import AsyncIterator, Iterator
from itertools import product
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import duolog
import httpx
import pytest
import structlog

from duolog_server.ops.console.app import ACTIONS, DOWNLOADS, PAGES
from duolog_server.ops.console.pages.finding import WAYS
from duolog_server.ops.console.view import addresses as at
from duolog_server.ops.console.view.render import body as shown_of
from duolog_server.ops.console.view.visits import Shown
from duolog_server.serve.server import Node
from tests.ops.console.pages.deferred.test_dead import make_letters
from tests.ops.console.test_actions import form_of
from tests.ops.console.test_app import HOSTILE, ORIGIN, browser

VALUES = (
    HOSTILE,
    "\x00",
    "-1",
    "9" * 40,
    "\u0663",
    "a" * 1000,
    "../../x",
    "%00%2e%2e",
    "x\r\nSet-Cookie: x=1",
    "x{{7*7}}x",
    "\ufdd0\U0010ffff\u202e",
)
PLACES = ("due", "place", "selected", "letter:x", "letters", "count", "epoch", "next", "confirm")
QUERY = (
    *("q", "after", "topic", "by", "value", "since", "until", "order", "case", "to", "at"),
    *("group", "user", "action", "resource", "source", "decision", "before", "from", "key"),
    *("sort", "system"),
    *PLACES,
)
FORM = (
    *("topic", "queues", "perm", "type", "lite_ttl", "body", "format", "keys", "tags"),
    *("properties", "queue", "delay", "to", "value", "key", "undo", "user", "password"),
    *PLACES,
)
NAMES: dict[str, Any] = {
    "topic": "T",
    "group": "g",
    "queue": "0",
    "offset": "0",
    "half": "0",
    "node": "test",
}
SLOW = (at.DOCTOR,)  # takes no words


def paths(pattern: str) -> Iterator[str]:
    """The page with names that exist and hostile words, and with hostile names."""
    for value in VALUES:
        words = urlencode(dict.fromkeys(QUERY, value))
        hostile: dict[str, Any] = dict.fromkeys(NAMES, value)
        yield f"{at.address(pattern, **NAMES)}?{words}"
        if "{" in pattern:
            yield at.address(pattern, **hostile)


def check(answer: httpx.Response, path: str) -> None:
    """Nothing failed, and nothing of the request is more than text."""
    assert answer.status_code in (200, 303, 400, 403, 404, 409), (path, answer.text)
    assert "x=1" not in answer.headers.get("set-cookie", "")
    assert "<script>alert" not in answer.text
    assert "<img" not in answer.text
    assert "x49x" not in answer.text
    if answer.status_code == 303:
        assert answer.headers["location"].startswith("/")
        assert not answer.headers["location"].startswith("//")


@pytest.fixture
async def tab(bare_client: duolog.Client, node: Node) -> AsyncIterator[httpx.AsyncClient]:
    """A browser at a node that has something on each page; nothing of it is logged as an error."""
    await make_letters(bare_client, [b"1", b"2"])
    with structlog.testing.capture_logs() as lines:
        async with browser(f"127.0.0.1:{node.port}") as tab:
            yield tab
    assert [line for line in lines if line["log_level"] == "error"] == []


async def test_no_page_fails(tab: httpx.AsyncClient) -> None:
    words = [{"topic": "T", "by": way, "value": value} for way in WAYS for value in VALUES]
    asked = [f"{at.MESSAGES}?{urlencode(one)}" for one in words]
    for pattern in (*PAGES, *DOWNLOADS, *ACTIONS):
        asked += [at.address(pattern)] if pattern in SLOW else paths(pattern)
    for path in asked:
        check(await tab.get(path), path)


async def test_no_form_fails(tab: httpx.AsyncClient, bare_client: duolog.Client) -> None:
    for pattern, value in product((*ACTIONS, at.UNDO, at.LOGIN, at.LOGOUT), VALUES):
        path = at.address(pattern, **NAMES)
        form: dict[str, Any] = await form_of(tab, at.TOPIC_CREATE)
        fields = dict.fromkeys(FORM, value)
        check(await tab.post(path, data={**form, **fields}, headers=ORIGIN), path)
    (topic,) = await bare_client.admin.topics(["T"])
    assert topic.queues == 1


async def test_a_body_that_is_no_form_is_refused(tab: httpx.AsyncClient) -> None:
    for body in (
        b"form=%ff%fe&once",
        b"\xff\xfe",
        b"&" * 5000,
        b"form=x&" * 33,
        b"a=%ed%a0%80&form=%00",
        b'{"form": 1}',
    ):
        kind = {"content-type": "multipart/form-data; boundary=x"}
        for headers in (ORIGIN, {**ORIGIN, **kind}):
            answer = await tab.post(at.TOPIC_CREATE, content=body, headers=headers)
            assert answer.status_code == 400


def test_unseen_characters_of_what_clients_say_have_a_sign_in_a_path() -> None:
    words = dict.fromkeys(("message", "place", "detail"), "x\u202e")
    steps = [SimpleNamespace(time_ms=0, step="sent", **words)]
    facts = {"sentence": "", "topic": "T", "steps": steps}
    html = shown_of(Shown("way.html", "Path", facts, "duolog msg track"))
    assert html.count("x⟨U+202E⟩") == len(words)
