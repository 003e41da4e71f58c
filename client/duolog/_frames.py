"""Frames: how messages of the native API travel over a plain TCP connection. Both ends use this.

A frame is a header of 16 bytes, little-endian, a protobuf message (the head) and, where the message
has bodies of messages, these behind it as they are:

    0   u32  length of what follows the header
    4   u8   kind
    5   u8   flags
    6   u16  CALL: method; END: status code; other kinds: 0
    8   u32  number of the call, chosen by the client; 0 where it is of none
    12  u32  CALL: milliseconds that are left for it, 0 for a stream without an end;
             MESSAGE, APPEND: length of the head; MORE: messages; PING, PONG: any

The client begins with HELLO, and the node answers with WELCOME, or with GOAWAY and the reason.
Everything that breaks a rule is a FrameError, and ends the connection it came from.
"""

import enum
import mmap
import struct
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from duolog.wire import duolog_pb2 as wire

HEADER = struct.Struct("<IBBHII")
HEADER_BYTES = HEADER.size
VERSION = 1
KEY_BYTES = 16
CLIENT_MAGIC = b"duolog>1"
NODE_MAGIC = b"duolog<1"
_HELLO = struct.Struct("<8sH16s")  # magic, newest version that is spoken, the node's key
_WELCOME = struct.Struct("<8sHII")  # magic, version, longest frame, most calls at a time
LAST = 1  # flag of a MESSAGE: the call ended well with it
STREAM_AHEAD = 64  # messages of a stream that its reader has not taken yet, at most
BASE_BYTES = 16 << 10  # where frames arrive that are no longer
AT_ONCE_BYTES = 2 << 20  # of a frame that is not very long
APART_BYTES = 64 << 10  # bodies that are written by themselves
GREETING_BYTES = 4096  # longest frame before the greeting is over


class Kind(enum.IntEnum):
    """Kinds of frames. c: sent by clients, n: by nodes."""

    HELLO = 1  # c
    WELCOME = 2  # n
    GOAWAY = 3  # n: begin no more calls here; the reason, as text
    PING = 4  # both
    PONG = 5  # both
    CALL = 6  # c: a call begins; with its request where it has a single one
    MESSAGE = 7  # both: of a call
    END = 8  # n: a call ended; with a CallEnd
    CANCEL = 9  # c: a call is of no interest any more
    MORE = 10  # c: so many messages of a stream were taken
    APPEND = 11  # c: an AppendRequest; a call of its own
    APPENDED = 12  # n: its AppendReply; in the order of the requests


KINDS = frozenset(Kind)
# Numbers of the methods: new ones at the end.
METHODS = (
    "",
    "Messages/Append",
    "Messages/Pull",
    "Messages/Subscribe",
    "Messages/Find",
    "Messages/Stage",
    "Messages/Publish",
    "Messages/SinkState",
    "Messages/EndTransactions",
    "Messages/TransactionChecks",
    "Groups/Heartbeat",
    "Groups/Leave",
    "Groups/Commit",
    "Groups/Offsets",
    "Groups/OffsetAtTime",
    "Groups/OffsetAtSize",
    "Groups/SendBack",
    "Admin/CreateTopic",
    "Admin/AlterTopic",
    "Admin/DeleteTopic",
    "Admin/ListTopics",
    "Admin/ListGroups",
    "Admin/DescribeGroup",
    "Admin/ResetGroup",
    "Admin/PutGroup",
    "Admin/DeleteGroup",
    "Admin/Track",
    "Admin/NodeStatus",
    "Admin/ClusterStatus",
    "Admin/Route",
    "Admin/Failover",
    "Admin/Drain",
    "Admin/ElectUnclean",
    "Access/WhoAmI",
    "Access/PutUser",
    "Access/DeleteUser",
    "Access/ListUsers",
    "Access/PutRights",
    "Access/GetRights",
    "Access/TestAccess",
    "Access/IssueToken",
    "Admin/PutQuota",
    "Admin/DeleteQuota",
    "Admin/ListQuotas",
    "Admin/ListDelayed",
    "Admin/RecallDelayed",
    "Admin/ListHalves",
    "Admin/DecideHalf",
    "Admin/SetGuarantee",
    "Admin/Forget",
    "Admin/Freeze",
    "Admin/MoveQueue",
    "Admin/AbortMove",
    "Admin/ListMoves",
    "Admin/RetireGroup",
    "Admin/ForgetGroup",
    "Admin/TrimTopic",
)
PATHS = tuple(f"/duolog.v1.{method}" for method in METHODS)
NUMBERS = {path: number for number, path in enumerate(PATHS) if number}


class FrameError(Exception):
    """The bytes are not a frame, or a frame that is not allowed now."""


class Frame(NamedTuple):
    """A frame that arrived. payload: valid until the next bytes are received."""

    kind: int
    flags: int
    code: int
    call: int
    number: int
    payload: memoryview

    @property
    def head(self) -> memoryview:
        """The protobuf message. Raises FrameError."""
        if self.number > len(self.payload):
            raise FrameError(f"a head of {self.number} bytes in {len(self.payload)}")
        return self.payload[: self.number]

    @property
    def body(self) -> memoryview:
        """What is behind it."""
        return self.payload[self.number :]


class FrameReader:
    """The bytes that arrived on a connection, and the frames in them.

    Short frames arrive in a buffer of the connection's own. A long one gets memory of its own; a
    very long one such of which the system has no more than came, and gets it back at once.

    Attributes:
        whole: bytes of the long frame that has begun to arrive, header included; 0 for none. It
            takes memory from the next call of `room` on.
    """

    __slots__ = ("_base", "_begin", "_end", "_has_long", "_view", "frame_bytes_max", "whole")

    def __init__(self, frame_bytes_max: int, base_bytes: int = BASE_BYTES) -> None:
        """frame_bytes_max: longest frame, without its header; may be set later. base_bytes: where
        frames arrive that are no longer; see `widen`.
        """
        self.frame_bytes_max = frame_bytes_max
        self._base = self._view = memoryview(bytearray(base_bytes))
        self._begin = self._end = 0
        self.whole = 0
        self._has_long = False  # frame that `_view` is for; or else it is the base

    @property
    def in_the_middle(self) -> bool:
        """Whether a frame has begun to arrive."""
        return self._end > self._begin

    def widen(self) -> None:
        """Grow the buffer to its usual size; between two frames."""
        if len(self._base) >= BASE_BYTES:
            return
        held = self._view[self._begin : self._end]
        self._base = memoryview(bytearray(BASE_BYTES))
        if not self._has_long:
            self._base[: len(held)] = held
            self._view, self._begin, self._end = self._base, 0, len(held)

    def room(self) -> memoryview:
        """The buffer for the next bytes."""
        if self.whole and not self._has_long:
            self._begin_long()
        return self._view[self._end :]

    def received(self, count: int) -> None:
        """Take so many bytes that were put into the buffer."""
        self._end += count

    def next(self) -> Frame | None:
        """The next frame, None where it is not whole yet. Raises FrameError."""
        begin, have = self._begin, self._end - self._begin
        if have < HEADER_BYTES:
            if have:
                self._gather(HEADER_BYTES)
            return None
        length, kind, flags, code, call, number = HEADER.unpack_from(self._view, begin)
        if kind not in KINDS:
            raise FrameError(f"unknown kind of frame: {kind}")
        if length > self.frame_bytes_max:
            raise FrameError(f"a frame of {length} bytes; the limit is {self.frame_bytes_max}")
        whole = HEADER_BYTES + length
        if have < whole:
            self._gather(whole)
            return None
        payload = self._view[begin + HEADER_BYTES : begin + whole]
        self._begin = begin + whole
        if self._begin == self._end:
            self._begin = self._end = 0
            if self._has_long:
                self._view, self._has_long, self.whole = self._base, False, 0
        return Frame(kind, flags, code, call, number, payload)

    def _gather(self, whole: int) -> None:
        """See that a frame of so many bytes, header included, has room."""
        begin, end = self._begin, self._end
        if self.whole or begin + whole <= len(self._view):
            return
        if whole <= len(self._base):
            self._view[: end - begin] = bytes(self._view[begin:end])
            self._begin, self._end = 0, end - begin
            return
        self.whole = whole

    def _begin_long(self) -> None:
        """Allocate memory for the long frame that has begun."""
        held = self._view[self._begin : self._end]
        self._view, self._has_long = frame_memory(self.whole), True
        self._view[: len(held)] = held
        self._begin, self._end = 0, len(held)


def frame_memory(size: int) -> memoryview:
    """Memory of a frame; where it is very long, the system has no more of it than is filled."""
    if size <= AT_ONCE_BYTES or sys.platform == "win32":
        return memoryview(bytearray(size))
    return memoryview(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def frame(kind: int, call: int = 0, number: int = 0, payload: bytes = b"", code: int = 0) -> bytes:
    """A frame without flags."""
    return HEADER.pack(len(payload), kind, 0, code, call, number) + payload


def message_frame(kind: int, call: int, head: bytes, body: bytes = b"", flags: int = 0) -> bytes:
    """A message of a call, with bodies behind it."""
    length = len(head)
    return b"".join((HEADER.pack(length + len(body), kind, flags, 0, call, length), head, body))


def message_parts(
    kind: int, call: int, head: bytes, body: bytes, flags: int = 0
) -> tuple[bytes, ...]:
    """A message in one piece, or in two, where copying its bodies costs more than another write."""
    if len(body) < APART_BYTES:
        return (message_frame(kind, call, head, body, flags),)
    length = len(head)
    return HEADER.pack(length + len(body), kind, flags, 0, call, length) + head, body


# -- greetings -------------------------------------------------------------------------------------


class Welcome(NamedTuple):
    """A node's answer to the hello."""

    version: int
    frame_bytes_max: int
    calls_max: int


def hello(key: bytes) -> bytes:
    """Encode a client's hello. key: from the node's route."""
    return frame(Kind.HELLO, payload=_HELLO.pack(CLIENT_MAGIC, VERSION, key))


def read_hello(found: Frame) -> tuple[int, bytes]:
    """The newest version a client speaks, and the key of the node it means. Raises FrameError."""
    if found.kind != Kind.HELLO or len(found.payload) < _HELLO.size:
        raise FrameError("a connection begins with a greeting")
    magic, version, key = _HELLO.unpack_from(found.payload)
    if magic != CLIENT_MAGIC or not version:
        raise FrameError("the greeting is not that of a client")
    return version, key


def welcome(frame_bytes_max: int, calls_max: int) -> bytes:
    """Encode a node's answer to the hello."""
    payload = _WELCOME.pack(NODE_MAGIC, VERSION, frame_bytes_max, calls_max)
    return frame(Kind.WELCOME, payload=payload)


def read_welcome(found: Frame) -> Welcome:
    """Parse a node's answer. Raises FrameError, also if it refused the client."""
    if found.kind == Kind.GOAWAY:
        raise FrameError(text_of(found))
    if found.kind != Kind.WELCOME or len(found.payload) < _WELCOME.size:
        raise FrameError("invalid answer to the greeting")
    magic, version, frame_bytes_max, calls_max = _WELCOME.unpack_from(found.payload)
    if magic != NODE_MAGIC or version != VERSION:
        raise FrameError("the answer to the greeting is not that of a node, or of another version")
    return Welcome(version, frame_bytes_max, calls_max)


def goaway(reason: str) -> bytes:
    """A node takes no more calls on a connection."""
    return frame(Kind.GOAWAY, payload=reason.encode()[:1000])


def text_of(found: Frame) -> str:
    """The reason in a GOAWAY."""
    return bytes(found.payload).decode(errors="replace")


# -- messages --------------------------------------------------------------------------------------


def split(message: Any, serialize: Callable[[Any], bytes]) -> tuple[bytes, bytes]:
    """Head and body of a message. A batch that is split so has lost its bodies."""
    if not isinstance(message, wire.MessageBatch) or not message.bodies:
        return serialize(message), b""
    bodies = message.bodies
    message.ClearField("bodies")
    return serialize(message), bodies
