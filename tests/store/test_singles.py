"""Messages of several queues that are stored at once: as if each had been put by itself."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duolog_server.store.clocks import WallMs
from duolog_server.store.columns import Columns
from duolog_server.store.messagestore import MessageStore, PutBatch, Singles, SinglesResult
from duolog_server.store.record import COMPRESSED, TRANSACTION_PREPARED, Host
from duolog_server.store.status import BrokerRole, PutMessageStatus
from tests.support import NOW, drain, open_store, options, put_ok, read_all

Message = tuple[int, bytes, bytes, tuple[int, int, int, int]]  # queue, body, properties, fields
HOSTS = (Host("10.0.0.7", 5), Host("fe80::1", 6))

FIELDS = st.tuples(
    st.integers(-(1 << 31), (1 << 31) - 1),  # flag
    st.sampled_from((0, COMPRESSED, 0x700)),
    st.integers(0, 1 << 40),  # born time
    st.integers(0, 1 << 20),  # attempts
)
MESSAGES = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.binary(max_size=3000),
        st.sampled_from((b"", b"K\x01v", b"K\x01v\x02")),
        FIELDS,
    ),
    min_size=1,
    max_size=12,
)


def singles_of(messages: list[Message], host: Host = HOSTS[0]) -> Singles:
    rows = [(*fields, 0, queue_id, 0) for queue_id, _, _, fields in messages]
    columns = Columns.of([one[1] for one in messages], [one[2] for one in messages])
    return Singles("T", columns, np.ascontiguousarray(np.array(rows, np.int64).T), host)


def put_singles(store: MessageStore, messages: list[Message], *args: Host) -> SinglesResult:
    result = store.put_singles(singles_of(messages, *args), WallMs(NOW))
    drain(store)
    return result


def a_message(queue_id: int = 0, body: bytes = b"x", properties: bytes = b"") -> Message:
    return queue_id, body, properties, (0, 0, NOW, 0)


def log_bytes(store: MessageStore) -> list[bytes]:
    return [bytes(one.memory[: one.wrote]) for one in store.log.queue.files]


@settings(deadline=None)
@given(st.lists(MESSAGES, max_size=4), st.sampled_from(HOSTS))
def test_the_log_is_that_of_puts_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, turns: list[list[Message]], host: Host
) -> None:
    together, apart = (open_store(tmp_path_factory.mktemp(name)) for name in ("one", "other"))
    for messages in turns:
        result = put_singles(together, messages, host)
        assert result.status is PutMessageStatus.PUT_OK
        told = zip(messages, result.queue_offsets, result.places, strict=True)
        for (queue_id, body, text, fields), queue_offset, place in told:
            flag, sysflag, born, attempts = fields
            columns = Columns.of([body], [text])
            batch = PutBatch("T", queue_id, columns, born, host, flag, sysflag, attempts)
            alone = apart.put(batch, WallMs(NOW))
            assert (alone.queue_offset, alone.physical_offset) == (queue_offset, place)
        assert result.end_offset == alone.end_offset
        drain(apart)
    assert log_bytes(together) == log_bytes(apart)
    for queue_id in range(4):
        assert read_all(together, "T", queue_id) == read_all(apart, "T", queue_id)


@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        (a_message(queue_id=65536), PutMessageStatus.MESSAGE_ILLEGAL),
        (a_message(queue_id=-1), PutMessageStatus.MESSAGE_ILLEGAL),
        (a_message(properties=b"K"), PutMessageStatus.MESSAGE_ILLEGAL),
        (a_message(properties=b"INNER_MULTI_DISPATCH\x01q"), PutMessageStatus.MESSAGE_ILLEGAL),
        (a_message(body=bytes(1 << 20)), PutMessageStatus.MESSAGE_TOO_LARGE),
        ((0, b"x", b"", (0, TRANSACTION_PREPARED, NOW, 0)), PutMessageStatus.MESSAGE_ILLEGAL),
    ],
)
def test_one_that_may_not_be_stored_keeps_all_of_them_out(
    store: MessageStore, wrong: Message, status: PutMessageStatus
) -> None:
    result = put_singles(store, [a_message(), wrong, a_message(1)])
    assert (result.status, list(result.places)) == (status, [])
    assert store.log.max_offset == 0
    assert put_singles(store, [a_message(), a_message(1)]).queue_offsets == [0, 0]


def test_fields_of_another_shape_are_illegal(store: MessageStore) -> None:
    singles = singles_of([a_message(), a_message(1)])
    short = Singles("T", singles.columns, singles.fields[:, :1])
    assert store.put_singles(short, WallMs(NOW)).status is PutMessageStatus.MESSAGE_ILLEGAL
    illegal = Singles("a/b", singles.columns, singles.fields)
    assert store.put_singles(illegal, WallMs(NOW)).status is PutMessageStatus.MESSAGE_ILLEGAL


def test_a_store_that_takes_no_puts_takes_none_of_these(tmp_path: Path) -> None:
    store = open_store(tmp_path, options(broker_role=BrokerRole.SLAVE))
    result = put_singles(store, [a_message()])
    assert result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert "slave" in result.reason


def test_puts_and_these_follow_each_other(store: MessageStore) -> None:
    put_ok(store, [b"a", b"b"])
    assert put_singles(store, [a_message(body=b"c"), a_message(1, b"d")]).queue_offsets == [2, 0]
    assert put_ok(store, [b"e"]).queue_offset == 3
    assert read_all(store) == [b"a", b"b", b"c", b"e"]
    assert read_all(store, "T", 1) == [b"d"]
