"""RocketMQ's status codes, and the mapping from our errors to them."""

from typing import Any, Never, Protocol, TypeVar

import grpc
from duolog import _errors as sdk
from google.protobuf import message as protobuf

from duolog_server.compat.grpc.protocol.stubs import Code, Status, service
from duolog_server.store import errors
from duolog_server.store.status import PutMessageStatus

Made = TypeVar("Made")
Told = TypeVar("Told", bound=protobuf.Message)


class Ending(Protocol):
    """A call that may end with an error of gRPC."""

    async def abort(self, code: grpc.StatusCode, details: str) -> Never:
        """End it."""


class Refused(Exception):
    """A request that is answered with a code."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


PUT_CODES: dict[PutMessageStatus, Code] = {
    PutMessageStatus.PUT_OK: Code.OK,
    PutMessageStatus.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
    PutMessageStatus.SLAVE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
    PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: Code.HA_NOT_AVAILABLE,
    PutMessageStatus.QUEUE_MOVED: Code.HA_NOT_AVAILABLE,
    PutMessageStatus.MESSAGE_ILLEGAL: Code.MESSAGE_CORRUPTED,
    PutMessageStatus.MESSAGE_TOO_LARGE: Code.MESSAGE_BODY_TOO_LARGE,
    PutMessageStatus.PROPERTIES_SIZE_EXCEEDED: Code.MESSAGE_PROPERTIES_TOO_LARGE,
    PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED: Code.LITE_TOPIC_QUOTA_EXCEEDED,
}
_ERROR_CODES: tuple[tuple[type[Exception], Code], ...] = (
    (sdk.UnknownTopic, Code.TOPIC_NOT_FOUND),
    (sdk.UnknownGroup, Code.CONSUMER_GROUP_NOT_FOUND),
    (sdk.Unauthenticated, Code.UNAUTHORIZED),
    (sdk.NoPermission, Code.FORBIDDEN),
    (sdk.NoSuchMessage, Code.MESSAGE_NOT_FOUND),
    (sdk.Busy, Code.TOO_MANY_REQUESTS),
    (sdk.NotMaster, Code.HA_NOT_AVAILABLE),
    (sdk.Unavailable, Code.HA_NOT_AVAILABLE),
    (sdk.ResultUnknown, Code.HA_NOT_AVAILABLE),
    (sdk.BadRequest, Code.BAD_REQUEST),
    (errors.BadGroup, Code.ILLEGAL_CONSUMER_GROUP),
    (errors.BadMessage, Code.BAD_REQUEST),
)


def status(code: Code, message: str = "") -> Status:
    """A Status; the text for success is OK, as in RocketMQ's own servers."""
    return Status(code=code, message=message or Code.Name(code))


OK = status(Code.OK)
# Of gRPC, for replies that have no status.
_GRPC_CODES = {
    Code.UNAUTHORIZED: grpc.StatusCode.UNAUTHENTICATED,
    Code.FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
    Code.UNSUPPORTED: grpc.StatusCode.UNIMPLEMENTED,
    Code.HA_NOT_AVAILABLE: grpc.StatusCode.UNAVAILABLE,
    Code.INTERNAL_SERVER_ERROR: grpc.StatusCode.INTERNAL,
}
DETAILS_CHARACTERS_MAX = 500  # of an error's text in a header


def status_of(error: Exception) -> Status:
    """The status for an error."""
    if isinstance(error, Refused):
        return status(error.code, error.message)
    for kind, code in _ERROR_CODES:
        if isinstance(error, kind):
            return status(code, str(error))
    return status(Code.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")


def refusal(kind: type[Made], request: protobuf.Message, error: Exception) -> Made:
    """The reply for an error. kind: of replies, which all have a status."""
    reply: Any = kind()
    reply.status.CopyFrom(status_of(error))
    if isinstance(request, service.ChangeInvisibleDurationRequest):
        reply.receipt_handle = request.receipt_handle  # clients use it even with an error status
    made: Made = reply
    return made


async def refused(
    kind: type[Told], request: protobuf.Message, error: Exception, call: Ending
) -> Told:
    """The reply for an error; a call whose reply has no status ends with an error of gRPC."""
    if "status" in kind.DESCRIPTOR.fields_by_name:
        return refusal(kind, request, error)
    told = status_of(error)
    code = _GRPC_CODES.get(told.code, grpc.StatusCode.INVALID_ARGUMENT)
    await call.abort(code, told.message[:DETAILS_CHARACTERS_MAX])


def put_status(outcome: PutMessageStatus, reason: str) -> Status:
    """The status of a put."""
    if outcome is PutMessageStatus.PUT_OK:
        return OK
    code = PUT_CODES.get(outcome, Code.INTERNAL_SERVER_ERROR)
    return status(code, f"{outcome.value} {reason}".strip())


def overall(statuses: list[Status]) -> Status:
    """One status for several: their common one, or MULTIPLE_RESULTS."""
    codes = {one.code for one in statuses}
    return statuses[0] if len(codes) == 1 else status(Code.MULTIPLE_RESULTS)
