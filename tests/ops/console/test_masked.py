"""No page shows what the policy of the console hides."""

import re
from functools import partial

import duolog
import pytest

from duolog_server.ops.console.app import PAGES
from duolog_server.ops.console.masking.masks import Masks
from duolog_server.ops.console.masking.seen import Seeing
from duolog_server.ops.console.pages.tail import tail
from duolog_server.ops.console.view import addresses as at
from duolog_server.ops.console.view.rates import Rates
from duolog_server.ops.console.view.visits import Visit
from tests.nodefixtures import StartNode
from tests.ops.console.test_app import EVERYTHING, browser, read, sentence

SECRET = "4111secret"
HIDDEN = Seeing(masks=Masks.of(["T=hidden"]))
MASKED = Seeing(masks=Masks.of(["T=$.card,note"]))
BODY = b'{"card": "4111secret", "id": 7}'
# Where a page shows bodies, all ways to it; each pattern of PAGES is here or in OTHERS.
SHOWING = {
    at.MESSAGES: [
        "/messages?topic=T&by=key&value=k",
        "/messages?topic=T&by=unique_key&value={unique}",
        "/messages?by=id&value={id}",
        "/messages?topic=T&by=offset&value=0/0",
        "/messages?topic=T&by=time",
        "/messages?topic=T&by=text&value=k",
        "/messages?topic=T&by=sql&value=other+%3D+1",
        "/messages?topic=%25DLQ%25g&by=text&value=k",
        "/messages?topic=%25DLQ%25g&by=sql&value=other+%3D+1",
    ],
    at.MESSAGE: ["/topics/T/0/0", "{letter}"],
    at.DEAD: ["/groups/g/dead"],
    at.TAIL: [],  # below: it shows what comes later
}
OTHERS = {
    at.CLUSTER: "/",
    at.DOCTOR: "/doctor",
    at.TOPICS: "/topics",
    at.TOPIC: "/topics/T",
    at.GROUPS: "/groups",
    at.GROUP: "/groups/g",
    at.DELAYED: "/waiting",
    at.HALVES: "/waiting/half",
    at.WAY: "/topics/T/way?key=k",
    at.RIGHTS: "",  # for super users of nodes with users
    at.AUDIT: "",
}


async def fill(client: duolog.Client) -> dict[str, str]:
    """A message that also becomes a dead letter; how pages name it."""
    await client.admin.create_topic("T", 1)
    await client.admin.put_group("g", retry_times=0)
    async with client.producer() as producer:
        sent = await producer.send(
            "T", BODY, keys=["k"], tags="t", properties={"note": SECRET, "other": "1"}
        )
    async with client.consumer("g", "T") as consumer:
        message = await consumer.get(10.0)
        assert message is not None
        await consumer.send_back(message)
        await consumer.commit()
    (found,) = await client.admin.find("T", unique_key=sent.unique_key)
    return {"unique": sent.unique_key, "id": found.message_id}


@pytest.mark.parametrize("seeing", [HIDDEN, MASKED, EVERYTHING], ids=["hidden", "masked", "all"])
async def test_no_page_shows_what_is_hidden(start_node: StartNode, seeing: Seeing) -> None:
    assert {*SHOWING, *OTHERS} == {*PAGES}, "say of a new page whether it shows bodies"
    node = await start_node()
    endpoint = f"127.0.0.1:{node.port}"
    async with duolog.Client(endpoint, timeout=10) as client:
        names = await fill(client)
        async with browser(endpoint, seeing=seeing) as window:
            dead = await read(window, "/groups/g/dead")
            link = re.search(r'<a href="(/topics/[^"]+/0/0\?[^"]+)">', dead)
            assert link is not None
            names["letter"] = link[1]
            for path in [one for paths in SHOWING.values() for one in paths]:
                answer = await window.get(path.format(**names))
                assert (SECRET in answer.text) is (seeing is EVERYTHING), path
                if "by=sql" in path and re.findall("topic=([^&]*)", path)[0] == "T":
                    assert answer.status_code == (400 if seeing is HIDDEN else 200)
                elif seeing is HIDDEN and "%25DLQ%25g&by=sql" in path:
                    assert sentence(answer.text).startswith("0 messages found")
                else:
                    assert answer.status_code == 200, path
                    assert ("&#34;id&#34;: 7" in answer.text) is (seeing is not HIDDEN), path
            for path in filter(None, OTHERS.values()):
                assert SECRET not in await read(window, path)
            for query in ("text&value=4111secret", "text&value=SECRET&case=any"):
                page = await read(window, f"/messages?topic=T&by={query}")
                assert sentence(page).startswith("1" if seeing is EVERYTHING else "0")
            export = (await window.get("/groups/g/dead/export")).text
            assert (SECRET in export) is (seeing is EVERYTHING)
            assert ('\\"id\\": 7' in export) is (seeing is not HIDDEN)
            answer = await window.get("/messages?topic=T&by=sql&value=note+IS+NOT+NULL")
            assert answer.status_code == (200 if seeing is EVERYTHING else 400)


@pytest.mark.parametrize("seeing", [HIDDEN, MASKED, EVERYTHING], ids=["hidden", "masked", "all"])
async def test_a_tail_shows_and_finds_only_what_is_shown(
    single: duolog.Client, producer: duolog.Producer, seeing: Seeing
) -> None:
    for sent, wanted in enumerate(("", SECRET, "4111"), 1):
        memory: dict[str, object] = {}
        visit = partial(
            Visit, single, (), {"topic": "T"}, rates=Rates(), memory=memory, seeing=seeing
        )
        await tail(visit(query={"q": wanted}, now=1.0))
        await producer.send("T", BODY, properties={"note": SECRET})
        shown = await tail(visit(query={"q": wanted}, now=2.0))
        rows = [row.line for row in shown.facts["rows"]]  # type: ignore[attr-defined]
        assert len(rows) == (sent if not wanted or seeing is EVERYTHING else 0)
        assert any(SECRET in row for row in rows) is (seeing is EVERYTHING)
