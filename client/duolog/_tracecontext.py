"""W3C trace context in a message's properties: `traceparent`, and `tracestate` if there is one.

Pure. A text is a message's properties as they are stored; a batch's texts lie one after the other,
so one search tells whether any message of a batch has a context.
"""

from dataclasses import dataclass

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
MARK = b"traceparent\x01"  # in the properties of every message that has a context
STATE_BYTES_MAX = 512  # a longer tracestate may be dropped
# Of all properties of a message with its context. A node takes so many bytes from a client, and
# leaves room for its own properties: of copies for a delay, a transaction or another attempt.
TEXT_BYTES_MAX = 31 << 10
SAMPLED = 1
_STATE_MARK = b"tracestate\x01"
_PARENT_BYTES = 55
_END = 2  # the byte between two properties


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The span that a message was created in."""

    trace_id: int
    span_id: int
    flags: int = SAMPLED
    state: str = ""

    @property
    def sampled(self) -> bool:
        """Whether the spans of its trace are recorded."""
        return bool(self.flags & SAMPLED)

    @property
    def traceparent(self) -> str:
        """W3C's traceparent header."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.flags:02x}"

    def added_to(self, text: bytes) -> bytes:
        """A message's properties with the context; without it if it does not fit."""
        made = f"{TRACEPARENT}\x01{self.traceparent}"
        if self.state and len(self.state) <= STATE_BYTES_MAX:
            made += f"\x02{TRACESTATE}\x01{self.state}"
        # A store may have put an end after the last property.
        between = b"\x02" if text and text[-1] != _END else b""
        whole = text + between + made.encode()
        return whole if len(whole) <= TEXT_BYTES_MAX else text


def context_in(text: bytes) -> TraceContext | None:
    """The context in a message's properties; None if there is none, or it is not valid."""
    parent = _value(text, MARK)
    if parent is None:
        return None
    state = _value(text, _STATE_MARK) or b""
    return context_of(parent.decode("ascii", "replace"), state.decode("ascii", "replace"))


def context_of(traceparent: str, tracestate: str = "") -> TraceContext | None:
    """A context from its two values; None if the first one is not valid.

    A longer state than is added is dropped: it would go out in headers of the program's own calls.
    """
    parts = traceparent[:_PARENT_BYTES].split("-")
    if len(parts) != 4 or [len(part) for part in parts] != [2, 32, 16, 2]:
        return None
    if len(traceparent) > _PARENT_BYTES and (
        parts[0] == "00" or traceparent[_PARENT_BYTES] != "-"  # a later version may say more
    ):
        return None
    if not set("".join(parts)) <= set("0123456789abcdef") or parts[0] == "ff":
        return None
    trace_id, span_id, flags = (int(part, 16) for part in parts[1:])
    if not trace_id or not span_id:
        return None
    state = tracestate if len(tracestate) <= STATE_BYTES_MAX else ""
    return TraceContext(trace_id, span_id, flags, state)


def _value(text: bytes, mark: bytes) -> bytes | None:
    """A property's value; mark: its name, with the byte that ends a name."""
    at = text.find(mark)
    while at > 0 and text[at - 1] != _END:  # the end of a longer name
        at = text.find(mark, at + 1)
    if at < 0:
        return None
    begin = at + len(mark)
    end = text.find(_END, begin)
    return text[begin:] if end < 0 else text[begin:end]
