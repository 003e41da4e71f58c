"""The console before real nodes, asked as a browser asks."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import duolog
import httpx
import pytest
from duolog.wire import duolog_pb2 as wire

from duolog_server.node.identity.access.lockout import FREE as ATTEMPTS
from duolog_server.node.runtime.consoleprocess import ConsoleOptions
from duolog_server.ops.console.app import Console
from duolog_server.ops.console.masking.seen import Seeing
from duolog_server.ops.console.pages import cluster
from duolog_server.ops.console.pages.messages import message
from duolog_server.ops.console.pages.topics import topic
from duolog_server.ops.console.program import client_of, settings_of
from duolog_server.ops.console.sessions.viewers import Settings, cookie_of
from duolog_server.ops.console.view import render
from duolog_server.ops.console.view.formatting import THIN
from duolog_server.ops.console.view.rates import Rates
from duolog_server.ops.console.view.render import LAST
from duolog_server.ops.console.view.visits import FORM_BYTES, Shown, Visit
from duolog_server.ops.inspection.doctor.findings import Seen
from duolog_server.ops.inspection.survey import look_at_nodes
from duolog_server.serve.server import Node
from tests.keyfiles import access_files
from tests.node.replicas import WAIT_SECONDS
from tests.nodefixtures import StartNode

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&\x1b[2J\u202e"
TYPED = HOSTILE.replace("\x1b", "")  # properties have no control characters
ORIGIN = {"origin": "http://localhost"}
PORT = 8090
EVERYTHING = Seeing()
COOKIE = cookie_of(Settings((), loopback=True, port=PORT))


@asynccontextmanager
async def browser(
    endpoint: str, *, loopback: bool = True, seeing: Seeing = EVERYTHING
) -> AsyncIterator[httpx.AsyncClient]:
    """A browser at a console of some nodes."""
    options = ConsoleOptions((endpoint,), "localhost")
    settings = Settings(options.endpoints, loopback, PORT, seeing=seeing)
    console = Console(settings, partial(client_of, options))
    app = console.app()
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        try:
            yield client
        finally:
            await console.close()


async def make_users(endpoint: str) -> None:
    """The super user boss, and alice, who has no rights."""
    async with duolog.Client(endpoint, user="root", password="pw", timeout=10) as client:
        await client.access.create_user("boss", "secret-of-boss", is_super=True)
    async with as_boss(endpoint) as client:
        await client.access.create_user("alice", "secret-of-alice")


def as_boss(endpoint: str) -> duolog.Client:
    return duolog.Client(endpoint, user="boss", password="secret-of-boss", timeout=10)


async def read(client: httpx.AsyncClient, path: str, status: int = 200) -> str:
    """A page's text."""
    answer = await client.get(path)
    assert answer.status_code == status, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return answer.text


def sentence(page: str) -> str:
    found = re.search(r'<p class="sentence[^>]*>([^<]*)</p>', page)
    assert found is not None
    return found[1]


async def test_a_node_without_users_on_loopback(
    bare_client: duolog.Client, producer: duolog.Producer, at: httpx.AsyncClient
) -> None:
    await bare_client.admin.create_topic("orders", 2)
    for number in range(3):
        await producer.send("orders", b'{"n": %d}' % number, keys=["k"], queue_id=1)
    async with bare_client.consumer("billing", "orders") as consumer:
        assert await consumer.get(10.0) is not None
        await consumer.commit()
    assert "127.0.0.1" in await read(at, "/")
    assert ">orders</a>" in await read(at, "/topics?q=ORD")
    assert ">orders</a>" not in await read(at, "/topics?q=other")
    page = await read(at, "/topics/orders")
    assert sentence(page) == "3 messages are kept in 2 queues."
    assert f"Messages are kept for 3{THIN}d, or less where the disk fills." in page
    assert re.search(rf"<p>Size: \d{{3}}{THIN}B\s*\.", page)
    assert re.search(r'>billing</a></th><td><span class="pill off">Not reached yet<', page)
    assert "Messages in, a second: in –, no data yet" in page
    assert f">3{THIN}d<" in await read(at, "/topics")
    page = await read(at, "/groups")
    assert re.search(
        r'>billing</a></th><td class="state"><span class="pill warn">No consumers<', page
    )
    assert ">billing</a>" in await read(at, "/groups?sort=lag")
    assert "2 messages behind on 1 of 2 queues" in sentence(await read(at, "/groups/billing"))
    found = await read(at, "/messages?topic=orders&by=key&value=k")
    assert sentence(found) == "3 messages found."
    assert "duolog msg find orders --key k" in found
    assert (
        sentence(await read(at, "/messages?topic=orders&by=time&value=1h")) == "3 messages found."
    )
    copied = quote(f"1/{THIN}1")  # as in a page's 1/12 345
    assert (
        sentence(await read(at, f"/messages?topic=orders&by=offset&value={copied}"))
        == "2 messages found."
    )
    page = await read(at, "/topics/orders/1/0")
    assert sentence(page) == "Consumed by its group."
    assert "&#34;n&#34;: 0" in page
    assert ">stored<" in page
    assert sentence(await read(at, "/topics/orders/1/2")) == "Its group has not consumed it yet."
    await read(at, "/doctor")


MISSING: list[tuple[str, int, str]] = [
    ("/topics/none", 404, "Unknown topic"),
    ("/groups/none", 404, "Unknown group"),
    ("/topics/orders/x/7", 400, "Bad request"),
    (f"/topics/orders/{1 << 31}/7", 400, "Bad request"),
    (f"/topics/orders/0/{1 << 63}", 400, "Bad request"),
    ("/messages?topic=orders&by=nothing", 400, "Bad request"),
    ("/messages?by=key&value=k", 400, "Messages"),
    ("/messages?topic=orders&by=time&value=yesterday", 400, "Messages"),
    ("/messages?topic=orders&by=offset&value=1", 400, "Messages"),
    ("/messages?topic=none&by=text&value=x", 404, "Messages"),
    ("/messages?by=id&value=zz", 400, "Messages"),
    ("/nowhere", 404, "Not found"),
]


async def test_what_does_not_exist_is_said(node: Node) -> None:
    endpoint = f"127.0.0.1:{node.port}"
    async with duolog.Client(endpoint, timeout=10) as client:
        await client.admin.create_topic("orders", 1)
    async with browser(endpoint) as at:
        for path, status, title in MISSING:
            assert f"<h1>{title}</h1>" in await read(at, path, status)


@pytest.mark.parametrize(
    "path",
    ["/messages?by=key&value=k&topic=none", "/waiting?topic=none", "/waiting/half?topic=none"],
)
async def test_a_form_about_a_topic_that_does_not_exist_stays(
    at: httpx.AsyncClient, path: str
) -> None:
    page = await read(at, path, 404)
    assert re.search(r'<input id="\w+" name="topic"[^>]* value="none"', page)
    assert "none" in sentence(page)


async def test_the_cluster_tells_how_long_sends_take_and_how_full_disks_are(
    single: duolog.Client, producer: duolog.Producer, at: httpx.AsyncClient
) -> None:
    assert "Append latency: p50 –" in await read(at, "/")
    await producer.send("T", b"x")
    page = await read(at, "/")
    assert re.search(rf"Append latency: p50 [\d.]+{THIN}m?s, p99 [\d.]+{THIN}m?s, ", page)
    assert re.search(rf"Disk used: \w+ \d+{THIN}%", page)


async def test_the_end_of_a_queue_waits_for_its_next_message(
    single: duolog.Client, producer: duolog.Producer, at: httpx.AsyncClient
) -> None:
    await producer.send("T", b"first")
    page = await read(at, "/topics/T/0/0")
    assert ">Previous</a>" not in page
    following = re.search(r'<a href="([^"]+)" rel="next">Wait for the next</a>', page)
    assert following is not None
    end = await read(at, following[1])
    assert sentence(end) == "The queue ends at offset 1: no message is stored here yet."
    assert "data-live" in end
    assert ">Nearest message</a>" in end
    await producer.send("T", b"second")
    stream = await at.get(following[1], headers={"accept": "text/event-stream"})
    assert "second" in stream.text, "it is shown"
    assert stream.text.endswith(LAST), "and waits no more"
    assert ">Next</a>" in await read(at, "/topics/T/0/0")
    assert 'rel="prev"' in await read(at, "/topics/T/0/1")
    beyond = await read(at, "/topics/T/0/99")
    assert "The queue ends at offset 2" in sentence(beyond)


@pytest.mark.parametrize(
    ("offset", "told", "nearest"),
    [
        (2, "Deleted by retention: the queue begins at offset 5 now.", True),
        (6, "The record at this place is damaged or gone.", True),
        (9, "The queue ends at offset 9: no message is stored here yet.", True),
    ],
)
async def test_a_place_without_a_message_says_why(offset: int, told: str, nearest: bool) -> None:
    class Empty:
        async def pull(self, *where: object, **how: object) -> duolog.Batch:
            return duolog.Batch(wire.MessageBatch(topic="T", min_offset=5, max_offset=9), "a")

    path = {"topic": "T", "queue": "0", "offset": str(offset)}
    shown = await message(Visit(cast(duolog.Client, Empty()), (), path, {}, 0.0, Rates()))
    assert shown.facts["sentence"] == told
    links = dict(cast(list[tuple[str, str]], shown.facts["links"]))
    assert (links.get("Nearest message") == "/topics/T/0/8?group=a") is nearest


async def test_what_was_deleted_while_it_was_looked_at_leads_to_its_list(
    single: duolog.Client, producer: duolog.Producer, at: httpx.AsyncClient
) -> None:
    await producer.send("T", b"x")
    await single.admin.commit("g", {("T", "broker-a", 0): 0})
    assert "No dead letter is kept." in await read(at, "/groups/g/dead")
    assert sentence(await read(at, "/groups/g/redeliver")) == "No dead letter is kept."
    await single.admin.delete_topic("T")
    await single.admin.delete_group("g")
    for path, text in (
        *((f"/topics/T{part}", "All topics") for part in ("", "/tail", "/send", "/alter", "/0/0")),
        *((f"/groups/g{part}", "All groups") for part in ("", "/dead", "/reset", "/redeliver")),
    ):
        assert f">{text}</a>" in await read(at, path, 404), path


async def test_a_group_without_offsets_has_nothing_to_reset(
    single: duolog.Client, at: httpx.AsyncClient
) -> None:
    await single.admin.put_group("g")
    assert "/groups/g/reset" not in await read(at, "/groups/g")
    page = await read(at, "/groups/g/reset")
    assert sentence(page) == "It has no offsets yet: nothing to reset."
    assert 'class="action"' not in page


async def test_hostile_messages_are_text(node: Node) -> None:
    endpoint = f"127.0.0.1:{node.port}"
    async with duolog.Client(endpoint, timeout=10) as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        await producer.send(
            "T",
            HOSTILE.encode(),
            keys=[re.sub(r"\s", "", TYPED)],
            tags=TYPED,
            properties={"p" + TYPED: TYPED},
        )
        async with browser(endpoint) as at:
            pages = [
                await read(at, "/messages?topic=T&by=time"),
                await read(at, "/topics/T/0/0"),
                await read(at, f"/messages?topic=T&by=key&value={quote(HOSTILE)}"),
                await read(at, f"/topics?q={quote(HOSTILE)}"),
                await read(at, f"/groups/{quote(HOSTILE.replace('/', ''))}", 404),
            ]
    for page in pages:
        assert "<script>alert" not in page
        assert "<img" not in page
        assert "&lt;script&gt;" in page or "alert" not in page
    for page in pages[:2]:
        assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", page)
        assert "⟨U+001B⟩[2J⟨U+202E⟩" in page
    assert "\u202e" not in sentence(pages[3])


async def test_a_console_shows_that_no_node_answers_and_goes_on(
    start_node: StartNode, tmp_path: Path
) -> None:
    node = await start_node(tmp_path)
    port = node.port
    async with browser(f"127.0.0.1:{port}") as at:
        await read(at, "/")
        await node.stop()
        page = await read(at, "/", 503)
        assert "<h1>Unavailable</h1>" in page
        assert f"Asked: 127.0.0.1:{port}." in page
        assert "data-live" in page
        await start_node(tmp_path, listen=f"127.0.0.1:{port}")
        async with asyncio.timeout(WAIT_SECONDS):
            while (await at.get("/")).status_code != 200:
                await asyncio.sleep(0.05)


async def test_users_log_in_and_see_what_they_may(guarded: str) -> None:
    async with as_boss(guarded) as client:
        await client.admin.create_topic("orders", 1)
    async with browser(guarded) as at:
        answer = await at.get("/topics?q=a")
        assert answer.status_code == 303
        assert answer.headers["location"] == "/login?next=%2Ftopics%3Fq%3Da"
        wrong = {"user": "boss", "password": "wrong", "next": "/topics"}
        answer = await at.post("/login", data=wrong, headers=ORIGIN)
        assert answer.status_code == 401
        assert sentence(answer.text) == "User or password is wrong."
        assert not at.cookies
        answer = await at.post(
            "/login", data={**wrong, "password": "secret-of-boss"}, headers=ORIGIN
        )
        assert (answer.status_code, answer.headers["location"]) == (303, "/topics")
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        page = await read(at, "/topics")
        assert ">orders</a>" in page
        assert "<span>boss</span>" in page
        form = re.search(r'name="form" value="([^"]+)"', page)
        assert form is not None
        kept = at.cookies[COOKIE]
        answer = await at.post("/logout", data={"form": "another"}, headers=ORIGIN)
        assert answer.status_code == 403
        await read(at, "/topics")
        await at.post("/logout", data={"form": form[1]}, headers=ORIGIN)
        assert not at.cookies
        at.cookies.set(COOKIE, kept)
        assert (await at.get("/topics")).status_code == 303
        at.cookies.clear()
        alice = {"user": "alice", "password": "secret-of-alice"}
        assert (await at.post("/login", data=alice, headers=ORIGIN)).status_code == 303
        assert ">orders</a>" not in await read(at, "/topics")
        await read(at, "/topics/orders", 403)


async def test_a_user_without_rights_on_the_cluster_begins_with_what_it_may_see(
    guarded: str,
) -> None:
    seen = {}
    async with as_boss(guarded) as client, browser(guarded) as at:
        await client.admin.create_topic("orders", 1)
        for user in ("alice", "boss"):
            login = {"user": user, "password": f"secret-of-{user}"}
            assert (await at.post("/login", data=login, headers=ORIGIN)).status_code == 303
            first = await read(at, "/")
            seen[user] = re.findall(r'<a href="([^"]+)" data-key="."[^>]*>(\w+)<', first)
            assert ("There is no topic or group that you may see." in first) is (user == "alice")
            assert ("duolog acl grant alice Topic:NAME Sub" in first) is (user == "alice")
    own = [("/", "Home"), ("/topics", "Topics"), ("/groups", "Groups")]
    waiting = [("/waiting", "Delayed"), ("/waiting/half", "Transactions")]
    assert seen["alice"] == [*own, *waiting]
    admin = [("/doctor", "Doctor"), ("/rights", "Rights"), ("/audit", "Audit")]
    messages = ("/messages", "Messages")
    assert seen["boss"] == [("/", "Cluster"), *own[1:], messages, *waiting, *admin]


async def test_nodes_are_not_asked_again_for_what_a_user_may_not_see(
    guarded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first page looks every few seconds, and each denied call would be in the audit log."""
    asked: list[object] = []

    async def look(*given: Any) -> Seen:
        asked.append(given)
        return await look_at_nodes(*given)

    monkeypatch.setattr(cluster, "look_at_nodes", look)
    async with browser(guarded) as at:
        for user, times in (("alice", 1), ("boss", 3)):
            login = {"user": user, "password": f"secret-of-{user}"}
            assert (await at.post("/login", data=login, headers=ORIGIN)).status_code == 303
            asked.clear()
            for _ in range(3):
                await read(at, "/")
            assert len(asked) == times, user


async def test_a_session_ends_with_its_user(guarded: str) -> None:
    async with as_boss(guarded) as client, browser(guarded, loopback=False) as at:
        alice = {"user": "alice", "password": "secret-of-alice"}
        assert (await at.post("/login", data=alice, headers=ORIGIN)).status_code == 303
        await read(at, "/topics")
        await client.access.delete_user("alice")
        assert (await at.get("/topics")).status_code == 303


async def test_a_login_takes_no_chosen_cookie_and_may_wait(
    start_node: StartNode, tmp_path: Path
) -> None:
    node = await start_node(access=access_files(tmp_path, "pw"))
    root = {"user": "root", "password": "pw"}
    async with browser(f"127.0.0.1:{node.port}", loopback=False) as at:
        at.cookies.set(COOKIE, "chosen", domain="localhost.local", path="/")
        cookies = ["chosen"]
        for _ in range(2):
            assert (await at.post("/login", data=root, headers=ORIGIN)).status_code == 303
            cookies.append(at.cookies[COOKIE])
        await read(at, "/topics")
        assert len(set(cookies)) == 3
        for over in cookies[:2]:
            at.cookies.clear()
            at.cookies.set(COOKIE, over)
            assert (await at.get("/topics")).status_code == 303
        wrong, right = ({"user": "root", "password": word} for word in ("wrong", "pw"))
        codes = [
            (await at.post("/login", data=wrong, headers=ORIGIN)).status_code
            for _ in range(ATTEMPTS + 1)
        ]
        assert codes == [401] * ATTEMPTS + [429]
        assert (await at.post("/login", data=right, headers=ORIGIN)).status_code == 429


async def test_behind_a_proxy_the_cookie_is_secure_and_everybody_logs_in(
    start_node: StartNode, tmp_path: Path
) -> None:
    node = await start_node(access=access_files(tmp_path, "pw"))
    own = "https://console.example.org"
    options = ConsoleOptions((f"127.0.0.1:{node.port}",), "127.0.0.1", origins=(own,))
    assert ConsoleOptions.of_line(options.line()) == options
    settings = settings_of(options, PORT)
    console = Console(settings, partial(client_of, options))
    transport = httpx.ASGITransport(console.app())
    names = {"host": "console.example.org", "origin": own}
    base = "http://127.0.0.1:8090"
    async with httpx.AsyncClient(transport=transport, base_url=base, headers=names) as at:
        assert (await at.get("/")).headers["location"] == "/login?next=%2F"
        page = (await at.get("/login")).text
        assert "without TLS" not in page
        root = {"user": "root", "password": "pw"}
        answer = await at.post("/login", data=root)
        assert answer.status_code == 303
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith(f"__Host-{COOKIE}=")
        assert "Secure" in cookie
        wrong = {**root, "password": "wrong"}
        for number in range(ATTEMPTS + 1):
            seen = {"x-forwarded-for": f"spoofed-{number}, 203.0.113.9"}
            answer = await at.post("/login", data=wrong, headers=seen)
        assert answer.status_code == 429
        other = {"x-forwarded-for": "203.0.113.10"}
        assert (await at.post("/login", data=root, headers=other)).status_code == 303
    await console.close()


async def test_only_loopback_is_served_without_users_and_no_long_form(node: Node) -> None:
    async with browser(f"127.0.0.1:{node.port}", loopback=False) as at:
        assert (await at.get("/")).status_code == 303
        answer = await at.post("/login", data={"user": "a", "password": "b"}, headers=ORIGIN)
        assert answer.status_code == 400
        assert "The nodes have no users" in sentence(answer.text)
        assert not at.cookies
    async with browser(f"127.0.0.1:{node.port}") as at:
        fields = {"user": "a", "password": "b" * FORM_BYTES}
        answer = await at.post("/login", data=fields, headers=ORIGIN)
        assert sentence(answer.text) == "Enter a user and a password."


@pytest.mark.parametrize(
    "wanted", ["//evil.example", "/\\evil.example", "https://evil.example", "/login?x", "/a\r\nb"]
)
async def test_a_login_goes_on_within_the_console(
    start_node: StartNode, tmp_path: Path, wanted: str
) -> None:
    node = await start_node(access=access_files(tmp_path, "pw"))
    async with browser(f"127.0.0.1:{node.port}") as at:
        fields = {"user": "root", "password": "pw", "next": wanted}
        answer = await at.post("/login", data=fields, headers=ORIGIN)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")


async def test_live_pages_tell_what_changed(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render, "LIVE_SECONDS", 0.01)
    node = await start_node()
    endpoint = f"127.0.0.1:{node.port}"
    async with duolog.Client(endpoint, timeout=10) as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        visit = Visit(client, (endpoint,), {"topic": "T"}, {}, 0.0, Rates())
        stream = render.live(partial(topic, visit), failed)
        async with asyncio.timeout(WAIT_SECONDS):
            first = await anext(stream)
            await producer.send("T", b"x")
            second = await anext(stream)
            await client.admin.delete_topic("T")
            third = await anext(stream)
    assert "0 messages are kept" in first
    assert "1 message is kept" in second
    assert all(line.startswith("data: ") or not line for line in second.split("\n"))
    assert "<h1>gone</h1>" in third
    assert "topic &#39;T&#39; does not exist" in third


def failed(error: duolog.DuologError) -> Shown:
    return Shown("error.html", "gone", {"sentence": str(error), "endpoints": (), "again": ""})
