"""Every input that the fuzzers kept, and damaged valid ones, replayed."""

import random
from pathlib import Path

import pytest
from duolog import _frames as client_frames
from duolog._columns import crc32, pack
from duolog.wire import duolog_pb2 as wire

from duolog_server.ha import frames
from tests import oracle
from tests.fuzz.targets import TARGETS
from tests.ha.test_frames import EXAMPLES
from tests.node.net.frames.test_connection import KEY, a_pull, an_append

CORPUS = Path(__file__).parent / "corpus"


@pytest.mark.parametrize("name", TARGETS)
def test_the_saved_corpus_passes(name: str) -> None:
    for path in sorted((CORPUS / name).glob("*")):
        TARGETS[name](path.read_bytes())


def seeds() -> list[bytes]:
    """Valid inputs of each kind."""
    records, position = b"", 0
    for number in range(5):
        one = oracle.encode_record(
            topic=b"Topic", queue_id=0, queue_offset=number, physical_offset=position,
            body=b"body" * number,
            properties=b"KEYS\x01a b\x02TAGS\x01t\x02UNIQ_KEY\x01" + b"0A" * 16,
            born_time=1, store_time=2, sealed=number % 2 == 0,
        )  # fmt: skip
        records += one
        position += len(one)
    bodies, offsets = pack([b"a", b"bc", b"def"])
    nothing = bytes(len(offsets))
    batch = wire.MessageBatch(
        topic="T", count=3, bodies=bodies, body_offsets=offsets, property_offsets=nothing,
        physical_offsets=bytes(24), store_times=bytes(24), born_times=bytes(24),
        flags=bytes(12), sysflags=bytes(12), reconsume_times=bytes(12),
    )  # fmt: skip
    batch.crc32 = crc32(bodies, offsets, b"", nothing)
    entries = b"".join(
        n.to_bytes(8, "big") + (99).to_bytes(4, "big") + bytes(8) for n in range(0, 900, 99)
    )
    table = b'{\n\t"offsetTable":{\n\t\t"T@G":{0:250,1:3}\n\t}\n}'
    change = b'{"op":"offsets","group":"G","offsets":{"T":{"0":5}}}'
    told = [frames.encode(frame) for frame in EXAMPLES]
    return [
        records,
        batch.SerializeToString(),
        entries,
        table,
        change,
        b"A\x01b\x02C\x01d",
        client_frames.hello(KEY) + a_pull(1, 10) + an_append(2),
        a_pull(1, 10) + client_frames.frame(client_frames.Kind.CANCEL, 1),
        an_append(1, b"x" * 700),
        b"GET /metrics HTTP/1.1\r\nAuthorization: Basic YWxpY2U6eA==\r\n\r\n",
        *told,
        *(bytes([one[5]]) + one[frames.HEADER_BYTES :] for one in told),
    ]


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_valid_inputs_end_in_a_value_or_a_documented_error(name: str) -> None:
    chance = random.Random(name)
    for seed in seeds():
        for _ in range(150):
            data = bytearray(seed)
            for _ in range(chance.randrange(4)):
                what = chance.randrange(3)
                at = chance.randrange(len(data) + 1)
                if what == 0 and data:
                    data[at % len(data)] = chance.randrange(256)
                elif what == 1:
                    del data[at : at + chance.randrange(9)]
                else:
                    data[at:at] = chance.randbytes(chance.randrange(9))
            TARGETS[name](bytes(data))
