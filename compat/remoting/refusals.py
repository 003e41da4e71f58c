"""Errors as RocketMQ's response codes."""

from duolog import _errors as sdk

from duolog_server.compat.remoting.codec.codes import ResponseCode
from duolog_server.compat.remoting.codec.command import BadRequest
from duolog_server.store import errors
from duolog_server.store.status import PutMessageStatus

REMARK_CHARACTERS_MAX = 1000


class Refused(Exception):
    """A request that is answered with a code."""

    def __init__(self, code: ResponseCode, remark: str) -> None:
        super().__init__(remark)
        self.code = code


PUT_CODES: dict[PutMessageStatus, ResponseCode] = {
    PutMessageStatus.PUT_OK: ResponseCode.SUCCESS,
    PutMessageStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    PutMessageStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
    PutMessageStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutMessageStatus.QUEUE_MOVED: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutMessageStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutMessageStatus.MESSAGE_TOO_LARGE: ResponseCode.MESSAGE_ILLEGAL,
    PutMessageStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
}
# The first that fits: an error may be of several kinds.
_CODES: tuple[tuple[type[Exception], ResponseCode], ...] = (
    (BadRequest, ResponseCode.SYSTEM_ERROR),
    (sdk.UnknownTopic, ResponseCode.TOPIC_NOT_EXIST),
    (sdk.UnknownGroup, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    (sdk.NoPermission, ResponseCode.NO_PERMISSION),
    (sdk.Unauthenticated, ResponseCode.NO_PERMISSION),  # as RocketMQ 5
    (sdk.NoSuchMessage, ResponseCode.QUERY_NOT_FOUND),
    (sdk.Busy, ResponseCode.SYSTEM_BUSY),
    (sdk.Retryable, ResponseCode.SERVICE_NOT_AVAILABLE),
    (sdk.ResultUnknown, ResponseCode.SERVICE_NOT_AVAILABLE),
    (sdk.DuologError, ResponseCode.SYSTEM_ERROR),
    (errors.BadMessage, ResponseCode.MESSAGE_ILLEGAL),
    (errors.OffsetOutOfRange, ResponseCode.SYSTEM_ERROR),
    (errors.CorruptRecord, ResponseCode.SYSTEM_ERROR),
    (errors.StoreError, ResponseCode.SERVICE_NOT_AVAILABLE),
)


def refusal(error: Exception) -> tuple[ResponseCode, str] | None:
    """Code and remark for an error; None for one that no request can cause."""
    remark = str(error)[:REMARK_CHARACTERS_MAX]
    if isinstance(error, Refused):
        return error.code, remark
    code = next((code for kind, code in _CODES if isinstance(error, kind)), None)
    return None if code is None else (code, remark)


def put_code(status: PutMessageStatus) -> ResponseCode:
    """The code of a put."""
    return PUT_CODES.get(status, ResponseCode.SYSTEM_ERROR)
