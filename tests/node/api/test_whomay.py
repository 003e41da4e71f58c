"""Users by page, and which of very many may do something."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import duolog
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.node.api.whomay import WhoMay
from duolog_server.node.identity.access.users import User
from duolog_server.node.identity.rights.decision import decide
from duolog_server.node.identity.rights.policies import Acl, Pattern
from duolog_server.node.identity.rights.resources import Action, Kind, Need, Resource
from duolog_server.store.accesstables import AccessTables
from tests.keyfiles import access_files
from tests.nodefixtures import StartNode

ENTRIES = 200
PATTERNS = ("*", "Topic:*", "Topic:ord*", "Topic:orders", "Group:*", "Namespace:ns", "Topic:else")


def rights(user: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
    policies = [{"policyType": "Custom", "entries": entries}]
    return {"subject": f"User:{user}", "policies": policies}


@given(
    st.lists(
        st.tuples(st.sampled_from(PATTERNS), st.sampled_from(list(Action)), st.sampled_from("AD")),
        max_size=8,
    ),
    st.sampled_from(["orders", "ns%orders", "parcels"]),
    st.sampled_from(list(Action)),
)
def test_a_decision_is_that_of_all_entries(
    entries: list[tuple[str, Action, str]], name: str, action: Action
) -> None:
    given_entries = [
        {"resource": one, "actions": [what], "decision": "Allow" if verdict == "A" else "Deny"}
        for one, what, verdict in entries
    ]
    row = Acl.from_json(rights("u", given_entries)).to_json()
    tables = AccessTables()
    tables.rights["u"] = row
    need = Need(Resource(Kind.TOPIC, name), frozenset({action}))
    found = WhoMay(tables, need, "10.0.0.1").decision(User("u"))
    assert found == decide(Acl.from_json(row), need, "10.0.0.1")


@pytest.mark.parametrize(
    "row",
    [
        {"subject": "User:u", "policies": 5},
        {"subject": "User:u", "policies": [5]},
        {"subject": "User:u", "policies": [{"policyType": "Custom", "entries": 5}]},
        {"subject": "User:u", "policies": [{"policyType": "Custom", "entries": [5]}]},
        {"subject": "User:u", "policies": [{"policyType": "Custom", "entries": [{}]}]},
        rights("u", [{"resource": "Queue:x", "actions": ["Pub"], "decision": "Allow"}]),
    ],
)
def test_rights_of_a_newer_version_give_nothing(row: dict[str, Any]) -> None:
    tables = AccessTables()
    tables.rights["u"] = row
    need = Need(Resource(Kind.TOPIC, "orders"), frozenset({Action.PUB}))
    found = WhoMay(tables, need, "").decision(User("u"))
    assert (found.allowed, found.reason) == (False, "denied: the user has no entries")


@pytest.fixture
async def boss(start_node: StartNode, tmp_path: Path) -> AsyncIterator[duolog.Client]:
    """A super user of a node with some more users."""
    node = await start_node(access=access_files(tmp_path, "pw"))
    endpoint = f"127.0.0.1:{node.port}"
    async with duolog.Client(endpoint, user="root", password="pw", timeout=10) as root:
        await root.access.create_user("boss", "secret", is_super=True)
    async with duolog.Client(endpoint, user="boss", password="secret", timeout=10) as client:
        for name in ("alice", "bob", "carol"):
            await client.access.create_user(name, f"secret-of-{name}", disabled=name == "carol")
            entries = [{"resource": "Topic:ord*", "actions": ["Pub"], "decision": "Allow"}]
            if name != "bob":
                await client.access.set_rights(name, json.dumps(rights(name, entries)))
        yield client


async def test_users_have_pages(boss: duolog.Client) -> None:
    page = await boss.access.users_page(limit=3)
    assert [user.name for user in page.rows] == ["alice", "bob", "boss"]
    assert (page.total, page.next) == (4, "boss")
    page = await boss.access.users_page(after=page.next, limit=3)
    assert ([user.name for user in page.rows], page.next) == (["carol"], "")
    page = await boss.access.users_page("BO")
    assert ([user.name for user in page.rows], page.total) == (["bob", "boss"], 2)
    assert [user.name for user in await boss.access.users()] == ["alice", "bob", "boss", "carol"]


async def test_who_may_is_told_with_what_decides(boss: duolog.Client) -> None:
    page = await boss.access.who_may("Pub", "Topic:orders")
    assert [(row.user.name, row.decision.entry) for row in page.rows] == [
        ("alice", "Topic:ord* Pub"),
        ("boss", ""),
    ]
    assert page.total == 2
    for row in page.rows:
        assert row.decision == await boss.access.test("Pub", "Topic:orders", user=row.user.name)
    first = await boss.access.who_may("Pub", "Topic:orders", limit=1)
    second = await boss.access.who_may("Pub", "Topic:orders", limit=1, after=first.next)
    assert [row.user.name for row in (*first.rows, *second.rows)] == ["alice", "boss"]
    assert second.next == ""
    assert (await boss.access.who_may("Sub", "Topic:orders")).total == 1
    for action, resource in (("Fly", "Topic:orders"), ("Pub", "orders"), ("Pub", "")):
        with pytest.raises(duolog.BadRequest):
            await boss.access.who_may(action, resource)
    for source in ("x", "10.0.0.0/8", "10.0.0.1/99"):
        with pytest.raises(duolog.BadRequest, match="is not an IP address"):
            await boss.access.who_may("Pub", "Topic:orders", source=source)
        with pytest.raises(duolog.BadRequest, match="is not an IP address"):
            await boss.access.test("Pub", "Topic:orders", source=source)


def test_patterns_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = AccessTables()
    entries = [
        {"resource": f"Topic:t-{number}", "actions": ["Pub"], "decision": "Allow"}
        for number in range(ENTRIES)
    ]
    for number in range(50):
        tables.rights[f"u-{number}"] = rights(f"u-{number}", entries)
    who = WhoMay(tables, Need(Resource(Kind.TOPIC, "t-7"), frozenset({Action.PUB})), "")
    parsed: list[object] = []
    parse = Pattern.parse

    def noting(text: object, where: str = "resource") -> Pattern:
        parsed.append(text)
        return parse(text, where)

    monkeypatch.setattr(Pattern, "parse", noting)
    for number in range(50):
        assert who.decision(User(f"u-{number}")).allowed
    assert len(parsed) == ENTRIES + 50, "and the one that covers, once for each user"
