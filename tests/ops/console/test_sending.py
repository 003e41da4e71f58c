"""Messages are sent, and sent again, from pages of the console."""

import re
from html import unescape

import duolog
import httpx
import pytest

from duolog_server.ops.console.masking.masks import Masks
from duolog_server.ops.console.masking.seen import Seeing
from duolog_server.ops.console.pages import sending as messages
from duolog_server.ops.console.pages.sending import BODY_BYTES, FORM_BYTES
from duolog_server.ops.inspection.messages.sending import Draft
from tests.nodefixtures import StartNode
from tests.ops.console.test_actions import act, form_of
from tests.ops.console.test_app import (
    HOSTILE,
    ORIGIN,
    as_boss,
    browser,
    read,
    sentence,
)

SEND = "/topics/T/send"
AGAIN = "/topics/T/0/0/again"


def prefilled(page: str) -> dict[str, str]:
    """The values of a form's fields, as a browser sends them back."""
    fields = dict(re.findall(r'<input id="field-\w+" name="(\w+)" value="([^"]*)"', page))
    for name, value in re.findall(r'<textarea [^>]*name="(\w+)"[^>]*>\n?([^<]*)</textarea>', page):
        fields[name] = value
    return {name: unescape(value).replace("\n", "\r\n") for name, value in fields.items()}


async def last(client: duolog.Client, queue_id: int = 0) -> duolog.Message:
    """The newest message of a queue."""
    return list(await client.pull("T", queue_id, 0))[-1]


async def test_a_message_is_sent_and_its_page_is_shown(start_node: StartNode) -> None:
    node = await start_node()
    endpoint = f"127.0.0.1:{node.port}"
    async with duolog.Client(endpoint, timeout=10) as client, browser(endpoint) as at:
        await client.admin.create_topic("T", 2)
        form = await form_of(at, SEND)
        fields = {
            **form,
            "body": '{"a":\r\n 1}',
            "format": "json",
            "key": "k1",
            "keys": "k2  k3",
            "tags": "new",
            "properties": "note= a=b\r\n\r\nx=1",
            "queue": "1",
            "delay": "",
            "confirm": "T",
        }
        answer = await at.post(SEND, data=fields, headers=ORIGIN)
        assert answer.status_code == 303, answer.text
        location = answer.headers["location"]
        assert location.startswith("/topics/T/1/0?group=")
        page = await read(at, location)
        sent = await last(client, 1)
        assert f"Stored as T/1@0. Its unique key is {sent.properties['UNIQ_KEY']}." in page
        shown = re.search(r'class="told".*?<code>([^<]*)</code>', page, re.S)
        assert shown is not None
        assert unescape(shown[1]) == (
            "duolog msg send T '{\"a\":\n 1}' --key k1 --keys k2 --keys k3 --tags new "
            "--property 'note= a=b' --property x=1 --queue 1"
        )
        assert (sent.body, sent.tags) == (b'{"a":\n 1}', "new")
        assert sorted(sent.properties["KEYS"].split()) == ["k1", "k2", "k3"]
        assert (sent.properties["note"], sent.properties["x"]) == (" a=b", "1")


async def test_a_message_is_sent_with_a_delay(start_node: StartNode) -> None:
    node = await start_node()
    endpoint = f"127.0.0.1:{node.port}"
    async with duolog.Client(endpoint, timeout=10) as client, browser(endpoint) as at:
        await client.admin.create_topic("T", 1)
        told = await act(at, SEND, body="later", delay="600", confirm="T")
        assert told.startswith("Stored; consumers get it in 10\u202fmin. Its unique key is ")
        assert len(await client.pull("T", 0, 0)) == 0


WRONG: list[tuple[dict[str, str], str]] = [
    ({"confirm": "t"}, "type T to confirm"),
    ({"body": "{", "format": "json"}, "the body is not JSON"),
    ({"body": "x" * (BODY_BYTES + 1)}, "a form sends 64 KiB at most"),
    ({"body": "x" * FORM_BYTES}, "this form is longer than 256 KiB"),
    ({"properties": "novalue"}, "is not of the form NAME=VALUE"),
    ({"properties": "=x"}, "is not of the form NAME=VALUE"),
    ({"properties": "UNIQ_KEY=x"}, "reserved"),
    ({"queue": "7"}, "queue"),
    ({"queue": "x"}, "it must be a number"),
    ({"delay": "soon"}, "it must be a number of seconds"),
    ({"delay": "nan"}, "it must be a number of seconds"),
    ({"delay": "-1"}, "it must be a number of seconds"),
    ({"delay": "1e9"}, "at most 3 days"),
    ({"tags": "a\x01b"}, "control characters"),
]


async def test_wrong_forms_and_absent_messages_send_nothing(
    single: duolog.Client, at: httpx.AsyncClient
) -> None:
    for fields, told in WRONG:
        form = {**await form_of(at, SEND), "body": "x", "confirm": "T", **fields}
        answer = await at.post(SEND, data=form, headers=ORIGIN)
        assert answer.status_code == 400
        assert told in unescape(sentence(answer.text))
        assert len(await single.pull("T", 0, 0)) == 0
    for path, status in ABSENT:
        await read(at, path, status)


async def again(at: httpx.AsyncClient, path: str = AGAIN, **changed: str) -> str:
    """Send a message again, with its form as it is filled in; where the answer leads."""
    fields = {**await form_of(at, path), **prefilled(await read(at, path)), "confirm": "T"}
    answer = await at.post(path, data={**fields, **changed}, headers=ORIGIN)
    assert answer.status_code == 303, answer.text
    return str(answer.headers["location"])


BODIES = {
    "text": b"a\n\tb \xc3\xa4",
    "first line": b"\n\nafter two",
    "hostile": HOSTILE.replace("\x1b", "").encode(),
    "empty": b"",
    "returns": b"a\r\nb",
    "bytes": bytes(range(256)),
    "control": b"\x1b[2J",
    "long": b"x" * (BODY_BYTES + 1),
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("masks", [(), ("T=hidden",), ("T=card",)], ids=["all", "hidden", "masked"])
async def test_a_message_is_sent_again_unchanged(
    start_node: StartNode, name: str, masks: tuple[str, ...]
) -> None:
    node = await start_node(max_message_size=1 << 20, mapped_file_size_commit_log=4 << 20)
    endpoint, seeing = f"127.0.0.1:{node.port}", Seeing(masks=Masks.of(masks))
    async with (
        duolog.Client(endpoint, timeout=10) as client,
        client.producer() as producer,
        browser(endpoint, seeing=seeing) as at,
    ):
        await client.admin.create_topic("T", 1)
        properties = {"note": "a=b <c>", "traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
        await producer.send("T", BODIES[name], keys=["k1", "k2"], tags="new", properties=properties)
        assert f'href="{AGAIN}?group=' in await read(at, "/topics/T/0/0")
        page = await read(at, AGAIN)
        assert "<script>alert" not in page
        by_form = name in ("text", "first line", "hostile", "empty") and not masks
        assert ("<textarea" in page) is by_form
        assert ("duolog msg resend T 0 0 --replica-group broker-a" in page) is not by_form
        assert (await again(at)).startswith("/topics/T/0/1?")
        first, copy = list(await client.pull("T", 0, 0))
        assert copy.body == first.body == BODIES[name]
        before, after = dict(first.properties), dict(copy.properties)
        assert before.pop("UNIQ_KEY") != after.pop("UNIQ_KEY")
        del before["traceparent"]
        assert before == after


async def test_a_message_is_changed_before_it_is_sent_again(start_node: StartNode) -> None:
    node = await start_node()
    endpoint = f"127.0.0.1:{node.port}"
    async with (
        duolog.Client(endpoint, timeout=10) as client,
        client.producer() as producer,
        browser(endpoint) as at,
    ):
        await client.admin.create_topic("T", 2)
        await producer.send("T", b"old", tags="new", queue_id=0)
        assert (await again(at, body="other", tags="", queue="1")).startswith("/topics/T/1/0?")
        found = await last(client, 1)
        assert (found.body, found.tags) == (b"other", "")


async def test_the_command_sends_again_to_the_queue_and_at_the_time_of_the_form(
    start_node: StartNode,
) -> None:
    node = await start_node()
    endpoint = f"127.0.0.1:{node.port}"
    async with (
        duolog.Client(endpoint, timeout=10) as client,
        client.producer() as producer,
        browser(endpoint) as at,
    ):
        await client.admin.create_topic("T", 2)
        await producer.send("T", b"\xff", queue_id=0)
        page = await read(at, await again(at, queue="1", delay="60"))
        words = "msg resend T 0 0 --replica-group broker-a --to-queue 1 --delay 60"
        assert f"duolog {words}" in page


def test_a_body_like_an_option_is_no_option_of_the_command() -> None:
    draft = Draft("T", b"-x", tags="a")
    assert messages._command(draft) == "duolog msg send --tags a -- T -x"


ABSENT: list[tuple[str, int]] = [
    ("/topics/T/0/7/again", 404),
    ("/topics/none/0/0/again", 404),
    ("/topics/T/9/0/again", 400),
    ("/topics/T/x/0/again", 400),
    ("/topics/%25DLQ%25g/0/0/again", 400),
    ("/topics/RMQ_SYS_TRACE_TOPIC/0/0/again", 400),
]


async def test_a_user_sends_where_it_may(guarded: str) -> None:
    async with as_boss(guarded) as client, browser(guarded, loopback=False) as at:
        await client.admin.create_topic("T", 1)
        alice = {"user": "alice", "password": "secret-of-alice"}
        await at.post("/login", data=alice, headers=ORIGIN)
        await read(at, SEND, 403)
        form = {**await form_of(at, "/messages/stop"), "body": "x", "confirm": "T"}
        answer = await at.post(SEND, data=form, headers=ORIGIN)
        assert answer.status_code == 403
        assert len(await client.pull("T", 0, 0)) == 0
