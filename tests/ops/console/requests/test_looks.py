"""Pages that follow, hang or fail: each ends, with its session at the latest."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import duolog
import httpx
import pytest
import structlog
from duolog.wire import duolog_pb2 as wire

from duolog_server.ops.console import app as module
from duolog_server.ops.console.app import Console
from duolog_server.ops.console.requests import logins
from duolog_server.ops.console.sessions import viewers
from duolog_server.ops.console.sessions.forms import Told
from duolog_server.ops.console.sessions.sessions import IDLE_SECONDS
from duolog_server.ops.console.sessions.viewers import Settings, cookie_of
from duolog_server.ops.console.view import render
from duolog_server.ops.console.view.render import OVER
from duolog_server.ops.console.view.visits import Done, Page, Shown, Undo, Visit
from tests.node.replicas import WAIT_SECONDS
from tests.ops.console.deadlines import PageDeadlines

FOLLOWING = {"accept": "text/event-stream"}
ORIGIN = {"origin": "http://localhost"}
SETTINGS = Settings(("localhost:1",), loopback=False, port=8090)
COOKIE = cookie_of(SETTINGS)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Client:
    """Of no node. wrong: what a call raises."""

    wrong: Exception | None = None
    generation = b"first"  # of its user's password

    def __init__(self) -> None:
        self.calls = self.calls_most = 0

    @property
    def admin(self) -> "Client":
        return self

    @property
    def access(self) -> "Client":
        return self

    async def who_am_i(self) -> duolog.User:
        return duolog.User("alice", generation=self.generation)

    async def _ask(self, make: object) -> wire.UserReply:
        return wire.UserReply(user="alice")

    async def route(self) -> None:
        self.calls += 1
        self.calls_most = max(self.calls_most, self.calls)
        for _ in range(3):
            await asyncio.sleep(0)
        self.calls -= 1
        if self.wrong is not None:
            raise self.wrong

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        pass


def client() -> Any:
    return cast(Any, Client())


class Looks:
    """A page that tells of each look, and does something in it."""

    def __init__(self, work: Callable[[], Any] = lambda: None) -> None:
        self.begun: asyncio.Queue[Visit] = asyncio.Queue()
        self.work = work

    async def __call__(self, visit: Visit) -> Shown:
        self.begun.put_nowait(visit)
        found = self.work()
        if found is not None:
            await found
        return Shown("error.html", "seen", {"sentence": "secret", "endpoints": (), "again": ""})


@asynccontextmanager
async def looked(
    monkeypatch: pytest.MonkeyPatch,
    page: Page,
    clock: Callable[[], float] | None = None,
    make: Callable[[str, str], Any] = lambda user, password: client(),
    path: str = "/",
) -> AsyncIterator[tuple[Console, httpx.AsyncClient]]:
    """A console with one page, and the browser of a user who is logged in."""
    monkeypatch.setattr(render, "LIVE_SECONDS", 0.0)
    monkeypatch.setattr(module, "PAGES", {path: page})
    console = Console(SETTINGS, make, clock or Clock())
    transport = httpx.ASGITransport(console.app())
    async with (
        asyncio.timeout(WAIT_SECONDS),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as at,
    ):
        at.cookies.set(COOKIE, await console.sessions.add("alice", client()))
        yield console, at


async def test_a_page_that_follows_ends_with_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    page = Looks()
    async with looked(monkeypatch, page) as (console, at):
        answer = asyncio.create_task(at.get("/", headers=FOLLOWING))
        await page.begun.get()
        await console.sessions.end(at.cookies[COOKIE])
        told = (await answer).text
    assert told.endswith(OVER)
    assert told.count("secret") <= 1

    def denied() -> None:
        raise duolog.Unauthenticated("the user is disabled")

    async with looked(monkeypatch, Looks(denied)) as (console, at):
        assert (await at.get("/", headers=FOLLOWING)).text == OVER
        assert len(console.sessions) == 0
        assert (await at.get("/", headers=FOLLOWING)).text == OVER
    clock, page = Clock(), Looks()
    async with looked(monkeypatch, page, clock) as (_, at):
        clock.now += IDLE_SECONDS - 1
        answer = asyncio.create_task(at.get("/", headers=FOLLOWING))
        await page.begun.get()
        clock.now += 2
        assert (await answer).text.endswith(OVER)


async def test_what_is_found_after_a_session_has_ended_is_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proceed = asyncio.Event()
    page = Looks(proceed.wait)
    async with looked(monkeypatch, page) as (console, at):
        following = asyncio.create_task(at.get("/", headers=FOLLOWING))
        whole = asyncio.create_task(at.get("/"))
        for _ in range(2):
            await page.begun.get()
        await console.sessions.end(at.cookies[COOKIE])
        proceed.set()
        assert (await following).text == OVER
        assert (await whole).status_code == 303


async def test_a_browser_that_is_gone_looks_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    page = Looks(asyncio.Event().wait)
    monkeypatch.setattr(viewers, "STREAMS_MAX", 1)
    async with looked(monkeypatch, page) as (console, at):
        session = console.sessions.peek(at.cookies[COOKIE])
        assert session is not None
        for _ in range(3):
            answer = asyncio.create_task(at.get("/", headers=FOLLOWING))
            await page.begun.get()
            assert (session.looks, console.looks.streams) == (1, 1)
            assert (await at.get("/", headers=FOLLOWING)).status_code == 503
            answer.cancel()
            await asyncio.wait([answer])
            assert (session.looks, console.looks.streams) == (0, 0)


async def test_pages_that_hang_end_and_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    deadlines = PageDeadlines(monkeypatch)
    page = Looks(asyncio.Event().wait)
    async with looked(monkeypatch, page) as (console, at):
        session = console.sessions.peek(at.cookies[COOKIE])
        assert session is not None
        session.looks_max = 2
        asked = [asyncio.create_task(at.get("/")) for _ in range(5)]
        while sum(one.done() for one in asked) < 3 or page.begun.qsize() < 2:
            await asyncio.sleep(0)
        deadlines.come()
        answers = await asyncio.gather(*asked)
        assert [one.status_code for one in answers] == [503] * 5
        assert page.begun.qsize() == 2
        assert sum("did not answer within" in one.text for one in answers) == 2


async def test_a_page_that_fails_says_nothing_of_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ValueError("a password")

    with structlog.testing.capture_logs() as lines:
        async with looked(monkeypatch, Looks(fail)) as (_, at):
            answer = await at.get("/")
    assert answer.status_code == 500
    assert "This page failed" in answer.text
    assert "password" not in answer.text
    assert "content-security-policy" in answer.headers
    assert [line["event"] for line in lines] == ["a page of the console failed"]


async def test_few_logins_ask_the_nodes_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "LOGINS_MAX", 2)
    nodes = Client()
    nodes.wrong = duolog.Unauthenticated("wrong")

    def make(user: str, password: str) -> Any:
        return nodes

    fields = {"user": "alice", "password": "guess"}
    async with looked(monkeypatch, Looks(), make=make) as (_, at):
        tries = [
            asyncio.create_task(at.post("/login", data=fields, headers=ORIGIN)) for _ in range(5)
        ]
        assert [(await one).status_code for one in tries] == [401] * 5
    assert nodes.calls_most == 2


async def test_a_login_goes_on_at_a_name_with_signs_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with looked(monkeypatch, Looks(), path="/topics/{topic}") as (_, at):
        at.cookies.clear()
        answer = await at.get("/topics/%25RETRY%25ab?q=%26")
        expected = "/login?next=%2Ftopics%2F%2525RETRY%2525ab%3Fq%3D%2526"
        assert answer.headers["location"] == expected
    # A redirect would name a scheme and a host, of which a proxy may have others.
    async with looked(monkeypatch, Looks(), path="/topics") as (_, at):
        for path in ("/topics/", "/login/", "//evil.example/", "/%2F/evil.example/"):
            answer = await at.get(path)
            assert (answer.status_code, answer.headers.get("location")) == (404, None)
    assert cookie_of(replace(SETTINGS, secured=True)).startswith("__Host-")


async def test_a_link_on_another_site_asks_once_more_before_a_login(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cookie, which is of this site alone, comes with the second request."""
    follows = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    follows["sec-fetch-dest"] = "document"
    async with looked(monkeypatch, Looks(), path="/topics/{topic}") as (_, at):
        cookie = at.cookies[COOKIE]
        at.cookies.clear()
        answer = await at.get("/topics/%25RETRY%25ab?q=%26", headers=follows)
        login = "/login?next=%2Ftopics%2F%2525RETRY%2525ab%3Fq%3D%2526"
        assert (answer.status_code, answer.headers["refresh"]) == (200, f"0; url={login}")
        assert "secret" not in answer.text
        assert "Log in as" in (await at.get(login)).text
        at.cookies.set(COOKIE, cookie)
        answer = await at.get(login)
        assert (answer.status_code, answer.headers["location"]) == (
            303,
            "/topics/%25RETRY%25ab?q=%26",
        )
        answer = await at.get("/login?next=%2F%2Fevil.example")
        assert answer.headers["location"] == "/"


async def test_an_undo_leads_back_to_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(client: duolog.Client) -> str:
        return "undone"

    async with looked(monkeypatch, Looks(), path="/groups/{group}") as (console, at):
        session = console.sessions.peek(at.cookies[COOKIE])
        assert session is not None
        undo = Undo("Undo", run)
        session.told = Told(Done("done", "/", undo), session.offer(undo))
        page = (await at.get("/groups/%2541")).text
        assert 'name="next" value="/groups/%2541"' in page
        fields = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]+)"', page))
        answer = await at.post("/undo", data=fields, headers=ORIGIN)
        assert answer.headers["location"] == "/groups/%2541"
    async with looked(monkeypatch, Looks(), path="/groups/{group}") as (console, at):
        session = console.sessions.peek(at.cookies[COOKIE])
        assert session is not None
        fields = {"form": session.form, "once": "forgotten", "next": "/groups/g"}
        answer = await at.post("/undo", data=fields, headers=ORIGIN)
        assert answer.status_code == 400
        assert '<a href="/groups/g">Open the page again</a>' in answer.text
        fields["next"] = "//evil.example"
        answer = await at.post("/undo", data=fields, headers=ORIGIN)
        assert '<a href="/">Open the page again</a>' in answer.text


@pytest.mark.parametrize("path", ["/undo", "/logout"])
async def test_what_forms_are_sent_to_is_no_page(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    async with looked(monkeypatch, Looks()) as (_, at):
        answer = await at.get(path)
        assert answer.status_code == 404
        assert "This page does not exist." in answer.text


async def test_consoles_on_one_host_do_not_log_each_others_users_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def make(user: str, password: str) -> Any:
        found = Client()
        found.wrong = None if user else duolog.Unauthenticated("nobody")
        return found

    other = Console(replace(SETTINGS, port=8091), make, Clock())
    fields = {"user": "alice", "password": "right"}
    async with looked(monkeypatch, Looks()) as (_, at):
        transport = httpx.ASGITransport(other.app())
        base = "http://localhost"
        async with httpx.AsyncClient(transport=transport, base_url=base) as at_other:
            at_other.cookies = at.cookies.jar  # a browser sends those of a host to all its ports
            assert (await at_other.get("/")).headers["location"] == "/login?next=%2F"
            answer = await at_other.post("/login", data=fields, headers=ORIGIN)
            assert answer.status_code == 303
            assert set(at.cookies) == {"duolog_console_8090", "duolog_console_8091"}
            assert (await at.get("/")).status_code == 200
            assert (await at_other.get("/")).status_code == 200


async def test_a_session_is_over_when_its_user_has_the_same_password_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Client] = []

    def make(user: str, password: str) -> Any:
        made.append(Client())
        made[-1].wrong = None if user else duolog.Unauthenticated("nobody")
        return made[-1]

    other = Console(replace(SETTINGS, port=8091), make, Clock())
    fields = {"user": "alice", "password": "right"}
    async with looked(monkeypatch, Looks()):
        transport = httpx.ASGITransport(other.app())
        base = "http://localhost"
        async with httpx.AsyncClient(transport=transport, base_url=base) as browser:
            assert (await browser.post("/login", data=fields, headers=ORIGIN)).status_code == 303
            assert (await browser.get("/")).status_code == 200
            for client in made:
                client.generation = b"second"
            assert (await browser.get("/")).headers["location"] == "/login?next=%2F"
            for client in made:
                client.generation = b"first"
            assert (await browser.get("/")).headers["location"] == "/login?next=%2F"
