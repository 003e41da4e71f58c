"""Authentication: RocketMQ's signature, HMAC-SHA1 over the date header with the secret key.

It covers only the date, so it proves only that the caller once knew the secret: use TLS.
"""

import hashlib
import hmac
from collections.abc import Mapping

from node.rocketmq.words.codes import Refused
from node.rocketmq.words.stubs import Code

SCHEME = "MQv2-HMAC-SHA1"


class Authenticator:
    """Checks calls against one pair of keys; without keys, every call is accepted."""

    def __init__(self, access_key: str, secret_key: str) -> None:
        self._access_key = access_key
        self._secret = secret_key.encode()

    def check(self, metadata: Mapping[str, str | bytes]) -> None:
        """Raise Refused (UNAUTHORIZED) if the call is not signed with the keys."""
        if not self._access_key:
            return
        scheme, _, rest = str(metadata.get("authorization", "")).partition(" ")
        parts = dict(pair.strip().partition("=")[::2] for pair in rest.split(","))
        access_key = parts.get("Credential", "").partition("/")[0]
        date = str(metadata.get("x-mq-date-time", "")).encode()
        wanted = hmac.new(self._secret, date, hashlib.sha1).hexdigest()
        found = parts.get("Signature", "").lower()
        known = hmac.compare_digest(access_key.encode(), self._access_key.encode())
        signed = hmac.compare_digest(found.encode(), wanted.encode())
        if scheme != SCHEME or not known or not signed:
            raise Refused(Code.UNAUTHORIZED, "the access key or its signature is wrong")
