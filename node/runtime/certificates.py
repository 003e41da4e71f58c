"""Certificate files: read together, checked, and read again after they were replaced.

Rules: what is in use always fits together. Files that cannot be used, as while they are being
written, change nothing; each reason is reported once, and they are tried again. Nothing here logs
or shows a key.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import structlog

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

log = structlog.get_logger("duolog.node")

T = TypeVar("T")

LOOK_SECONDS = 0.5  # between two looks at the files
_State = tuple[tuple[int, int, int] | None, ...]


class BadCertificate(OSError):
    """Certificate files that cannot be read or do not fit together; the text names them."""


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """PEM files: the authorities of the other end, and a certificate chain of our own with its
    key.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """The configured paths."""
        return tuple(path for path in (self.ca, self.cert, self.key) if path is not None)


@dataclass(frozen=True, slots=True)
class Pem:
    """Checked content of the files.

    Attributes:
        since, until: when the certificate of our own is valid; None without one.
    """

    files: CertificateFiles
    ca: bytes | None = None
    cert: bytes | None = None
    key: bytes | None = None
    since: datetime | None = None
    until: datetime | None = None

    def __repr__(self) -> str:
        return f"Pem({self.files})"

    def invalid(self, now: datetime) -> str:
        """Why others will not accept our certificate at this time; empty if they may."""
        if self.until is not None and now >= self.until:
            return f"{self.files.cert} expired at {self.until:%Y-%m-%d %H:%M} UTC"
        if self.since is not None and now < self.since:
            return f"{self.files.cert} is not valid before {self.since:%Y-%m-%d %H:%M} UTC"
        return ""


def read(files: CertificateFiles) -> Pem:
    """Read and check the files. Raises BadCertificate."""
    ca, cert, key = (_bytes(path) for path in (files.ca, files.cert, files.key))
    since = until = None
    if ca is not None:
        _certificates(files.ca, ca)
    if cert is not None:
        if key is None:
            raise BadCertificate(f"{files.cert} has no file with its key")
        since, until = _check_pair(files, cert, key)
    return Pem(files, ca, cert, key, since, until)


def _bytes(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadCertificate(f"cannot read {path}: {error.strerror or error}") from None


def _certificates(path: Path | None, data: bytes) -> "list[Certificate]":
    from cryptography import x509  # nodes without TLS and users do not need it

    try:
        return list(x509.load_pem_x509_certificates(data))
    except (ValueError, x509.InvalidVersion) as error:
        raise BadCertificate(f"{path} does not hold PEM certificates: {error}") from None


def _check_pair(files: CertificateFiles, cert: bytes, key: bytes) -> tuple[datetime, datetime]:
    """The validity of a certificate. Raises BadCertificate if the key is not its key."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    first = _certificates(files.cert, cert)[0]
    try:
        private = load_pem_private_key(key, None)
        fits = private.public_key() == first.public_key()
    except TypeError:
        raise BadCertificate(f"{files.key} is encrypted: a node has no passphrase for it") from None
    except (ValueError, UnsupportedAlgorithm):
        raise BadCertificate(f"{files.key} does not hold a PEM key") from None
    if not fits:
        raise BadCertificate(f"{files.key} is not the key of {files.cert}")
    return first.not_valid_before_utc, first.not_valid_after_utc


class Renewed(Generic[T]):
    """A value made from certificate files, made anew after they were replaced.

    May be asked from any thread.
    """

    def __init__(
        self,
        files: CertificateFiles,
        make: Callable[[Pem], T],
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """make: raises OSError where the files cannot be used. seconds: a monotonic clock.

        Raises BadCertificate.
        """
        self._files = files
        self._make = make
        self._seconds = seconds
        self._lock = threading.Lock()
        self._look_at = seconds() + LOOK_SECONDS
        self._state = _state(files)
        self._reason = ""  # why those of this state cannot be used
        self._pem = read(files)
        self._newest = make(self._pem)
        _warn_of_time(self._pem)

    def now(self) -> T:
        """Made of the newest files that can be used; the same object until there are others."""
        with self._lock:
            seconds = self._seconds()
            if seconds >= self._look_at:
                self._look_at = seconds + LOOK_SECONDS
                self._look()
            return self._newest

    def _look(self) -> None:
        state = _state(self._files)  # before they are read: what changes later differs from it
        if state == self._state and not self._reason:
            return
        try:
            self._take(read(self._files))
            reason = ""
        except OSError as error:
            reason = str(error)
            if (state, reason) != (self._state, self._reason):
                log.warning(
                    "new certificates cannot be used",
                    reason=reason,
                    hint="the ones before stay in use",
                )
        self._state, self._reason = state, reason

    def _take(self, pem: Pem) -> None:
        """Raises OSError."""
        if pem == self._pem:
            return
        now = datetime.now(UTC)
        reason = pem.invalid(now)
        if reason and not self._pem.invalid(now):
            raise BadCertificate(reason)
        self._newest = self._make(pem)
        self._pem = pem
        log.info("certificates were replaced", files=[str(path) for path in self._files.paths])
        _warn_of_time(pem)


@dataclass(frozen=True, slots=True)
class Expiry:
    """Expiry of a certificate."""

    until: datetime
    file: Path


class Expiries:
    """Expiries of a node's certificates and of the authorities that it trusts; files are read again
    only after they changed. Of several authorities in a file, the last one to expire counts: an old
    one stays there while it is replaced.
    """

    def __init__(self, files: Sequence[CertificateFiles]) -> None:
        own = [CertificateFiles(cert=one.cert, key=one.key) for one in files if one.cert]
        trusted = [CertificateFiles(ca=one.ca) for one in files if one.ca]
        self._files = tuple(dict.fromkeys([*own, *trusted]))
        self._known: dict[CertificateFiles, tuple[_State, Expiry]] = {}

    def first(self) -> Expiry | None:
        """The certificate that expires first, of the last readable files; None: none."""
        for files in self._files:
            self._look(files)
        found = [expiry for _, expiry in list(self._known.values())]  # asked in threads, too
        return min(found, key=lambda expiry: expiry.until, default=None)

    def _look(self, files: CertificateFiles) -> None:
        state = _state(files)
        known = self._known.get(files)
        if known is not None and known[0] == state:
            return
        file = files.cert or files.ca
        assert file is not None, "they have a certificate"
        try:
            pem = read(files)
            authorities = _certificates(file, pem.ca or b"") if pem.until is None else []
        except BadCertificate:
            return  # the ones before stay in use
        until = pem.until or max(one.not_valid_after_utc for one in authorities)
        self._known[files] = (state, Expiry(until, file))


def _state(files: CertificateFiles) -> _State:
    """Differs after a file was replaced or written to."""
    return tuple(_state_of(path) for path in files.paths)


def _state_of(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _warn_of_time(pem: Pem) -> None:
    reason = pem.invalid(datetime.now(UTC))
    if reason:
        log.warning("a certificate is not valid now", reason=reason)
