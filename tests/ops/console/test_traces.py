"""Who may see one topic finds no trace of another, on any page."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duolog
import httpx
import pytest

from duolog_server.ops.console.app import ACTIONS, DOWNLOADS, PAGES
from duolog_server.ops.console.view import addresses as at
from duolog_server.ops.console.view.formatting import THIN
from tests.keyfiles import access_files
from tests.nodefixtures import StartNode
from tests.ops.console.test_app import ORIGIN, as_boss, browser, make_users

SEEN, UNSEEN, NOWHERE = "alpha", "bravo", "zzzzz"  # topics and groups of three kinds, one length
SECRET = "b-secret"  # in messages that alice may not see
UNSEEN_MESSAGES = 7_777
RIGHTS = f"""
{{"policies": [{{"policyType": "Custom", "entries": [
  {{"resource": "Topic:{SEEN}", "actions": ["Sub", "Get", "List"], "decision": "Allow"}},
  {{"resource": "Group:{SEEN}", "actions": ["Sub", "Get", "List"], "decision": "Allow"}}]}}]}}
"""


async def undecided(message: duolog.UndecidedMessage) -> None:
    """The producer does not know either."""


async def fill(client: duolog.Client) -> Mapping[str, str]:
    """Both topics, each read by the group of its name. By topic: the id of a message."""
    ids = {}
    for name in (SEEN, UNSEEN):
        await client.admin.create_topic(name, 1)
        await client.admin.put_group(name, retry_times=0)
        async with client.producer() as producer:
            receipt = await producer.send(name, f"{name[0]}-secret".encode(), keys=["same-key"])
            await producer.send(name, b"later", delay=3600)
        (found,) = await client.admin.find(name, unique_key=receipt.unique_key)
        ids[name] = found.message_id
        async with client.consumer(name, name) as consumer:
            message = await consumer.get(10.0)
            assert message is not None
            await consumer.send_back(message)
            await consumer.commit()
        async with client.transactions("payments", undecided, immunity=3600) as all_of_them:
            await all_of_them.prepare(name, f"{name[0]}-secret".encode())
    async with client.producer() as producer:
        await producer.send_batch(UNSEEN, [b"x"] * UNSEEN_MESSAGES)
    return ids


def pages(name: str) -> list[str]:
    """All pages, of a topic and a group of that name."""
    names: dict[str, Any] = {
        "topic": name,
        "group": name,
        "queue": "0",
        "offset": "0",
        "half": "0",
        "node": "test",
    }
    found = [str(at.address(pattern, **names)) for pattern in (*PAGES, *DOWNLOADS, *ACTIONS)]
    found += [f"{path}?topic={name}" for path in (at.DELAYED, at.HALVES)]
    found += [f"{path}?q={name[:3]}" for path in (at.TOPICS, at.GROUPS, at.RIGHTS)]
    ways = ("key=same-key", "time=1h", "offset=0/0", "text=secret", "sql=TAGS IS NULL")
    for way, _, value in (one.partition("=") for one in ways):
        found.append(f"{at.MESSAGES}?topic={name}&by={way}&value={value}")
    return [
        *found,
        at.address(at.WAY, {"key": "same-key"}, topic=name),
        at.address(at.AUDIT, {"resource": f"Topic:{name}"}),
        at.address(at.RIGHTS, {"action": "Pub", "resource": f"Topic:{name}"}),
    ]


@pytest.fixture
async def endpoint(start_node: StartNode, tmp_path: Path) -> str:
    access = access_files(tmp_path, "pw")
    node = await start_node(access=access, audit={"topic": True})
    endpoint = f"127.0.0.1:{node.port}"
    await make_users(endpoint)
    return endpoint


async def log_in(tab: httpx.AsyncClient) -> None:
    alice = {"user": "alice", "password": "secret-of-alice"}
    assert (await tab.post("/login", data=alice, headers=ORIGIN)).status_code == 303


async def test_pages_have_no_trace_of_what_a_user_may_not_see(endpoint: str) -> None:
    async with as_boss(endpoint) as client, browser(endpoint, loopback=False) as tab:
        await client.access.set_rights("alice", RIGHTS)
        await fill(client)
        await log_in(tab)
        seen = 0
        for path in pages(SEEN):
            answer = await tab.get(path)
            for trace in (UNSEEN, SECRET, str(UNSEEN_MESSAGES), f"7{THIN}77"):
                assert trace not in answer.text, path
            seen += answer.status_code == 200 and "a-secret" in answer.text
        assert seen > 1, "what she may see is there"


async def test_what_a_user_may_not_see_is_as_what_does_not_exist(endpoint: str) -> None:
    async with as_boss(endpoint) as client, browser(endpoint, loopback=False) as tab:
        await client.access.set_rights("alice", RIGHTS)
        ids = await fill(client)
        await log_in(tab)
        both = zip(pages(UNSEEN), pages(NOWHERE), strict=True)
        for path, other in ((path, other) for path, other in both if path != other):
            answer, nothing = await tab.get(path), await tab.get(other)
            assert answer.status_code == nothing.status_code, path
            found = nothing.text.replace(NOWHERE, UNSEEN).replace(NOWHERE[:3], UNSEEN[:3])
            assert without_form(answer.text) == without_form(found), path
        hidden, shown = ids[UNSEEN], ids[SEEN]
        nowhere = f"{hidden[:-4]}FFFF"
        answers = [
            (await tab.get(f"{at.MESSAGES}?by=id&value={one}")) for one in (hidden, nowhere, shown)
        ]
        assert "1 message found" in answers[2].text
        assert answers[0].status_code == answers[1].status_code
        assert answers[0].text.replace(hidden, nowhere) == answers[1].text


def without_form(page: str) -> str:
    """A page without what is new in each."""
    return "\n".join(line for line in page.splitlines() if 'type="hidden"' not in line)
