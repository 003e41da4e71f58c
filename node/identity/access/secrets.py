"""Passwords and secrets of users: hashed where they are only compared, sealed where they must sign.

A password is hashed by scrypt (RFC 7914). A secret that a client signs with is encrypted with
AES-256-GCM under the key that the nodes of a cluster share, for its user's name: in the row of
another user it is of no use. The salt of a password is its generation: a password that a user has
once more gets another one, so that nothing which was bound to the hash before is good again; who
changes a user in several replica groups gives all of them the same. Nonces follow from that key,
the user, the password and its salt: the same row has the same, whichever replica group makes it.
"""

import base64
import binascii
import functools
import hashlib
import hmac
import json
import os
import re
import stat
from pathlib import Path

KEY_BYTES = 32
NONCE_BYTES = 12
SALT_BYTES = 16
HASH_BYTES = 32
# About 40 ms and 16 MiB a time.
SCRYPT_N, SCRYPT_R, SCRYPT_P = 1 << 14, 8, 1
SCHEME = "scrypt"
_HASH = re.compile(
    rf"{SCHEME}\${SCRYPT_N}\${SCRYPT_R}\${SCRYPT_P}\$[A-Za-z0-9+/]{{22}}==\$[A-Za-z0-9+/]{{43}}="
)


class BadKeyFile(Exception):
    """The file with the cluster's key cannot be used; the text says why."""


def hash_password(password: str, salt: bytes | None = None) -> str:
    """`scrypt$N$R$P$SALT$HASH`, the last two in base64. Takes a while: not on the event loop."""
    salt = os.urandom(SALT_BYTES) if salt is None else salt
    digest = _scrypt(password, salt, SCRYPT_N, SCRYPT_R, SCRYPT_P)
    numbers = f"{SCRYPT_N}${SCRYPT_R}${SCRYPT_P}"
    return f"{SCHEME}${numbers}${_text(salt)}${_text(digest)}"


def is_password(password: str, stored: str) -> bool:
    """Whether that is the password of a hash. Takes a while: not on the event loop."""
    try:
        scheme, n, r, p, salt, wanted = stored.split("$")
        if scheme != SCHEME:
            return False
        found = _scrypt(password, base64.b64decode(salt), int(n), int(r), int(p))
        return hmac.compare_digest(found, base64.b64decode(wanted))
    except (ValueError, binascii.Error):
        return False


def salt_of(stored: str) -> bytes:
    """The salt of a hash, empty where it has none."""
    try:
        return base64.b64decode(stored.split("$")[4])
    except (IndexError, binascii.Error):
        return b""


def is_hash(text: str) -> bool:
    """Whether that is a hash as `hash_password` makes it."""
    return _HASH.fullmatch(text) is not None


@functools.cache
def nobody() -> str:
    """A hash to compare with where there is no such user, so that an answer takes equally long."""
    return hash_password("", b"\0" * SALT_BYTES)


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(
        password.encode(), salt=salt, n=n, r=r, p=p, maxmem=64 << 20, dklen=HASH_BYTES
    )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def new_key() -> str:
    """The text of a key file."""
    return _text(os.urandom(KEY_BYTES)) + "\n"


def read_key(path: Path) -> bytes:
    """The key of a key file. Raises BadKeyFile, also where others than its owner may read it."""
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a key"
        raise BadKeyFile(f"cannot read {path}: {reason}") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO) & ~stat.S_IRGRP:
        raise BadKeyFile(
            f"{path} may be read by everybody (mode {stat.S_IMODE(mode):o}): chmod 600 {path}"
        )
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except binascii.Error:
        key = b""
    if len(key) != KEY_BYTES:
        raise BadKeyFile(
            f"{path} holds no key: it must be {KEY_BYTES} random bytes in base64, as "
            "`duolog user key` writes them"
        )
    return key


def derived(key: bytes, purpose: bytes) -> bytes:
    """A key for one purpose, made from the key of a key file."""
    # Nodes without users need not load it.
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), KEY_BYTES, salt=None, info=purpose).derive(key)


class Seal:
    """Encrypts secrets for the tables, and decrypts them."""

    def __init__(self, key: bytes) -> None:
        """key: of the key file."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._cipher = AESGCM(derived(key, b"duolog secrets v1"))
        self._draws = derived(key, b"duolog salts and nonces v1")

    def _drawn(self, *words: str) -> bytes:
        """Bytes that nobody can tell from random ones without the key."""
        return hmac.digest(self._draws, json.dumps(words).encode(), hashlib.sha256)

    def fresh_salt(self) -> bytes:
        """For a password that its user did not have until now."""
        return os.urandom(SALT_BYTES)

    def hash_password(self, user: str, password: str, salt: bytes = b"") -> str:
        """The hash of a user's password. Takes a while: not on the event loop.

        salt: drawn from user and password where not given, as all were in version 0.1.0.
        """
        return hash_password(password, salt or self._drawn_salt(user, password))

    def _drawn_salt(self, user: str, password: str) -> bytes:
        return self._drawn("salt", user, password)[:SALT_BYTES]

    def close(self, user: str, secret: str, stored: str = "") -> str:
        """A secret of a user, encrypted. stored: the hash of it in the same row."""
        salt = salt_of(stored)
        drawn = salt in (b"", self._drawn_salt(user, secret))
        words = ("nonce", user, secret) if drawn else ("nonce", user, secret, _text(salt))
        nonce = self._drawn(*words)[:NONCE_BYTES]
        return _text(nonce + self._cipher.encrypt(nonce, secret.encode(), user.encode()))

    def open(self, user: str, sealed: str) -> str | None:
        """The secret, or None where it was not sealed with this key for this user."""
        from cryptography.exceptions import InvalidTag

        try:
            data = base64.b64decode(sealed, validate=True)
            nonce, rest = data[:NONCE_BYTES], data[NONCE_BYTES:]
            return self._cipher.decrypt(nonce, rest, user.encode()).decode()
        except (InvalidTag, ValueError, binascii.Error):
            return None
