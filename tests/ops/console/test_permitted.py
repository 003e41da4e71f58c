"""No page has a link or a form that its viewer may not use, whatever the viewer's rights are."""

import json
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import httpx
import pytest

from duolog_server.ops.console.app import ACTIONS, DOWNLOADS, PAGES
from duolog_server.ops.console.view import addresses as at
from duolog_server.ops.inspection import survey
from tests.keyfiles import access_files
from tests.node.api.waiting.test_halves import PATIENT, send_halves, waiting
from tests.nodefixtures import StartNode
from tests.ops.console.pages.deferred.test_dead import make_letters
from tests.ops.console.test_app import ORIGIN, as_boss, browser, make_users

# What each user may do, as entries of its rights.
USERS: dict[str, list[str]] = {
    "nobody": [],
    "groups": ["Group:* Get"],
    "creator": ["Topic:made* Create"],
    "lister": ["Topic:* List", "Group:* List", "Cluster:* Get"],
    "sender": ["Topic:T Pub"],
    "topic": ["Topic:T Pub,Sub"],
    "reader": ["Topic:* Sub,Get", "Group:* Sub,Get", "Cluster:* Get"],
    "resetter": ["Topic:* Get", "Group:* Get,Update"],
    "decider": ["Topic:T Get", "Group:P Pub"],
    "operator": ["Topic:* All", "Group:* All", "Cluster:* All"],
}
# What each of them is offered: the console hides no more than it must.
OFFERED: dict[str, set[str]] = {
    "nobody": set(),
    "groups": {at.GROUP, at.TOPIC},  # its topic of retries
    "creator": {at.TOPIC_CREATE},
    "lister": {at.DOCTOR, at.TOPIC, at.GROUP},
    "sender": {at.TOPIC, at.MESSAGE_SEND, at.DELAYED_RECALL},
    "topic": {
        *(at.TOPIC, at.MESSAGES, at.TAIL, at.MESSAGE, at.WAY),
        *(at.MESSAGE_SEND, at.MESSAGE_AGAIN, at.DELAYED_RECALL),
    },
    "reader": {
        *(at.DOCTOR, at.TOPIC, at.MESSAGES, at.TAIL, at.MESSAGE, at.WAY),
        *(at.GROUP, at.DEAD, at.DEAD_EXPORT),
    },
    "resetter": {at.TOPIC, at.GROUP, at.GROUP_RESET},
    "decider": {at.TOPIC, at.HALF_DECIDE},
}
ALL_SEE = {at.CLUSTER, at.TOPICS, at.GROUPS, at.DELAYED, at.HALVES}
# This node elects nobody, and the walk searches for nothing.
ELSEWHERE = {at.NODE_SWITCH, at.NODE_DRAIN, at.NODE_FORGET, at.NODE_UNDRAIN}
ELSEWHERE |= {at.SEARCH_STOP, at.SEARCH_AGAIN}
FOR_SUPERS = {at.RIGHTS, at.AUDIT}
OFFERED["operator"] = {*PAGES, *ACTIONS, *DOWNLOADS} - ALL_SEE - ELSEWHERE - FOR_SUPERS


class Seen(HTMLParser):
    """Links and forms of a page. forms: method, address and fields."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.forms: list[tuple[str, str, dict[str, str]]] = []
        self._confirms = False
        self._select = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "a":
            self.links.add(given["href"])
        elif tag == "form" and given.get("method") != "dialog":
            self.forms.append((given.get("method", "get"), given.get("action", ""), {}))
        elif tag == "label" and given.get("for") == "confirm":
            self._confirms = True
        elif self.forms and tag in ("input", "textarea", "select") and "name" in given:
            self._select = given["name"]
            self.forms[-1][2].setdefault(given["name"], given.get("value", ""))
        elif self.forms and tag == "option":
            fields = self.forms[-1][2]
            if "selected" in given or not fields[self._select]:
                fields[self._select] = given["value"]
        elif tag == "button" and "formaction" in given:
            self.forms.append((self.forms[-1][0], given["formaction"], self.forms[-1][2]))

    def handle_data(self, data: str) -> None:
        if self._confirms and self.forms and data.strip() not in ("Type", "to confirm", ""):
            self.forms[-1][2]["confirm"] = data.strip()
            self._confirms = False


class Walk:
    """All that a user reaches from the first page, by links and forms."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self.paths: set[str] = set()
        self.posts: list[tuple[str, dict[str, str]]] = []

    async def everything(self) -> None:
        """Follow all links, and send all forms that only ask."""
        await self._follow(["/"])

    async def _follow(self, todo: list[str]) -> None:
        while todo:
            path = todo.pop()
            if path in self.paths or path.startswith(at.STATIC):
                continue
            self.paths.add(path)
            answer = await self._client.get(path)
            assert answer.status_code == 200, (path, answer.status_code, answer.text[:2000])
            if "html" in answer.headers["content-type"]:
                todo += self._seen(path, answer.text)

    def _seen(self, path: str, text: str) -> Iterator[str]:
        seen = Seen(text)
        yield from (urljoin(path, one) for one in seen.links if not one.startswith("#"))
        for method, action, fields in seen.forms:
            to = urljoin(path, action) if action else path
            if method == "post" and to != at.LOGOUT:
                self.posts.append((to, fields))
            elif method == "get" and "by" not in fields:  # or it asks for what its viewer types
                yield str(httpx.URL(to).copy_merge_params(fields))

    async def act(self) -> None:
        """Send all forms that change something; what deletes comes last."""
        for path, fields in sorted(self.posts, key=lambda one: one[0].endswith("/delete")):
            filled = {**fields, **({"topic": "made"} if path == at.TOPIC_CREATE else {})}
            answer = await self._client.post(path, data=filled, headers=ORIGIN)
            assert answer.status_code in (303, 400, 404, 409), (path, answer.text)
            if answer.status_code == 303:
                after = await self._client.get(answer.headers["location"])
                assert after.status_code in (200, 404), (path, after.text)
                for method, action, undo in Seen(after.text).forms:
                    if (method, action) == ("post", at.UNDO) and "once" in undo:
                        undone = await self._client.post(at.UNDO, data=undo, headers=ORIGIN)
                        assert undone.status_code in (303, 404), (path, undone.text)


def patterns_of(paths: set[str]) -> set[str]:
    """The patterns of some addresses."""
    known = sorted(PAGES.keys() | ACTIONS.keys() | DOWNLOADS.keys(), key=lambda one: one.count("{"))
    return {next(one for one in known if _is(one, urlsplit(path).path)) for path in paths}


def _is(pattern: str, path: str) -> bool:
    words, own = path.split("/"), pattern.split("/")
    return len(words) == len(own) and all(
        a == b or b.startswith("{") for a, b in zip(words, own, strict=True)
    )


def rights(entries: list[str]) -> str:
    rows = []
    for entry in entries:
        resource, actions = entry.split(" ")
        rows.append({"resource": resource, "actions": actions.split(","), "decision": "Allow"})
    return json.dumps({"policies": [{"policyType": "Custom", "entries": rows}]})


@pytest.fixture
async def endpoint(start_node: StartNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A node with all that pages show, and these users."""
    monkeypatch.setattr(survey, "AGAIN_SECONDS", 0.0)
    node = await start_node(access=access_files(tmp_path, "pw"), transactions=PATIENT)
    made = f"127.0.0.1:{node.port}"
    await make_users(made)
    async with as_boss(made) as client:
        await make_letters(client, [b"a", b"b"])
        await client.admin.create_topic("U", 1)
        async with client.producer() as producer:
            await producer.send("U", b"other")
            await producer.send("T", b"later", delay=3600.0)
        await client.admin.commit("g", {("U", "broker-a", 0): 1})
        await send_halves(client, "T", 1, "P")
        await waiting(client, 1)
        for name, entries in USERS.items():
            await client.access.create_user(name, "pw-of-" + name)
            if entries:
                await client.access.set_rights(name, rights(entries))
    return made


async def log_in(client: httpx.AsyncClient, user: str) -> None:
    fields = {"user": user, "password": f"pw-of-{user}"}
    answer = await client.post("/login", data=fields, headers=ORIGIN)
    assert answer.status_code == 303


async def test_nobody_is_offered_what_the_nodes_would_refuse(endpoint: str) -> None:
    """First what changes nothing, by all users; then they do all that they are offered."""
    offered = {}
    for user in USERS:
        async with browser(endpoint, loopback=False) as client:
            await log_in(client, user)
            walk = Walk(client)
            await walk.everything()
            offered[user] = patterns_of(walk.paths) - ALL_SEE
    assert offered == OFFERED
    for user in USERS:  # those who may do more come later
        async with browser(endpoint, loopback=False) as client:
            await log_in(client, user)
            walk = Walk(client)
            await walk.everything()
            await walk.act()
