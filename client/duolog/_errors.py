"""The errors of the SDK, and their one mapping to gRPC status codes.

DuologError
├── Retryable                 the same call may work later
│   ├── Unavailable           no endpoint could be reached, or the connection broke
│   ├── Timeout               the deadline of the call passed; also a TimeoutError of Python's
│   ├── NotMaster             the node does not take writes now
│   ├── Busy                  the node has no room or is held up
│   │   └── Throttled         a quota is used up for now
│   └── BufferFull            the producer's buffer is used up
├── Fatal                     the same call will fail again
│   ├── BadRequest            a limit or a rule is broken
│   │   ├── MessageTooLarge
│   │   └── WrongProcess      the client, or gRPC, was in use in the process that was forked
│   ├── UnknownTopic, UnknownGroup, NoSuchMessage
│   ├── TopicExists
│   ├── OffsetMismatch        the next offset of the queue is not the expected one
│   ├── Unauthenticated       the node does not know who is calling
│   ├── NoPermission
│   ├── StaleMember           another member of the group has the queue now
│   └── CorruptBatch          a CRC did not match
└── ResultUnknown             a send, or an order to a replica group, may or may not have been done
    └── SlaveNotAvailable     stored by the master, which has too few slaves to confirm it
"""

import grpc
import grpc.aio

ERROR_KEY = "duolog-error"
MASTER_KEY = "duolog-master"
EPOCH_KEY = "duolog-epoch"
AWAY_KEY = "duolog-master-away"
RETRY_KEY = "duolog-retry-after-ms"
STATUS_KEY = "duolog-status"


class DuologError(Exception):
    """Base of everything the SDK raises."""


class Retryable(DuologError):
    """The same call may work later."""


class Unavailable(Retryable):
    """No endpoint could be reached, or the connection broke."""


class Timeout(Retryable, TimeoutError):
    """The deadline passed without an answer; the call may have run, and may be made again.

    Of a send: nothing was stored, it did not go out in time (ResultUnknown if it may have been).
    Of `failover`: nothing was done (ResultUnknown if it may have been). Every other call is safe
    to repeat, and changes nothing more the second time; only a repeated `send_back` may give the
    group the message twice.
    """


class NotMaster(Retryable):
    """The node does not take writes now.

    Attributes:
        endpoint: HOST:PORT of the master, as far as the node knows it, or empty.
        epoch: number of that master's epoch, 0 if it is not known.
        master_away: that master is not reached by the node, and no other one takes over by itself.
    """

    def __init__(
        self, text: str = "", endpoint: str = "", epoch: int = 0, master_away: bool = False
    ) -> None:
        super().__init__(text)
        self.endpoint = endpoint
        self.epoch = epoch
        self.master_away = master_away


class Busy(Retryable):
    """The node has no room, or is held up by its disk."""


class Throttled(Busy):
    """The call is over a quota; nothing was done. Sends wait, and go again within their time.

    Attributes:
        retry_after_ms: after this time it may work, as far as the node can tell; 0: it cannot.
    """

    def __init__(self, text: str = "", retry_after_ms: int = 0) -> None:
        super().__init__(text)
        self.retry_after_ms = retry_after_ms


class BufferFull(Retryable):
    """Unanswered posts fill the producer's buffer; this message was not taken."""


class Fatal(DuologError):
    """The same call will fail again."""


class BadRequest(Fatal):
    """The request breaks a limit or a rule; nothing was stored."""


class MessageTooLarge(BadRequest):
    """A body or property text is over the limit; nothing was stored."""


class WrongProcess(BadRequest):
    """A client was used in a process that was forked from the one that made it; nothing was done.

    Also raised by a client that was made in such a process, where gRPC was running in its parent.
    """


class UnknownTopic(Fatal):
    """The topic does not exist."""


class UnknownGroup(Fatal):
    """The group does not exist."""


class NoSuchMessage(Fatal):
    """No message is where the id or offset points."""


class TopicExists(Fatal):
    """The topic exists already, with other settings."""


class Unauthenticated(Fatal):
    """The node has users, and the call named none of them with the right password."""


class NoPermission(Fatal):
    """The user has no right to it, or the topic's perm allows no reads or no writes."""


class StaleMember(Fatal):
    """The queue went to another member of the group; the commit was refused."""


class OffsetMismatch(Fatal):
    """A batch was to have a queue offset that is not the next of its queue; nothing was stored.

    Attributes:
        next_offset: the next offset of the queue, on the node that refused it.
    """

    def __init__(self, text: str = "", next_offset: int = -1) -> None:
        super().__init__(text)
        self.next_offset = next_offset


class CorruptBatch(Fatal):
    """A batch's CRC did not match its bytes."""


class ResultUnknown(DuologError):
    """It is unknown whether the call was carried out.

    Of a send: it may or may not have been stored, or is stored and may be lost with the master;
    sending it again with a new id may double it. Of `failover` and `elect_unclean`: the master may
    or may not change.

    Attributes:
        status: FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT or SLAVE_NOT_AVAILABLE where the master
            stored it and could not confirm it; empty otherwise.
    """

    def __init__(self, text: str = "", status: str = "") -> None:
        super().__init__(text)
        self.status = status


class SlaveNotAvailable(ResultUnknown):
    """The master stored the message and has too few slaves now: it may be lost with the master.

    Raised at once. A producer with `accept_weak=True` gets a receipt instead.
    """

    STATUS = "SLAVE_NOT_AVAILABLE"


_CODES: dict[type[DuologError], grpc.StatusCode] = {
    Unavailable: grpc.StatusCode.UNAVAILABLE,
    Timeout: grpc.StatusCode.DEADLINE_EXCEEDED,
    NotMaster: grpc.StatusCode.FAILED_PRECONDITION,
    Busy: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Throttled: grpc.StatusCode.RESOURCE_EXHAUSTED,
    BufferFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    MessageTooLarge: grpc.StatusCode.INVALID_ARGUMENT,
    BadRequest: grpc.StatusCode.INVALID_ARGUMENT,
    WrongProcess: grpc.StatusCode.INVALID_ARGUMENT,
    UnknownTopic: grpc.StatusCode.NOT_FOUND,
    UnknownGroup: grpc.StatusCode.NOT_FOUND,
    NoSuchMessage: grpc.StatusCode.NOT_FOUND,
    TopicExists: grpc.StatusCode.ALREADY_EXISTS,
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    NoPermission: grpc.StatusCode.PERMISSION_DENIED,
    StaleMember: grpc.StatusCode.ABORTED,
    CorruptBatch: grpc.StatusCode.DATA_LOSS,
    OffsetMismatch: grpc.StatusCode.ABORTED,
    ResultUnknown: grpc.StatusCode.UNKNOWN,
    SlaveNotAvailable: grpc.StatusCode.UNKNOWN,
}
_BY_NAME = {kind.__name__: kind for kind in _CODES}
_BY_CODE: dict[grpc.StatusCode, type[DuologError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: BadRequest,
    grpc.StatusCode.OUT_OF_RANGE: BadRequest,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: NoPermission,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Busy,
    grpc.StatusCode.CANCELLED: Unavailable,
    # what gRPC's core says of a connection that breaks in the middle of a write
    grpc.StatusCode.INTERNAL: Unavailable,
    grpc.StatusCode.UNIMPLEMENTED: BadRequest,
    **{code: kind for kind, code in _CODES.items() if kind in (Unavailable, Timeout)},
}


def trailing_of(error: DuologError) -> list[tuple[str, str]]:
    """Trailing metadata with which a node reports an error: its name and fields."""
    trailing = [(ERROR_KEY, type(error).__name__)]
    if isinstance(error, NotMaster) and error.endpoint:
        trailing += [(MASTER_KEY, error.endpoint), (EPOCH_KEY, str(error.epoch))]
    if isinstance(error, NotMaster) and error.master_away:
        trailing.append((AWAY_KEY, "1"))
    if isinstance(error, Throttled) and error.retry_after_ms:
        trailing.append((RETRY_KEY, str(error.retry_after_ms)))
    if isinstance(error, ResultUnknown) and error.status:
        trailing.append((STATUS_KEY, error.status))
    return trailing


def status_of(error: DuologError) -> tuple[grpc.StatusCode, str]:
    """gRPC status code and exact name under which a node reports an error."""
    return _CODES[type(error)], type(error).__name__


def error_of(failure: grpc.RpcError) -> DuologError:
    """The SDK's error for a failed call."""
    text = str(failure.details() or failure.code())
    metadata = failure.trailing_metadata() if isinstance(failure, grpc.aio.AioRpcError) else None
    for key, value in metadata or ():
        if key == ERROR_KEY and value in _BY_NAME:
            found = _BY_NAME[str(value)](text)
            trailing = {k: str(v) for k, v in metadata or ()}
            if isinstance(found, NotMaster):
                found.endpoint = trailing.get(MASTER_KEY, "")
                found.epoch = int(trailing.get(EPOCH_KEY, "0"))
                found.master_away = AWAY_KEY in trailing
            if isinstance(found, Throttled):
                found.retry_after_ms = int(trailing.get(RETRY_KEY, "0"))
            if isinstance(found, ResultUnknown):
                found.status = trailing.get(STATUS_KEY, "")
            return found
    if failure.code() is grpc.StatusCode.UNIMPLEMENTED:
        text = f"this node does not know the call: it is of another version, or not duolog ({text})"
    return _BY_CODE.get(failure.code(), DuologError)(text)
