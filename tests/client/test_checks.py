"""What a program hands to the SDK by mistake: one typed error in words, before anything is sent."""

import enum
import inspect
import math
from array import array
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, cast

import duolog
import duolog.sync
import numpy as np
import pytest
from duolog._checks import checked_bodies, checked_number, checked_text, checked_whole
from duolog._client import parse_endpoints
from duolog._columns import parse_properties, property_text
from duolog._login import login_of
from duolog._terms import Terms

from tests.client.test_prefetch import batch_of

NOWHERE = "127.0.0.1:1"  # a call that reached it would be Unavailable
HALF = "\ud800"
NAN, INF = math.nan, math.inf


@pytest.fixture(scope="module")
def client() -> Iterator[duolog.sync.Client]:
    with duolog.sync.Client(NOWHERE, timeout=0.1) as made:
        yield made


SENT: list[tuple[dict[str, Any], str]] = [
    ({"topic": None}, "topic must be a str, not NoneType"),
    ({"topic": 7}, "topic must be a str"),
    ({"topic": ""}, "topic is empty"),
    ({"topic": HALF}, "topic is no valid text"),
    ({"body": "x"}, "a body must be bytes, not str"),
    ({"body": None}, "a body must be bytes"),
    ({"key": 7}, "key must be a str, not int"),
    ({"key": HALF}, "no valid text"),
    ({"keys": 7}, "keys must be a str or a sequence"),
    ({"keys": [7]}, "one of keys must be a str"),
    ({"keys": b"ab"}, "keys must be a str or a sequence"),
    ({"keys": ["a b", "c"]}, "a key must not"),
    ({"keys": ["a", ""]}, "a key must not be empty"),
    ({"tags": 7}, "tags must be a str"),
    ({"tags": ["a"]}, "tags must be a str, not list"),
    ({"tags": HALF}, "no valid text"),
    ({"properties": {"a": 1}}, "the value of property 'a' must be a str, not int"),
    ({"properties": {1: "a"}}, "the name of a property must be a str"),
    ({"properties": ["a"]}, "properties must be a dict"),
    ({"properties": {"a": HALF}}, "no valid text"),
    ({"properties": {"a": ""}}, "property 'a' has an empty name or value"),
    ({"properties": {"": "a"}}, "property '' has an empty name or value"),
    ({"properties": {"a": "b\x1f"}}, "property 'a' has control characters"),
    ({"properties": {"a\x7f": "b"}}, "has control characters"),
    ({"queue_id": "0"}, "queue_id must be a whole number, not str"),
    ({"queue_id": -1}, "queue_id is -1"),
    ({"queue_id": 1 << 31}, "queue_id is 2147483648"),
    ({"queue_id": True}, "queue_id must be a whole number, not bool"),
    ({"delay": "5"}, "delay must be a number"),
    ({"delay": NAN}, "delay is nan"),
    ({"delay": INF}, "delay is inf"),
    ({"delay": 1e13}, "delay is 1"),
    ({"delay": -1}, "delay is -1; it must be 0 to"),
    ({"delay_level": 1 << 31}, "delay_level is 2147483648; it must be 0 to 2147483647"),
    ({"delay_level": -1}, "delay_level is -1"),
    ({"delay_level": 1.5}, "delay_level must be a whole number"),
    ({"deliver_at": 1_764_441_600}, "give ms, not seconds"),
    ({"deliver_at": 1.5e12}, "deliver_at must be a whole number"),
    ({"delay": 1, "delay_level": 1}, "give only one of"),
    ({"timeout": "1"}, "timeout must be a number"),
    ({"timeout": NAN}, "timeout is nan"),
]


@pytest.mark.parametrize("call", ["send", "post"])
@pytest.mark.parametrize(("wrong", "words"), SENT)
def test_a_message_that_cannot_be_sent_is_refused_by_name(
    client: duolog.sync.Client, call: str, wrong: dict[str, Any], words: str
) -> None:
    with client.producer() as producer, pytest.raises(duolog.BadRequest, match=words):
        getattr(producer, call)(**{"topic": "T", "body": b"x", **wrong})


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"bodies": b"abc"}, "bodies must be a sequence of bytes, not bytes"),
        ({"bodies": "abc"}, "bodies must be a sequence of bytes, not str"),
        ({"bodies": ["a"]}, "one of bodies must be bytes, not str"),
        ({"bodies": None}, "bodies must be a sequence"),
        ({"keys": [["k"]]}, "keys must have an entry for each of the 2 messages"),
        ({"keys": "ab"}, "keys must have an entry"),
        ({"keys": {"a", "b"}}, "keys must have an entry for each of the 2 messages, not set"),
        ({"keys": [[1], [2]]}, "one of keys must be a str"),
        ({"tags_list": ["a"]}, "tags_list must have an entry"),
        ({"tags_list": ["a", 1]}, "tags must be a str"),
        *(pair for pair in SENT if not {"body", "key", "keys", "properties"} & pair[0].keys()),
    ],
)
def test_a_batch_that_cannot_be_sent_is_refused_by_name(
    client: duolog.sync.Client, wrong: dict[str, Any], words: str
) -> None:
    with client.producer() as producer, pytest.raises(duolog.BadRequest, match=words):
        producer.send_batch(**{"topic": "T", "bodies": [b"a", b"b"], **wrong})


Call = Callable[[duolog.sync.Client], object]
CALLS: list[tuple[Call, str]] = [
    (lambda _: duolog.sync.Client("http://127.0.0.1:1"), "is not HOST:PORT"),
    (lambda _: duolog.sync.Client("127.0.0.1:99999"), "is not HOST:PORT"),
    (lambda _: duolog.sync.Client(None), "endpoints must be a str or"),  # type: ignore[arg-type]
    (lambda _: duolog.sync.Client([1]), "one of endpoints must"),  # type: ignore[list-item]
    (lambda _: duolog.sync.Client(NOWHERE, timeout="5"), "timeout must"),  # type: ignore[arg-type]
    (lambda _: duolog.sync.Client(NOWHERE, timeout=NAN), "timeout is nan"),
    (lambda _: duolog.sync.Client(NOWHERE, timeout=0), "timeout is 0"),
    (lambda _: duolog.sync.Client(NOWHERE, user=5), "user must be a str"),  # type: ignore[arg-type]
    (lambda c: c.producer(timeout=-1), "timeout is -1"),
    (lambda c: c.producer(linger=-1), "linger is -1"),
    (lambda c: c.producer(linger=NAN), "linger is nan"),
    (lambda c: c.producer(buffer_bytes=0), "buffer_bytes is 0"),
    (lambda c: c.producer(buffer_bytes="1"), "buffer_bytes must"),  # type: ignore[arg-type]
    (lambda c: c.consumer("g", "T", session=-1), "session is -1"),
    (lambda c: c.consumer("g", "T", session=0), "session is 0"),
    (lambda c: c.consumer("g", "T", commit_interval=NAN), "commit_interval is nan"),
    (lambda c: c.consumer("g", None), "topics must be a str or"),  # type: ignore[arg-type]
    (lambda c: c.consumer("g", [7]), "one of topics must be a str"),  # type: ignore[list-item]
    (lambda c: c.consumer("g", []), "at least one topic"),
    (lambda c: c.consumer("", "T"), "group is empty"),
    (lambda c: c.consumer("g", "T", tags=[7]), "one of tags must"),  # type: ignore[list-item]
    (lambda c: c.consumer("g", "T", sql=7), "sql must be a str"),  # type: ignore[arg-type]
    (lambda c: c.consumer("g", "T").get(0.1), "the consumer was not started"),
    (lambda c: c.consumer("g", "T").get_batch(0.1), "the consumer was not started"),
    (lambda c: c.pull("T", 0, -1), "queue_offset is -1"),
    (lambda c: c.pull("T", 0, 0, wait=NAN), "wait is nan"),
    (lambda c: c.pull("", 0, 0), "topic is empty"),
    (lambda c: c.admin.create_topic("T", 0), "queues is 0; it must be at least 1|queues is 0"),
    (lambda c: c.admin.create_topic("T", "2"), "queues must be a whole"),  # type: ignore[arg-type]
    (lambda c: c.admin.put_quota("Topic:T", topics="7"), "topics must be a whole number"),  # type: ignore[arg-type]
    (lambda c: c.admin.create_topic("T", groups=[]), "groups is empty"),
    (lambda c: c.admin.decide_half("p", 1, commit=None, group="g"), "commit must be a bool"),  # type: ignore[arg-type]
    (lambda c: c.admin.alter_topic("T", -1), "queues is -1; it must be 0 to 4294967295"),
    (lambda c: c.transactions("g").prepare("T", "x"), "a body must be bytes"),  # type: ignore[arg-type]
    (lambda c: c.transactions("g", immunity=NAN), "immunity is nan"),
    (lambda c: c.transactions(""), "transactions need the name of a producer group"),
    (lambda c: c.transactions(HALF), "group is no valid text"),
    (lambda c: c.admin.commit("g", {("T", 0): 1}), "is no .topic, replica group, queue id"),  # type: ignore[dict-item]
    (lambda c: c.admin.commit("g", {("", "a", 0): 1}), "a topic of offsets is empty"),
    (lambda c: c.admin.commit("g", {("T", "", 0): 1}), "a replica group of offsets is empty"),
    (lambda c: c.admin.commit("g", {("T", "a", -1): 1}), "a queue id of offsets is -1"),
    (lambda c: c.admin.commit("g", {("T", "a", 0): -1}), "one of offsets is -1"),
    (lambda c: c.admin.create_topic("T", lite_ttl_minutes=-1), "lite_ttl_minutes is -1"),
]


@pytest.mark.parametrize(("call", "words"), CALLS)
def test_a_call_with_a_wrong_value_is_refused_by_name(
    client: duolog.sync.Client, call: Call, words: str
) -> None:
    with pytest.raises(duolog.BadRequest, match=words):
        call(client)


class Text(str):
    """As programs make them of their settings."""


class Level(enum.IntEnum):
    TEN_SECONDS = 3


class Headers:
    """Not a Mapping: as those of `http.client`."""

    def items(self) -> list[tuple[str, str]]:
        return [("a", "b")]


def test_values_like_those_that_are_asked_for_are_taken() -> None:
    assert checked_whole("queue_id", cast(int, np.int64(3))) == Level.TEN_SECONDS
    assert checked_whole("delay_level", Level.TEN_SECONDS) == 3
    assert Terms.of(None, None, 25, 0).delay_level == 25  # the node may have so many
    assert Terms.of(None, 0, None, 0).deliver_time == 0
    now = 1_764_441_600_123
    assert Terms.of(cast(float, np.float32(1.5)), None, None, now).deliver_time == now + 1500
    assert checked_number("timeout", INF) == INF
    assert checked_text("topic", Text("T")) == "T"
    assert parse_properties(property_text(None, (), cast(Any, Headers()))) == {"a": "b"}
    wide = {"a": "no-break \xa0"}  # not printable, to Python, and no control character
    assert parse_properties(property_text(None, (), wide)) == wide


def test_bodies_of_a_batch_that_are_not_bytes_are_copied() -> None:
    changing = bytearray(b"ab")
    bodies = checked_bodies(cast(Any, [changing, memoryview(array("I", [1, 2])), b"c"]))
    changing[0] = 0
    assert list(bodies) == [b"ab", array("I", [1, 2]).tobytes(), b"c"]


def test_settings_that_are_not_given_may_be_empty_or_none() -> None:
    assert parse_endpoints("a:1, b:2,") == parse_endpoints(["a:1", "b:2", ""]) == ("a:1", "b:2")
    client = duolog.Client(NOWHERE, timeout=INF)
    none = cast(str, None)
    for nothing in (none, "", ()):
        assert client.consumer("g", "T", tags=nothing, sql=none)._consumption.tags == ()
    assert client.consumer("g", "T", tags=["", "a"])._consumption.tags == ("", "a")
    assert client.consumer("g", "T", commit_interval=INF)._consumption.commit_interval == INF
    client.producer(buffer_bytes=cast(int, 1e6), linger=INF)
    assert login_of(none, none) is None


def test_columns_of_numpy_and_settings_left_empty_are_taken(client: duolog.sync.Client) -> None:
    names = cast(list[str], np.array(["a", "b"]))
    with client.producer() as producer, pytest.raises(duolog.Unavailable):
        producer.send_batch("T", [b"1", b"2"], keys=names, tags_list=names)
    client.consumer("g", "T", rebalance="", rooms=[""])


def test_a_str_is_one_tag_and_one_key(client: duolog.sync.Client) -> None:
    assert client.consumer("g", "T", tags="en")._of._consumption.tags == ("en",)
    assert parse_properties(property_text(None, "abc", None)) == {"KEYS": "abc"}


async def test_a_consumer_that_was_started_may_be_entered_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def joins(consumer: duolog.Consumer) -> None:
        pass

    monkeypatch.setattr(duolog.Consumer, "_join", joins)
    client = duolog.Client(NOWHERE, timeout=0.1)
    consumer = client.consumer("g", "T")
    await consumer.start()
    async with consumer:
        assert await consumer.get(0) is None
        with pytest.raises(duolog.BadRequest, match="in use already"):
            await consumer.__aenter__()
    with pytest.raises(duolog.BadRequest, match="is closed"):
        await consumer.get(0)


def test_a_loop_over_messages_ends_where_another_thread_closes_the_consumer(
    client: duolog.sync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = client.consumer("g", "T")
    monkeypatch.setattr(consumer._of, "_started", True)
    get = consumer.get

    def closed_meanwhile() -> duolog.Message | None:
        consumer.close()
        return get()

    monkeypatch.setattr(consumer, "get", closed_meanwhile)
    assert list(consumer) == []


async def test_a_client_and_a_consumer_that_are_closed_refuse_every_call() -> None:
    client = duolog.Client(NOWHERE, timeout=0.1)
    consumer = client.consumer("g", "T")
    await client.close()
    calls: list[Callable[[], Awaitable[object]]] = [
        client.admin.node_status,
        lambda: client.pull("T", 0, 0),
    ]
    for call in calls:
        with pytest.raises(duolog.Unavailable, match="the client is closed"):
            await call()
    with pytest.raises(duolog.BadRequest, match="the consumer is closed"):
        await consumer.start()
    assert [message async for message in consumer] == []


# Values of parameters that have no default, for calls in which another one is wrong.
RIGHT: dict[str, object] = {
    **{"topic": "T", "queue_id": 0, "queue_offset": 0, "offset": 0, "body": b"x", "size": 1},
    **{"bodies": (b"x", b""), "texts": (b"", b""), "born_time": 0, "sequence": 0, "staged": [1]},
    **{"batch": 1, "group": "g", "name": "n", "node": "n", "subject": "Topic:T", "key": "k"},
    **{"unique_key": "u", "half": 1, "producer_group": "p", "commit": True, "offsets": {}},
    **{"setting": "s", "value": "v", "epoch": 1, "at": duolog.Start.EARLIEST, "rights": ""},
    **{"message": duolog.Message(batch_of(("T", 0), 0, 1, 1), 0), "sink": "s"},
    **{"password": "p", "action": "Pub", "resource": "Topic:T", "seconds": 1, "names": ["T"]},
    **{"endpoint": NOWHERE, "topics": "T", "halves": [], "handler": print, "to": "h"},
}
# Programs of the package call these: they are given what was checked.
OWN = {"fetch", "make_producer", "next_batch", "next_message", "send_message", "send_copy"} | {
    *("send_many", "slot_of", "take_back", "note_fork", "interrupt", "interrupted"),
    *("make_worker", "run_worker"),
}
# What any value is good for, as whether it is true, and names of limits.
ANY = {"close": {"commit"}, "put_quota": {"limits"}}
BESIDE = {"offsets_file": {"mode": "broadcasting"}}


def public_calls(client: duolog.Client) -> Iterator[tuple[object, str, str]]:
    """Every parameter of what a client offers: of which object, method and name."""
    sink = duolog.Sink(client._router, "s", "g", 0.1)
    parts = [client, client.admin, client.access, client.producer(), client.consumer("g", "T")]
    for part in [*parts, client.transactions("g"), sink]:
        for method, function in inspect.getmembers(type(part), inspect.isfunction):
            if not method.startswith("_") and method not in OWN:
                for name in [*inspect.signature(function).parameters][1:]:
                    if name not in ANY.get(method, ()):
                        yield part, method, name


async def test_every_parameter_refuses_what_it_cannot_be_before_anything_is_sent() -> None:
    client = duolog.Client(NOWHERE, timeout=0.05)
    checked, passed = 0, []
    for part, method, name in public_calls(client):
        signature = inspect.signature(getattr(part, method))
        needed = {each for each, p in signature.parameters.items() if p.default is p.empty}
        given = {each: RIGHT[each] for each in needed if each in RIGHT} | BESIDE.get(name, {})
        given[name] = object()
        first = [given.pop("subject")] if method == "put_quota" else []
        try:
            made = getattr(part, method)(*first, **given)
            if inspect.isawaitable(made):
                await made
            elif hasattr(made, "__aenter__") and method == "begin":
                await made.__aenter__()
        except duolog.BadRequest as error:
            if "object" not in str(error):
                passed.append(f"{type(part).__name__}.{method}({name}): {error!r}")
            checked += 1
        except Exception as error:
            passed.append(f"{type(part).__name__}.{method}({name}): {error!r}")
        else:
            passed.append(f"{type(part).__name__}.{method}({name}): taken")
    assert not passed, "\n".join(passed)
    assert checked > 150
