"""Points in time that requests name."""

from google.protobuf.timestamp_pb2 import Timestamp

from duolog_server.compat.grpc.words.codes import Refused
from duolog_server.compat.grpc.words.stubs import Code


def ms_of(timestamp: Timestamp, name: str, code: Code = Code.BAD_REQUEST) -> int:
    """Wall-clock ms. name: of the field. code: of the refusal.

    Raises Refused for what is no time: before the year 1, after 9999, or with wrong nanos.
    """
    try:
        return int(timestamp.ToMilliseconds())
    except ValueError as error:
        raise Refused(code, f"{name}: {error}") from None
