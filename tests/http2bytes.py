"""HTTP/2 as bytes: what tests send, also what no library would let them send.

Header blocks have no Huffman coding and no table: every field is written out.
"""

import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
GOAWAY = 7
ACK, END_STREAM, END_HEADERS = 1, 1, 4
CANCEL = 8
CONCURRENT_STREAMS, INITIAL_WINDOW = 3, 4  # settings
WINDOW = 65_535  # of a connection and its streams where nothing is said
BLOCK_BYTES_MAX = 16_384  # of one frame
_POST, _HTTP = b"\x83", b"\x86"  # of the static table


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame."""
    head = struct.pack(">I", len(payload))[1:] + bytes((kind, flags))
    return head + struct.pack(">I", stream) + payload


def text(value: bytes) -> bytes:
    """A string of a header block."""
    length = len(value)
    if length < 127:
        return bytes((length,)) + value
    length -= 127
    out = bytearray(b"\x7f")
    while length >= 128:
        out.append(length % 128 + 128)
        length //= 128
    out.append(length)
    return bytes(out) + value


def field(name: bytes, value: bytes) -> bytes:
    """A header, not put into the table."""
    return b"\x00" + text(name) + text(value)


def call_block(path: bytes, *more: bytes) -> bytes:
    """The header block of a gRPC call; more: fields."""
    parts = (
        _POST,
        _HTTP,
        b"\x04" + text(path),
        b"\x01" + text(b"localhost"),
        field(b"te", b"trailers"),
        field(b"content-type", b"application/grpc"),
        *more,
    )
    return b"".join(parts)


def greeting(window: int = 65_535) -> bytes:
    """What a connection begins with. window: of each stream, for what the server sends."""
    setting = struct.pack(">HI", INITIAL_WINDOW, window)
    more = frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", (1 << 31) - 1 - 65_535))
    return PREFACE + frame(SETTINGS, 0, 0, setting) + more


def begin(stream: int, block: bytes) -> bytes:
    """Headers of a stream that go on in CONTINUATION where they are long."""
    pieces = [block[at : at + BLOCK_BYTES_MAX] for at in range(0, len(block), BLOCK_BYTES_MAX)]
    last = len(pieces) - 1
    return b"".join(
        frame(CONTINUATION if n else HEADERS, END_HEADERS if n == last else 0, stream, piece)
        for n, piece in enumerate(pieces)
    )


def message(stream: int, data: bytes, flags: int = 0, *, packed: bool = False) -> bytes:
    """A gRPC message in frames of DATA; packed: it is compressed."""
    whole = bytes((packed,)) + struct.pack(">I", len(data)) + data
    pieces = [whole[at : at + BLOCK_BYTES_MAX] for at in range(0, len(whole), BLOCK_BYTES_MAX)]
    last = len(pieces) - 1
    return b"".join(
        frame(DATA, flags if n == last else 0, stream, piece) for n, piece in enumerate(pieces)
    )
