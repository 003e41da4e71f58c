"""Authentication: RocketMQ's signature, HMAC-SHA1 over the date header with the secret key.

It covers only the date. So it proves that the caller knew the secret at about that time, for any
call: who reads a call on its way can make others until its date is too old. Use TLS.
"""

import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from duolog import _errors as sdk

from duolog_server.compat.grpc.protocol.codes import Refused
from duolog_server.compat.grpc.protocol.stubs import Code
from duolog_server.compat.grpc.relay.calls import Call, headers_of
from duolog_server.node.audit.auditlog import AuditLog
from duolog_server.node.identity.access.gate import Gate, Principal
from duolog_server.node.identity.access.lockout import Lockout, Login
from duolog_server.node.identity.quotas.quotas import Who
from duolog_server.node.service import guard
from duolog_server.node.wirecodec import peer_host

SCHEME = "MQv2-HMAC-SHA1"
SESSION_TOKEN = "x-mq-session-token"
DATE_MAX = 40  # characters
ZONES_APART = timedelta(hours=26)  # no two zones are further apart
_COMPACT = re.compile(r"[0-9]{8}T[0-9]{6}Z")
Headers = Mapping[str, str | bytes]


@dataclass(frozen=True, slots=True)
class Signed:
    """How a call is signed. name: the access key."""

    scheme: str
    name: str
    signature: str
    date: str

    @staticmethod
    def of(headers: Headers) -> "Signed":
        """Read the headers; what is missing is empty."""
        scheme, _, rest = str(headers.get("authorization", "")).partition(" ")
        parts = dict(pair.strip().partition("=")[::2] for pair in rest.split(","))
        name = parts.get("Credential", "").partition("/")[0]
        signature = parts.get("Signature", "").lower()
        return Signed(scheme, name, signature, str(headers.get("x-mq-date-time", "")))

    def is_by(self, secret: bytes) -> bool:
        """Whether the holder of a secret signed it. Takes equally long for each signature."""
        wanted = hmac.new(secret, self.date.encode(), hashlib.sha1).hexdigest()
        return hmac.compare_digest(self.signature.encode(), wanted.encode())


class Authenticator:
    """Checks calls against one pair of keys; without keys, every call is accepted."""

    def __init__(self, access_key: str, secret_key: str, lockout: Lockout) -> None:
        self._access_key = access_key
        self._secret = secret_key.encode()
        self._lockout = lockout

    def check(self, metadata: Headers, peer: str) -> None:
        """Raise Refused (UNAUTHORIZED) if the call is not signed with the keys, Throttled if too
        many were not. peer: where from, as gRPC names it.
        """
        if not self._access_key:
            return
        given = Signed.of(metadata)
        known = hmac.compare_digest(given.name.encode(), self._access_key.encode())
        login = Login(given.name, peer_host(peer).address, peer)
        signed = given.scheme == SCHEME and self._lockout.guarded(
            login, lambda: given.is_by(self._secret) and known
        )
        if not signed:
            raise Refused(Code.UNAUTHORIZED, "the access key or its signature is wrong")


def check_keys(
    authenticator: Authenticator, context: Call, audit: AuditLog | None, shown: str
) -> None:
    """Raise Refused (UNAUTHORIZED) if a call is not signed with the keys, and note that.

    audit: None where there is none. shown: the service, as the audit log names it.
    """
    try:
        authenticator.check(headers_of(context), str(context.peer()))
    except Refused as error:
        note_denied(audit, context, shown, error)
        raise


def note_denied(audit: AuditLog | None, context: Any, shown: str, error: Exception) -> None:
    """Note a call of an unknown user. audit, shown: see `check_keys`."""
    guard.note_denied(audit, Who.at("", peer_host(str(context.peer())).address), shown, "", error)


class Dates:
    """Tells whether a signed date is about now.

    Most of Apache's clients (Java, Go, Python, C#) write the local time of their machine, with a Z
    as if it were UTC. So a date in that form is compared with the time of each zone that clients
    are known to be in. Rust's client names its offset from UTC.
    """

    def __init__(
        self, window_seconds: int, zones: Iterable[tzinfo], wall_ms: Callable[[], int]
    ) -> None:
        """zones: besides UTC and this machine's own."""
        self._window = timedelta(seconds=window_seconds)
        self._zones = tuple(zones)
        self._wall_ms = wall_ms

    def check(self, text: str) -> None:
        """Raise Unauthenticated for a date that is too old, too new, or none."""
        now = datetime.fromtimestamp(self._wall_ms() / 1000, UTC)
        if not any(abs(moment - now) <= self._window for moment in self._moments(text, now)):
            seconds = int(self._window.total_seconds())
            raise sdk.Unauthenticated(
                f"the signed date {text[:DATE_MAX]!r} is more than {seconds} s from this node's "
                f"clock, {now:%Y%m%dT%H%M%SZ}: set the client's clock, or, if it writes its local "
                "time, name its time zone in access.date_zones"
            )

    def _moments(self, text: str, now: datetime) -> Iterator[datetime]:
        """The moments that a date may stand for."""
        try:
            date = datetime.fromisoformat(text) if len(text) <= DATE_MAX else None
        except ValueError:
            return
        if date is None or date.tzinfo is None:
            return
        yield date
        if _COMPACT.fullmatch(text) and abs(date - now) <= ZONES_APART:
            for fold in (0, 1):  # where clocks are set back, an hour comes twice
                local = date.replace(tzinfo=None, fold=fold)
                yield local.astimezone()
                for zone in self._zones:
                    yield local.replace(tzinfo=zone)


class Signatures:
    """Recognises users by their signatures."""

    def __init__(self, gate: Gate, dates: Dates) -> None:
        self._gate = gate
        self._dates = dates

    def principal(self, headers: Headers, peer: str) -> Principal:
        """The user that signed a call. Raises Unauthenticated, Throttled.

        peer: the caller's address and port, as gRPC names them.
        """
        if headers.get(SESSION_TOKEN):
            raise sdk.Unauthenticated(
                "session tokens are not supported: sign with the name and password of a user"
            )
        given = Signed.of(headers)
        if given.scheme != SCHEME:
            raise sdk.Unauthenticated(
                f"this node has users: sign calls with the name and password of one ({SCHEME})"
            )
        found = self._gate.signed(Login(given.name, peer_host(peer).address, peer), given.is_by)
        self._dates.check(given.date)
        return found
